#include "kernels/cuda/emulator/streams.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <utility>
#include <vector>

struct CUstream_st {
  std::deque<std::function<void()>> work;
  uint64_t queued = 0, done = 0;
  bool running = false;
};

namespace baton::cuda_emulator {
namespace {

struct State {
  Haste haste = Haste::kLazy;
  std::mt19937 rng;
  std::vector<CUstream_st*> streams;
};

State& TheState() {
  static auto* const state = new State();
  return *state;
}

void RunOne(CUstream_st* stream) {
  if (stream->running) {
    std::fprintf(stderr, "CUDA emulator: a stream waits for itself\n");
    std::abort();
  }
  stream->running = true;
  const std::function<void()> work = std::move(stream->work.front());
  stream->work.pop_front();
  work();
  ++stream->done;
  stream->running = false;
}

}  // namespace

void SetHaste(Haste haste, uint32_t seed) {
  TheState().haste = haste;
  TheState().rng.seed(seed);
}

CUstream_st* NewStream() {
  TheState().streams.push_back(new CUstream_st());
  return TheState().streams.back();
}

void DeleteStream(CUstream_st* stream) {
  RunAll();  // others may have work that waits for this one's
  std::erase(TheState().streams, stream);
  delete stream;
}

void Enqueue(CUstream_st* stream, std::function<void()> work) {
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

Mark MarkOf(CUstream_st* stream) { return {stream, stream == nullptr ? 0 : stream->queued}; }

bool Passed(const Mark& mark) { return mark.stream == nullptr || mark.stream->done >= mark.count; }

void RunTo(const Mark& mark) {
  while (!Passed(mark)) RunOne(mark.stream);
}

void RunAll() {
  for (CUstream_st* stream : TheState().streams) RunTo(MarkOf(stream));
}

}  // namespace baton::cuda_emulator
