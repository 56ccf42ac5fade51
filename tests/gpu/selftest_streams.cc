#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/kernels.h"
#include "tests/gpu/selftest.h"

namespace baton::kernels::cuda {
namespace {

// A stream, and floats [kRows, dim] on the device.
class StreamWork {
 public:
  static constexpr int kRows = 64;

  static absl::StatusOr<StreamWork> Create(int dim) {
    StreamWork work(dim);
    absl::StatusOr<OwnedStream> stream = OwnedStream::Create();
    if (!stream.ok()) return stream.status();
    work.stream_ = *std::move(stream);
    for (DeviceMemory* memory : {&work.x_, &work.y_}) {
      absl::StatusOr<DeviceMemory> allocated = DeviceMemory::Allocate(work.bytes());
      if (!allocated.ok()) return allocated.status();
      *memory = *std::move(allocated);
    }
    std::vector<float> y(size_t{kRows} * dim);
    for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<float>(i % 1021) * 0.37f - 180;
    const absl::Status put = CopyToDevice(work.y_.data(), y.data(), work.bytes(), work.stream());
    if (!put.ok()) return put;
    return work;
  }

  Stream stream() const { return stream_.get(); }
  absl::Status Clear() { return ClearDevice(x_.data(), bytes(), stream()); }
  // x = norm(x + y): another value each time.
  void Launch() {
    auto* const x = static_cast<float*>(x_.data());
    const auto* const y = static_cast<const float*>(y_.data());
    Add(x, dim_, y, dim_, kRows, dim_, stream());
    RmsNorm({.x = x, .x_stride = dim_, .m = kRows, .dim = dim_, .weight = y, .epsilon = 1e-5f, .y = x, .y_stride = dim_},
            stream());
  }
  absl::StatusOr<std::vector<float>> Get() {
    std::vector<float> x(size_t{kRows} * dim_);
    const absl::Status got = CopyFromDevice(x.data(), x_.data(), bytes(), stream());
    if (!got.ok()) return got;
    return x;
  }

 private:
  explicit StreamWork(int dim) : dim_(dim) {}
  size_t bytes() const { return size_t{kRows} * dim_ * sizeof(float); }
  int dim_;
  OwnedStream stream_;
  DeviceMemory x_, y_;
};

// Asked about until it is reached, as the engine asks. That it was not at first must not look like a launch's error.
absl::Status CheckEvent(int dim, int launches) {
  absl::StatusOr<StreamWork> work = StreamWork::Create(dim);
  if (!work.ok()) return work.status();
  absl::StatusOr<Event> event = Event::Create();
  if (!event.ok()) return event.status();
  if (absl::Status status = work->Clear(); !status.ok()) return status;
  for (int i = 0; i < launches; ++i) work->Launch();
  if (absl::Status status = event->Record(work->stream()); !status.ok()) return status;
  bool asked_early = false;
  for (;;) {
    const absl::StatusOr<bool> done = event->Done();
    if (!done.ok()) return done.status();
    if (*done) break;
    asked_early = true;
  }
  if (!asked_early) return absl::InternalError("it was reached before it was asked about: nothing is shown");
  return Synchronize(work->stream());
}

// Launches that are recorded and run three times as a graph, against the same ones launched call by call.
absl::Status CheckGraph(int dim) {
  constexpr int kTimes = 3;
  absl::StatusOr<StreamWork> work = StreamWork::Create(dim);
  if (!work.ok()) return work.status();
  if (absl::Status status = work->Clear(); !status.ok()) return status;
  for (int i = 0; i < kTimes; ++i) work->Launch();
  const absl::StatusOr<std::vector<float>> want = work->Get();
  if (!want.ok()) return want.status();
  if (absl::Status status = work->Clear(); !status.ok()) return status;
  if (absl::Status status = Graph::Begin(work->stream()); !status.ok()) return status;
  work->Launch();
  const absl::StatusOr<Graph> graph = Graph::End(work->stream());
  if (!graph.ok()) return graph.status();
  for (int i = 0; i < kTimes; ++i) {
    if (absl::Status status = graph->Launch(work->stream()); !status.ok()) return status;
  }
  const absl::StatusOr<std::vector<float>> got = work->Get();
  if (!got.ok()) return got.status();
  if (std::memcmp(got->data(), want->data(), want->size() * sizeof(float)) == 0) return absl::OkStatus();
  return absl::InternalError("other values than without a graph");
}

}  // namespace

std::vector<CheckResult> RunStreamChecks(bool large) {
  std::vector<CheckResult> results;
  // Enough for the device to be at work when the host asks.
  for (const auto& [name, status] : {std::pair{"event", CheckEvent(large ? 16384 : 40, large ? 200 : 2)},
                                     {"graph", CheckGraph(large ? 4096 : 40)}}) {
    results.push_back({name, status.ok() ? "" : status.ToString()});
  }
  return results;
}

}  // namespace baton::kernels::cuda
