// Streams and events of the emulated device, and what the backend asks of them.
#include "kernels/cuda/emulator/streams.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_memory.h"

namespace baton::kernels::cuda {
namespace {

using cuda_emulator::Haste;
using cuda_emulator::SetHaste;

class StreamsTest : public testing::Test {
 protected:
  StreamsTest() { SetHaste(Haste::kLazy); }
  ~StreamsTest() override { SetHaste(Haste::kLazy); }

  static DeviceMemory Device(std::vector<float> values) {
    DeviceMemory memory = DeviceMemory::Allocate(values.size() * sizeof(float)).value();
    EXPECT_TRUE(CopyToDevice(memory.data(), values.data(), memory.bytes(), nullptr).ok());
    return memory;
  }
  static float* At(const DeviceMemory& memory) { return static_cast<float*>(memory.data()); }
  static float& At(const PinnedMemory& memory) { return *reinterpret_cast<float*>(memory.data()); }
  // Twice the value of one float, on a stream.
  static void Double(const DeviceMemory& x, Stream stream) { Add(At(x), 1, At(x), 1, 1, 1, stream); }
};

TEST_F(StreamsTest, WorkWaitsUntilSomebodyWaitsForItOrRunsAtOnce) {
  const OwnedStream stream = OwnedStream::Create().value();
  const DeviceMemory x = Device({3});
  const PinnedMemory out = PinnedMemory::Allocate(sizeof(float)).value();
  At(out) = -1;
  for (const auto& [haste, at_once] : {std::pair{Haste::kLazy, false}, {Haste::kEager, true}}) {
    SetHaste(haste);
    Double(x, stream.get());
    ASSERT_TRUE(StartCopyFromDevice(&At(out), x.data(), sizeof(float), stream.get()).ok());
    EXPECT_EQ(At(out) == (at_once ? 12 : 6), at_once);
    ASSERT_TRUE(Synchronize(stream.get()).ok());
    EXPECT_EQ(At(out), at_once ? 12 : 6);
  }
}

TEST_F(StreamsTest, AnEventIsNotDoneAtFirstAndHoldsAnotherStreamBack) {
  const OwnedStream first = OwnedStream::Create().value(), second = OwnedStream::Create().value();
  Event event = Event::Create().value();
  EXPECT_TRUE(event.Done().value());
  const DeviceMemory x = Device({3});
  const PinnedMemory out = PinnedMemory::Allocate(sizeof(float)).value();
  Double(x, first.get());
  ASSERT_TRUE(event.Record(first.get()).ok());
  EXPECT_FALSE(event.Done().value());
  Double(x, first.get());  // behind the event
  ASSERT_TRUE(event.HoldBack(second.get()).ok());
  ASSERT_TRUE(StartCopyFromDevice(&At(out), x.data(), sizeof(float), second.get()).ok());
  ASSERT_TRUE(Synchronize(second.get()).ok());
  EXPECT_EQ(At(out), 6);
  EXPECT_TRUE(event.Done().value());
  ASSERT_TRUE(CopyFromDevice(&At(out), x.data(), sizeof(float), first.get()).ok());
  EXPECT_EQ(At(out), 12);
}

TEST_F(StreamsTest, OrderThatNobodyAskedForDoesNotComeAbout) {
  const OwnedStream first = OwnedStream::Create().value(), second = OwnedStream::Create().value();
  const DeviceMemory x = Device({3});
  const PinnedMemory out = PinnedMemory::Allocate(sizeof(float)).value();
  Double(x, first.get());
  ASSERT_TRUE(StartCopyFromDevice(&At(out), x.data(), sizeof(float), second.get()).ok());
  ASSERT_TRUE(Synchronize(second.get()).ok());
  EXPECT_EQ(At(out), 3);
}

TEST_F(StreamsTest, CopiesBesideTheHostNeedPinnedMemory) {
  const DeviceMemory x = Device({3});
  float on_the_stack = 0;
  EXPECT_DEATH(StartCopyFromDevice(&on_the_stack, x.data(), sizeof(float), nullptr).IgnoreError(), "pinned");
  EXPECT_DEATH(StartCopyToDevice(x.data(), &on_the_stack, sizeof(float), nullptr).IgnoreError(), "pinned");
  ASSERT_TRUE(PinHostMemory(&on_the_stack, sizeof on_the_stack).ok());
  EXPECT_TRUE(StartCopyFromDevice(&on_the_stack, x.data(), sizeof(float), nullptr).ok());
  UnpinHostMemory(&on_the_stack);
  EXPECT_EQ(on_the_stack, 3);
}

class BackendStreamsTest : public StreamsTest {
 protected:
  float Value(const DeviceArray& x) {
    float value = 0;
    backend_.Download(&value, x.data(), sizeof value);
    return value;
  }
  CudaBackend backend_;
};

TEST_F(BackendStreamsTest, WhatACallWasGivenMayGoWhenItReturns) {
  constexpr int kFloats = 3 << 18;  // three parts of the staging memory
  const DeviceArray x = DeviceArray::Allocate(&backend_, kFloats * sizeof(float)).value();
  std::vector<float> host(kFloats), back(kFloats);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kFloats; ++i) host[i] = static_cast<float>(i + round);
    const std::vector<float> want = host;
    backend_.Upload(x.data(), host.data(), kFloats * sizeof(float));
    std::fill(host.begin(), host.end(), -1.0f);
    if (round == 1) continue;  // two uploads on their way: more than the staging memory holds
    backend_.Download(back.data(), x.data(), kFloats * sizeof(float));
    EXPECT_TRUE(back == want) << round;
  }
}

TEST_F(BackendStreamsTest, CopiesComeAfterTheCallsBeforeThemAndAreWaitedForByNobody) {
  for (const Haste haste : {Haste::kLazy, Haste::kEager}) {
    SetHaste(haste);
    const DeviceArray x = DeviceArray::Allocate(&backend_, sizeof(float)).value();
    const DeviceArray y = DeviceArray::Allocate(&backend_, sizeof(float)).value();
    const PinnedMemory out = PinnedMemory::Allocate(sizeof(float)).value(), in = PinnedMemory::Allocate(4).value();
    const float three = 3;
    At(out) = -1;
    At(in) = 5;
    auto* const at = static_cast<float*>(x.data());
    backend_.Upload(x.data(), &three, sizeof three);
    backend_.Clear(y.data(), sizeof(float));
    backend_.Add(at, 1, at, 1, 1, 1);
    const DeviceSpace::Copy down[] = {{&At(out), x.data(), sizeof(float)}};
    const DeviceSpace::Copy up[] = {{y.data(), &At(in), sizeof(float)}};
    const auto first = backend_.StartDownloads(down), second = backend_.StartUploads(up);
    EXPECT_LT(first, second);
    if (haste == Haste::kLazy) {
      backend_.Finish();
      EXPECT_EQ(At(out), -1) << "calls do not wait for copies";
      EXPECT_FALSE(backend_.CopiesDone(first));
    }
    EXPECT_TRUE(backend_.CopiesDone(first));
    EXPECT_EQ(At(out), 6);
    backend_.WaitCopies(second);
    EXPECT_TRUE(backend_.CopiesDone(second));
    EXPECT_EQ(Value(y), 5);
    EXPECT_TRUE(backend_.CopiesDone(0));
  }
}

// Nobody waits for the calls here but the copies.
TEST_F(BackendStreamsTest, CopiesHoldBackUntilTheCallsBeforeThemAreDone) {
  const DeviceArray x = DeviceArray::Allocate(&backend_, sizeof(float)).value();
  const DeviceArray y = DeviceArray::Allocate(&backend_, sizeof(float)).value();
  const PinnedMemory out = PinnedMemory::Allocate(sizeof(float)).value(), in = PinnedMemory::Allocate(4).value();
  At(out) = -1;
  At(in) = 5;
  auto* const x_at = static_cast<float*>(x.data());
  auto* const y_at = static_cast<float*>(y.data());
  const float three = 3, four = 4;
  backend_.Upload(x_at, &three, sizeof three);
  backend_.Upload(y_at, &four, sizeof four);
  backend_.Add(x_at, 1, y_at, 1, 1, 1);
  const DeviceSpace::Copy down[] = {{&At(out), x_at, sizeof(float)}};
  backend_.WaitCopies(backend_.StartDownloads(down));
  EXPECT_EQ(At(out), 7);
  backend_.Add(x_at, 1, y_at, 1, 1, 1);
  const DeviceSpace::Copy up[] = {{y_at, &At(in), sizeof(float)}};
  backend_.WaitCopies(backend_.StartUploads(up));
  EXPECT_EQ(Value(x), 11) << "the call takes y as it was";
  EXPECT_EQ(Value(y), 5);
}

TEST_F(BackendStreamsTest, KernelsAreNotGivenBlocksOfTheHost) {
  const KvLayout layout{.num_layers = 1, .num_kv_heads = 1, .head_dim = 8};
  std::vector<std::byte> host(layout.block_bytes());
  const DeviceArray k = DeviceArray::Allocate(&backend_, 8 * sizeof(float)).value();
  const int32_t table[] = {0};
  const SequenceChunk chunks[] = {{0, 1, 0, table}};
  const auto* const at = static_cast<const float*>(k.data());
  EXPECT_DEATH(backend_.WriteKv(0, at, 8, at, 8, chunks, {host.data(), layout}), "not the device's");
}

}  // namespace
}  // namespace baton::kernels::cuda
