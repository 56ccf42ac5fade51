// Streams of the emulated device: queues of kernels and copies, which run no sooner than somebody waits for them, or
// sooner, as SetHaste says. So an order that host code forgot to ask for (an event that a stream should wait for, a
// wait of the host's) does not come about by luck, and a test that compares results shows it.
//
// There are several devices, and a stream is of one. Work for a stream of another device than the thread's ends the process:
// CUDA refuses it for kernels.
//
// Thread contract: any number of threads, each stream for one at a time. Work of all of them runs one after the other, on
// whichever thread waits.
#ifndef BATON_KERNELS_CUDA_EMULATOR_STREAMS_H_
#define BATON_KERNELS_CUDA_EMULATOR_STREAMS_H_

#include <cstdint>
#include <functional>
#include <memory>

struct CUstream_st;

namespace baton::cuda_emulator {

// kEager: each piece of work runs when it is launched. kLazy: when it is waited for. kRandom: at some time between, by
// seed.
enum class Haste { kEager, kLazy, kRandom };
// From now on; kLazy at first.
void SetHaste(Haste haste, uint32_t seed = 0);

// The device of the calling thread, 0 at first, as cudaSetDevice.
void SetDevice(int device);
int CurrentDevice();
// Whose work runs now, on this thread.
int RunningDevice();

CUstream_st* NewStream();  // of the current device
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

// Graphs, from streams captured in thread-local mode. A call that CUDA refuses gives its message, else null; a call that it
// refuses while the thread captures (CUDA programming guide, "Prohibited and Unhandled Operations") spoils the capture too.
struct Graph;
// What is enqueued from now on is kept instead of run. Events are not captured: to record one, or to hold the stream back,
// ends the process.
const char* BeginCapture(CUstream_st* stream);
const char* EndCapture(CUstream_st* stream, std::shared_ptr<const Graph>* graph);
// Enqueues all that was captured. The graph may go before it has run.
const char* LaunchGraph(const std::shared_ptr<const Graph>& graph, CUstream_st* stream);
bool IsCapturing(CUstream_st* stream);
// For calls that a thread which captures is refused: null if this one does not.
const char* RefusedWhileCapturing();
// From now on that call fails, as with a driver that has no graphs or no memory for them.
enum class GraphFault { kNone, kBegin, kEnd, kLaunch };
void SetGraphFault(GraphFault fault);

// What host code has asked for since the process began.
struct Counts {
  uint64_t launches = 0;  // kernels, copies and clears, but those of graphs
  uint64_t copies = 0;    // of them copies
  uint64_t graphs = 0;    // launches of graphs
};
Counts& TheCounts();

}  // namespace baton::cuda_emulator

#endif  // BATON_KERNELS_CUDA_EMULATOR_STREAMS_H_
