// Shared pieces of the hand-over's tests: a pool with SmolLM2-135M's block size, filled leases, and a peer process.
#ifndef BATON_TESTS_KVTRANSFER_TESTING_H_
#define BATON_TESTS_KVTRANSFER_TESTING_H_

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "common/mutex.h"
#include "kvcache/block_pool.h"
#include "kvtransfer/exporter.h"
#include "kvtransfer/ticket.h"
#include "kvtransfer/transport.h"

namespace baton::kvtransfer::testing {

// 368,640 bytes a block.
inline kernels::KvLayout SmolLayout() {
  return {.dtype = kernels::DType::kF16, .block_size = 16, .num_layers = 30, .num_kv_heads = 3, .head_dim = 64};
}
// 4,096 bytes a block.
inline kernels::KvLayout SmallLayout() {
  return {.dtype = kernels::DType::kF16, .block_size = 16, .num_layers = 2, .num_kv_heads = 1, .head_dim = 32};
}
// 1,024 bytes a block.
inline kernels::KvLayout TinyLayout() {
  return {.dtype = kernels::DType::kF16, .block_size = 16, .num_layers = 2, .num_kv_heads = 1, .head_dim = 8};
}

inline v1::ModelFingerprint Fingerprint() {
  v1::ModelFingerprint f;
  f.set_weights(std::string(64, 'a'));
  f.set_config(std::string(64, 'b'));
  f.set_tokenizer(std::string(64, 'c'));
  f.set_numerics_class("f32");
  return f;
}

inline ClusterKey TestKey(char fill = 'k') { return *ClusterKey::FromBytes(std::string(32, fill)); }

inline std::shared_ptr<kvcache::BlockPool> MakePool(const kernels::KvLayout& layout, int64_t num_blocks) {
  return *kvcache::BlockPool::Create(layout, num_blocks);
}

// Different for each (seed, block, position).
inline void Fill(std::span<std::byte> bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t value = random();
    std::memcpy(bytes.data() + i, &value, 8);
  }
}

inline kvcache::BlockLease FilledLease(kvcache::BlockPool* pool, int64_t num_blocks, uint64_t seed) {
  kvcache::BlockLease lease = *pool->AllocateLease(num_blocks);
  for (size_t i = 0; i < lease.blocks().size(); ++i) Fill(lease.bytes(i), seed * 1000 + i);
  return lease;
}

inline bool HoldsFill(const kvcache::BlockLease& lease, size_t num_blocks, uint64_t seed) {
  std::vector<std::byte> expected(lease.bytes(0).size());
  for (size_t i = 0; i < num_blocks; ++i) {
    Fill(expected, seed * 1000 + i);
    if (std::memcmp(expected.data(), lease.bytes(i).data(), expected.size()) != 0) return false;
  }
  return true;
}

inline uint64_t PoolHash(const kvcache::BlockPool& pool) {
  return BlockChecksum({pool.view().base, static_cast<size_t>(pool.num_blocks()) * pool.layout().block_bytes()});
}

inline void ExpectAllFree(const kvcache::BlockPool& pool) {
  const kvcache::Ledger l = pool.ledger();
  EXPECT_TRUE(l.Balanced());
  EXPECT_EQ(l.free, l.total) << "leased " << l.leased << " quarantined " << l.quarantined << " active " << l.active;
}

// One fetch's outcome, waited for.
class Outcome {
 public:
  FetchCallback Callback() {
    return [this](absl::StatusOr<FetchResult> result, kvcache::BlockLease destination) {
      MutexLock lock(&mu_);
      if (result.ok()) {
        result_ = result->stats;
        finished_ = result->finished;
        payload_ = result->payload;
      } else {
        result_ = result.status();
      }
      destination_ = std::move(destination);
      ++calls_;
      cv_.SignalAll();
    };
  }
  // The result; a status of its own when none comes within a minute.
  absl::StatusOr<FetchStats> Wait() {
    MutexLock lock(&mu_);
    for (int i = 0; i < 60 && calls_ == 0; ++i) cv_.WaitWithTimeout(&mu_, absl::Seconds(1));
    if (calls_ == 0) return absl::InternalError("the fetch's callback did not come");
    return result_;
  }
  kvcache::BlockLease& destination() { return destination_; }
  // Of a fetch that went well.
  bool finished() const { return finished_; }
  const std::string& payload() const { return payload_; }
  int calls() {
    MutexLock lock(&mu_);
    return calls_;
  }

 private:
  Mutex mu_;
  CondVar cv_;
  absl::StatusOr<FetchStats> result_;
  bool finished_ = false;
  std::string payload_;
  kvcache::BlockLease destination_;
  int calls_ = 0;
};

inline absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

// Waits for `condition`; true when it came true within a generous bound.
template <typename F>
bool Eventually(F condition) {
  for (int i = 0; i < 3000; ++i) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return condition();
}

}  // namespace baton::kvtransfer::testing

#endif  // BATON_TESTS_KVTRANSFER_TESTING_H_
