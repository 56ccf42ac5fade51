#include "kernels/cuda/emulator/streams.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "common/mutex.h"

namespace baton::cuda_emulator {

struct Graph {
  std::vector<std::function<void()>> work;
};

}  // namespace baton::cuda_emulator

struct CUstream_st {
  struct Capture {
    std::shared_ptr<baton::cuda_emulator::Graph> graph;
    std::thread::id thread;
    bool spoilt = false;
  };
  std::deque<std::function<void()>> work;
  uint64_t queued = 0, done = 0;
  int device = 0;
  bool running = false;
  std::unique_ptr<Capture> capture;  // null: none
};

namespace baton::cuda_emulator {
namespace {

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "CUDA emulator: %s\n", what);
  std::abort();
}

struct State {
  Haste haste = Haste::kLazy;
  std::mt19937 rng;
  std::vector<CUstream_st*> streams;
  GraphFault graph_fault = GraphFault::kNone;
  Counts counts;
};

State& TheState() {
  static auto* const state = new State();
  return *state;
}

// Held while any work runs and while queues change. Work waits for other work, so a thread may take it again.
class Exclusive {
 public:
  Exclusive() {
    if (owner_ != std::this_thread::get_id()) {
      mu_.Lock();
      owner_ = std::this_thread::get_id();
    }
    ++depth_;
  }
  ~Exclusive() {
    if (--depth_ > 0) return;
    owner_ = std::thread::id();
    mu_.Unlock();
  }
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;

 private:
  static Mutex mu_;
  static std::atomic<std::thread::id> owner_;
  static int depth_;  // of the owner's
};
Mutex Exclusive::mu_;
std::atomic<std::thread::id> Exclusive::owner_;
int Exclusive::depth_ = 0;

thread_local int current_device = 0;
thread_local int running_device = -1;  // none runs

void RunOne(CUstream_st* stream) {
  if (stream->running) Die("a stream waits for itself");
  stream->running = true;
  const int interrupted = std::exchange(running_device, stream->device);
  const std::function<void()> work = std::move(stream->work.front());
  stream->work.pop_front();
  work();
  ++stream->done;
  running_device = interrupted;
  stream->running = false;
}

void Put(CUstream_st* stream, std::function<void()> work) {
  if (stream == nullptr) return work();
  stream->work.push_back(std::move(work));
  ++stream->queued;
  State& state = TheState();
  if (state.haste == Haste::kEager) RunTo(MarkOf(stream));
  if (state.haste != Haste::kRandom) return;
  std::vector<CUstream_st*> streams = state.streams;
  std::shuffle(streams.begin(), streams.end(), state.rng);
  for (CUstream_st* each : streams) {
    while (!each->work.empty() && state.rng() % 2 == 0) RunOne(each);
  }
}

}  // namespace

void SetHaste(Haste haste, uint32_t seed) {
  const Exclusive exclusive;
  TheState().haste = haste;
  TheState().rng.seed(seed);
}

void SetDevice(int device) { current_device = device; }
int CurrentDevice() { return current_device; }
int RunningDevice() { return running_device < 0 ? current_device : running_device; }

CUstream_st* NewStream() {
  const Exclusive exclusive;
  TheState().streams.push_back(new CUstream_st());
  TheState().streams.back()->device = current_device;
  return TheState().streams.back();
}

void DeleteStream(CUstream_st* stream) {
  const Exclusive exclusive;
  if (stream->capture != nullptr) Die("a stream that is captured is deleted");
  RunAll();  // others may have work that waits for this one's
  std::erase(TheState().streams, stream);
  delete stream;
}

void Enqueue(CUstream_st* stream, std::function<void()> work) {
  const Exclusive exclusive;
  ++TheState().counts.launches;
  if (stream != nullptr && stream->device != current_device) Die("work for a stream of another device than the thread's");
  if (stream != nullptr && stream->capture != nullptr) {
    if (!stream->capture->spoilt) stream->capture->graph->work.push_back(std::move(work));
    return;
  }
  Put(stream, std::move(work));
}

Mark MarkOf(CUstream_st* stream) {
  const Exclusive exclusive;
  if (stream != nullptr && stream->capture != nullptr) Die("not emulated: an event in a stream that is captured");
  return {stream, stream == nullptr ? 0 : stream->queued};
}

bool Passed(const Mark& mark) {
  const Exclusive exclusive;
  return mark.stream == nullptr || mark.stream->done >= mark.count;
}

void RunTo(const Mark& mark) {
  const Exclusive exclusive;
  while (!Passed(mark)) RunOne(mark.stream);
}

void RunAll() {
  const Exclusive exclusive;
  for (CUstream_st* stream : TheState().streams) RunTo({stream, stream->queued});
}

bool IsCapturing(CUstream_st* stream) {
  const Exclusive exclusive;
  return stream != nullptr && stream->capture != nullptr;
}

const char* BeginCapture(CUstream_st* stream) {
  const Exclusive exclusive;
  if (stream == nullptr || IsCapturing(stream) || TheState().graph_fault == GraphFault::kBegin) {
    return "operation not permitted";
  }
  stream->capture = std::make_unique<CUstream_st::Capture>();
  stream->capture->graph = std::make_shared<Graph>();
  stream->capture->thread = std::this_thread::get_id();
  return nullptr;
}

const char* EndCapture(CUstream_st* stream, std::shared_ptr<const Graph>* graph) {
  const Exclusive exclusive;
  if (!IsCapturing(stream)) return "operation not permitted on a stream that is not capturing";
  if (stream->capture->thread != std::this_thread::get_id()) return "attempt to end a capture that another thread began";
  const std::unique_ptr<CUstream_st::Capture> capture = std::move(stream->capture);
  if (capture->spoilt) return "operation failed due to a previous error during capture";
  if (TheState().graph_fault == GraphFault::kEnd) return "out of memory";
  *graph = capture->graph;
  return nullptr;
}

const char* LaunchGraph(const std::shared_ptr<const Graph>& graph, CUstream_st* stream) {
  const Exclusive exclusive;
  if (IsCapturing(stream)) Die("not emulated: a graph in a graph");
  if (stream != nullptr && stream->device != current_device) Die("a graph for a stream of another device than the thread's");
  if (TheState().graph_fault == GraphFault::kLaunch) return "out of memory";
  ++TheState().counts.graphs;
  for (size_t i = 0; i < graph->work.size(); ++i) Put(stream, [graph, i] { graph->work[i](); });
  return nullptr;
}

const char* RefusedWhileCapturing() {
  const Exclusive exclusive;
  const char* refused = nullptr;
  for (CUstream_st* stream : TheState().streams) {
    if (!IsCapturing(stream) || stream->capture->thread != std::this_thread::get_id()) continue;
    stream->capture->spoilt = true;
    refused = "operation not permitted when stream is capturing";
  }
  return refused;
}

void SetGraphFault(GraphFault fault) { TheState().graph_fault = fault; }
Counts& TheCounts() { return TheState().counts; }

}  // namespace baton::cuda_emulator
