// Hopper's warpgroup products (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions": wgmma),
// and the proxy through which they read shared memory.
//
// A product happens as late as it may: when a thread first waits for it. Until then its accumulators are NaN, a thread
// gets them by its own wait, and what the registers and the memory that it reads hold by then counts: so accumulators
// that are read, operands that are overwritten and memory that is reused too early give other bits. Each warp's 16 rows
// are computed when that warp waits; a product is no barrier between the four.
//
// The proxy sees of shared memory what CopyAsync16 brought and the copying thread has then published by ProxyFence. All
// else is NaN to it, plain stores too: kernels here make none for it (PTX lets it see them after the same fence).
// Registers of a are NaN for products that follow a commit without WgmmaFence (PTX wants one only if they were written
// since).
#ifndef BATON_KERNELS_CUDA_EMULATOR_ASYNC_PROXY_H_
#define BATON_KERNELS_CUDA_EMULATOR_ASYNC_PROXY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace baton::cuda_emulator {

// Where the dynamic shared memory begins in the 18 bits of a matrix descriptor; kernels may have other memory before.
inline constexpr uint32_t kSharedBase = 1024;

// Of one block. threads: all of them, by number.
class AsyncProxy {
 public:
  AsyncProxy(const std::byte* shared, size_t bytes, int threads);

  // A copy of 16 bytes to shared memory begins (whatever is there is lost, for the proxy too), or has arrived.
  void Began(const void* to);
  void Arrived(int thread, const void* to);
  void Fence(int thread);

  uint32_t AddressOf(const void* shared) const;

  struct Lane {
    int thread = 0;
    float* d = nullptr;           // [n / 2]
    const uint32_t* a = nullptr;  // [4]
    int n = 0;
    uint64_t b = 0;  // matrix descriptor
  };
  void Issue(void* const* lanes);  // of Lane, 32
  void FenceRegisters(int thread) { threads_[thread].fenced = true; }
  void Commit(int thread);
  void Wait(int thread, int pending);
  // Ends the process if something has not been waited for, or a warpgroup's warps did not do the same.
  void Finish(int thread);
  void FinishBlock() const;

 private:
  struct Product {
    Lane lanes[32];
    bool fenced = true, computed = false;
    uint32_t chained = 0;       // a bit for each lane: d goes on from the product before that has the same
    std::vector<float> values;  // [32][n / 2]: of d, before; once computed: after
  };
  struct Thread {
    std::vector<size_t> unpublished;  // chunks of 16 bytes
    bool fenced = false;              // since the last commit
    std::vector<size_t> groups;       // the number of products up to the end of each that is not waited for
    size_t waited = 0;                // products
  };
  struct Warp {
    size_t first = 0;  // the number of the oldest in `products`
    std::deque<std::unique_ptr<Product>> products;
    size_t issued() const { return first + products.size(); }
  };
  bool Inside(const void* at) const {
    return static_cast<const std::byte*>(at) >= shared_ && static_cast<const std::byte*>(at) < shared_ + seen_.size();
  }
  size_t OffsetOf(const void* at) const { return static_cast<size_t>(static_cast<const std::byte*>(at) - shared_); }
  // Row `row` of b, 16 inputs.
  void ReadRow(uint64_t descriptor, int row, float* out) const;
  void Compute(const Warp& warp, size_t number) const;

  const std::byte* const shared_;
  std::vector<std::byte> seen_;  // of shared memory, by the proxy
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<std::vector<std::pair<uint64_t, int>>> done_;  // by warpgroup: descriptor and n of each product
};

// Of the block that runs; and the thread that does.
AsyncProxy& TheAsyncProxy();
int ThreadIndex();

}  // namespace baton::cuda_emulator

#endif  // BATON_KERNELS_CUDA_EMULATOR_ASYNC_PROXY_H_
