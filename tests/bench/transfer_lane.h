// One way of moving blocks, measured by transfer_bench: a process that exports, and a receiver in this one.
#ifndef BATON_TESTS_BENCH_TRANSFER_LANE_H_
#define BATON_TESTS_BENCH_TRANSFER_LANE_H_

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "kvcache/block_pool.h"
#include "kvtransfer/transport.h"

namespace baton::bench {

// One way to move blocks: "shm/off", "tcp/sum", "shm/tag", "grpc/sum", "tls/sum".
struct Way {
  std::string carrier;  // shm, tcp, grpc, tls
  std::string checks;   // off, sum, tag
  std::string name() const { return carrier + "/" + checks; }
};

// What a fetch's blocks are.
enum class Memory {
  kOne,   // the same memory again and again, at both ends, as with ucx_perftest: it stays in the cache
  kMany,  // all different, as KV is
};

class TransferLane {
 public:
  // `certs`: a directory for way "tls", else ignored.
  TransferLane(const Way& way, size_t block_bytes, int64_t num_blocks, const std::string& certs);
  ~TransferLane();
  // GB/s of one fetch of num_blocks blocks, by a receiver that has its ticket.
  double Fetch(Memory memory);
  // What the transport used, such as "sysv/cma".
  const std::string& detail() const { return detail_; }

  // The exporting process, started as "PROGRAM --lane-peer CARRIER CHECKS BLOCK_BYTES NUM_BLOCKS CERTS".
  static int Peer(const Way& way, size_t block_bytes, int64_t num_blocks, const std::string& certs);

 private:
  const int64_t num_blocks_;
  std::shared_ptr<kvcache::BlockPool> pool_;
  kvcache::BlockTable one_;
  std::unique_ptr<kvtransfer::TransportClient> client_;
  pid_t pid_ = -1;
  FILE* in_ = nullptr;
  FILE* out_ = nullptr;
  std::string detail_;
};

}  // namespace baton::bench

#endif  // BATON_TESTS_BENCH_TRANSFER_LANE_H_
