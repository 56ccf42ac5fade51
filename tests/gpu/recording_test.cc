// What the emulated device records of a stream, and what it refuses meanwhile.
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/emulator/streams.h"
#include "kernels/cuda/kernels.h"

namespace baton::kernels::cuda {
namespace {

using cuda_emulator::Haste;
using cuda_emulator::SetHaste;

class RecordingTest : public testing::Test {
 protected:
  RecordingTest() {
    SetHaste(Haste::kLazy);
    const float three = 3;
    EXPECT_TRUE(CopyToDevice(x_.data(), &three, sizeof three, nullptr).ok());
  }
  ~RecordingTest() override { SetHaste(Haste::kLazy); }

  static float& At(const PinnedMemory& memory) { return *reinterpret_cast<float*>(memory.data()); }
  static void Double(float* x, Stream stream) { Add(x, 1, x, 1, 1, 1, stream); }
  float* x() const { return static_cast<float*>(x_.data()); }
  float Value() const {
    float value = 0;
    EXPECT_TRUE(CopyFromDevice(&value, x_.data(), sizeof value, stream_.get()).ok());
    return value;
  }
  const OwnedStream stream_ = OwnedStream::Create().value();
  const DeviceMemory x_ = DeviceMemory::Allocate(sizeof(float)).value();
};

TEST_F(RecordingTest, NothingRunsUntilItIsLaunchedThenAllAsOftenAsItIs) {
  for (const Haste haste : {Haste::kLazy, Haste::kEager, Haste::kRandom}) {
    SetHaste(haste, 1);
    ASSERT_TRUE(ClearDevice(x(), sizeof(float), stream_.get()).ok());
    const float three = 3;
    ASSERT_TRUE(CopyToDevice(x(), &three, sizeof three, stream_.get()).ok());
    ASSERT_TRUE(Graph::Begin(stream_.get()).ok());
    float* argument = x();
    Double(argument, stream_.get());
    argument = nullptr;  // the kernel has its value
    Double(x(), stream_.get());
    const Graph graph = Graph::End(stream_.get()).value();
    EXPECT_EQ(Value(), 3);
    Double(x(), stream_.get());
    ASSERT_TRUE(graph.Launch(stream_.get()).ok());
    EXPECT_EQ(Value(), 24);
    ASSERT_TRUE(graph.Launch(stream_.get()).ok());
    ASSERT_TRUE(graph.Launch(stream_.get()).ok());
    EXPECT_EQ(Value(), 384);
  }
}

TEST_F(RecordingTest, ACopyReadsWhatLiesThereWhenItRunsAndOtherStreamsAreNotRecorded) {
  const PinnedMemory from = PinnedMemory::Allocate(sizeof(float)).value();
  const OwnedStream other = OwnedStream::Create().value();
  At(from) = 5;
  ASSERT_TRUE(Graph::Begin(stream_.get()).ok());
  ASSERT_TRUE(StartCopyToDevice(x(), &At(from), sizeof(float), stream_.get()).ok());
  Double(x(), other.get());
  ASSERT_TRUE(Synchronize(other.get()).ok());
  const Graph graph = Graph::End(stream_.get()).value();
  EXPECT_EQ(Value(), 6);
  At(from) = 7;
  ASSERT_TRUE(graph.Launch(stream_.get()).ok());
  EXPECT_EQ(Value(), 7);
}

TEST_F(RecordingTest, CallsThatCudaRefusesFailAndSpoilTheRecording) {
  const Event event = Event::Create().value();
  const std::pair<const char*, std::function<absl::Status()>> calls[] = {
      {"waiting", [&] { return Synchronize(stream_.get()); }},
      {"a copy that waits", [&] { float value; return CopyFromDevice(&value, x(), sizeof value, stream_.get()); }},
      {"allocating", [&] { return DeviceMemory::Allocate(8).status(); }},
      {"pinning", [&] { return PinnedMemory::Allocate(8).status(); }},
      {"asking an event", [&] { return event.Done().status(); }},
      {"waiting for an event", [&] { return event.Wait(); }},
      {"recording twice", [&] {
         absl::Status status = Graph::Begin(stream_.get());
         EXPECT_FALSE(DeviceMemory::Allocate(8).ok());  // the former recording goes on
         return status;
       }}};
  for (const auto& [name, call] : calls) {
    ASSERT_TRUE(Graph::Begin(stream_.get()).ok()) << name;
    Double(x(), stream_.get());
    EXPECT_FALSE(call().ok()) << name;
    Double(x(), stream_.get());
    EXPECT_FALSE(Graph::End(stream_.get()).ok()) << name;
    EXPECT_EQ(Value(), 3) << name;
  }
  EXPECT_FALSE(Graph::End(stream_.get()).ok()) << "none was begun";
  EXPECT_FALSE(Graph::Begin(nullptr).ok()) << "the null stream";
  ASSERT_TRUE(Graph::Begin(stream_.get()).ok());
  Double(x(), stream_.get());
  ASSERT_TRUE(Graph::End(stream_.get()).value().Launch(stream_.get()).ok());
  EXPECT_EQ(Value(), 6);
}

TEST_F(RecordingTest, EventsInARecordingEndTheProcess) {
  Event event = Event::Create().value();
  ASSERT_TRUE(Graph::Begin(stream_.get()).ok());
  EXPECT_DEATH(event.Record(stream_.get()).IgnoreError(), "not emulated");
  EXPECT_DEATH(event.HoldBack(stream_.get()).IgnoreError(), "not emulated");
  EXPECT_TRUE(Graph::End(stream_.get()).ok());
}

}  // namespace
}  // namespace baton::kernels::cuda
