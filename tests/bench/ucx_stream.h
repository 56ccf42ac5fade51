// UCX active messages without any protocol of ours: what is to be had from the same UCX, memory and processors.
#ifndef BATON_TESTS_BENCH_UCX_STREAM_H_
#define BATON_TESTS_BENCH_UCX_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::bench {

// GB/s of `ucx_perftest -t ucp_am_bw` with messages of `size`, `bytes` in all; 0 when it did not run. `carrier`: "shm" or
// "tcp". Sender on processor 1, receiver on 0, where there are two. It sends one buffer again and again.
double UcxPerftest(absl::string_view carrier, size_t size, uint64_t bytes);

// A process that sends, and in this one a receiver, both polling, kept between runs. Buffers are like BlockPool's memory.
class UcxStream {
 public:
  // Messages of `size` from and to `num_buffers` buffers in turn.
  UcxStream(absl::string_view carrier, size_t size, int64_t num_buffers);
  ~UcxStream();
  // GB/s of `count` messages.
  double Run(int64_t count);

  // The sending process, started as "PROGRAM --stream-sender CARRIER SIZE NUM_BUFFERS".
  static int Sender(absl::string_view carrier, size_t size, int64_t num_buffers);

 private:
  struct Receiver;
  std::unique_ptr<Receiver> receiver_;
  pid_t pid_ = -1;
  FILE* in_ = nullptr;
};

// To one processor of two; nothing on a machine with one.
void PinTo(int cpu);

}  // namespace baton::bench

#endif  // BATON_TESTS_BENCH_UCX_STREAM_H_
