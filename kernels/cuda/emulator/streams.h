// Streams of the emulated device: queues of kernels and copies, which run no sooner than somebody waits for them, or
// sooner, as SetHaste says. So an order that host code forgot to ask for (an event that a stream should wait for, a
// wait of the host's) does not come about by luck, and a test that compares results shows it.
//
// Thread contract: one thread at a time.
#ifndef BATON_KERNELS_CUDA_EMULATOR_STREAMS_H_
#define BATON_KERNELS_CUDA_EMULATOR_STREAMS_H_

#include <cstdint>
#include <functional>

struct CUstream_st;

namespace baton::cuda_emulator {

// kEager: each piece of work runs when it is launched. kLazy: when it is waited for. kRandom: at some time between, by
// seed.
enum class Haste { kEager, kLazy, kRandom };
// From now on; kLazy at first.
void SetHaste(Haste haste, uint32_t seed = 0);

CUstream_st* NewStream();
void DeleteStream(CUstream_st* stream);  // after its work
// On the null stream: now.
void Enqueue(CUstream_st* stream, std::function<void()> work);

// A place in a stream, behind what is in it now.
struct Mark {
  CUstream_st* stream = nullptr;
  uint64_t count = 0;
};
Mark MarkOf(CUstream_st* stream);
bool Passed(const Mark& mark);
void RunTo(const Mark& mark);
void RunAll();  // of all streams

}  // namespace baton::cuda_emulator

#endif  // BATON_KERNELS_CUDA_EMULATOR_STREAMS_H_
