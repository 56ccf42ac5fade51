#include "kernels/cuda/emulator/async_proxy.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/emulator/tensor.h"
#include "kernels/dtype.h"

namespace baton::cuda_emulator {
namespace {

constexpr int kLanes = 32, kWarpgroup = 128, kInputs = 16, kWarpRows = 16, kMostColumns = 256;

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "CUDA emulator: %s\n", what);
  std::abort();
}

// PTX ISA, "Matrix Descriptor Format" of wgmma.
struct Descriptor {
  uint32_t start, leading, stride;
  int base_offset, swizzle;

  explicit Descriptor(uint64_t bits)
      : start(Bytes(bits)),
        leading(Bytes(bits >> 16)),
        stride(Bytes(bits >> 32)),
        base_offset(static_cast<int>(bits >> 49 & 7)),
        swizzle(static_cast<int>(bits >> 62)) {}
  static uint32_t Bytes(uint64_t field) { return static_cast<uint32_t>(field & 0x3fff) << 4; }

  // Of the 16 bytes with inputs [8 * half, 8 * half + 8) of the row; inputs go before rows ("K-major"). Without swizzling
  // 8 rows of 16 bytes follow one another; else 8 rows of 128, 64 or 32 bytes, whose pieces of 16 are exchanged by
  // address bits from 7 on.
  uint32_t AddressOf(int row, int half) const {
    const uint32_t octet = start + static_cast<uint32_t>(row / 8) * stride;
    const uint32_t in_octet = static_cast<uint32_t>(row % 8);
    if (swizzle == 0) return octet + in_octet * 16 + static_cast<uint32_t>(half) * leading;
    const uint32_t row_bytes = 256u >> swizzle;  // 1: 128 bytes, 2: 64, 3: 32
    const uint32_t address = octet + in_octet * row_bytes + static_cast<uint32_t>(half) * 16;
    return address ^ ((address >> 7 & (row_bytes / 16 - 1)) << 4);
  }
};

}  // namespace

AsyncProxy::AsyncProxy(const std::byte* shared, size_t bytes, int threads)
    : shared_(shared),
      seen_((bytes + 15) / 16 * 16, std::byte{0xff}),
      threads_(threads),
      warps_((threads + kLanes - 1) / kLanes),
      done_((threads + kWarpgroup - 1) / kWarpgroup) {}

void AsyncProxy::Began(const void* to) {
  if (Inside(to)) std::memset(seen_.data() + OffsetOf(to), 0xff, 16);
}

void AsyncProxy::Arrived(int thread, const void* to) {
  if (Inside(to)) threads_[thread].unpublished.push_back(OffsetOf(to));
}

void AsyncProxy::Fence(int thread) {
  for (const size_t offset : threads_[thread].unpublished) std::memcpy(seen_.data() + offset, shared_ + offset, 16);
  threads_[thread].unpublished.clear();
}

uint32_t AsyncProxy::AddressOf(const void* shared) const {
  if (!Inside(shared)) Die("a matrix descriptor of what is not dynamic shared memory");
  return kSharedBase + static_cast<uint32_t>(OffsetOf(shared));
}

void AsyncProxy::Issue(void* const* lanes) {
  auto product = std::make_unique<Product>();
  for (int i = 0; i < kLanes; ++i) product->lanes[i] = *static_cast<const Lane*>(lanes[i]);
  const int first_thread = product->lanes[0].thread;
  if (threads_.size() % kWarpgroup != 0) Die("products of a warpgroup in a block that has no whole ones");
  Warp& warp = warps_[first_thread / kLanes];
  const int n = product->lanes[0].n;
  product->values.resize(static_cast<size_t>(kLanes) * (n / 2));
  for (int l = 0; l < kLanes; ++l) {
    const Lane& lane = product->lanes[l];
    if (lane.b != product->lanes[0].b || lane.n != n) Die("lanes of a warp multiply different matrices");
    Thread& thread = threads_[lane.thread];
    product->fenced &= thread.fenced;
    bool chained = false;
    for (size_t i = thread.waited; i < warp.issued(); ++i) {
      chained |= warp.products[i - warp.first]->lanes[l].d == lane.d;
    }
    product->chained |= uint32_t{chained} << l;
    if (!chained) std::copy_n(lane.d, n / 2, product->values.data() + static_cast<ptrdiff_t>(l) * (n / 2));
    std::fill_n(lane.d, n / 2, std::numeric_limits<float>::quiet_NaN());
  }
  auto& done = done_[first_thread / kWarpgroup];
  const std::pair<uint64_t, int> what = {product->lanes[0].b, n};
  if (warp.issued() == done.size()) done.push_back(what);
  if (done[warp.issued()] != what) Die("warps of a warpgroup multiply different matrices");
  warp.products.push_back(std::move(product));
}

void AsyncProxy::Commit(int thread) {
  threads_[thread].groups.push_back(warps_[thread / kLanes].issued());
  threads_[thread].fenced = false;
}

void AsyncProxy::ReadRow(uint64_t bits, int row, float* out) const {
  const Descriptor descriptor(bits);
  if (descriptor.base_offset != 0) Die("a matrix descriptor with a base offset");
  for (int half = 0; half < 2; ++half) {
    const uint32_t address = descriptor.AddressOf(row, half);
    if (address < kSharedBase || address - kSharedBase + 16 > seen_.size()) {
      Die("a matrix descriptor leads outside of shared memory");
    }
    uint16_t values[8];
    std::memcpy(values, seen_.data() + (address - kSharedBase), sizeof values);
    for (int i = 0; i < 8; ++i) out[8 * half + i] = kernels::Bf16ToFloat(values[i]);
  }
}

// The warp has rows [16 * (warp % 4), +16) of d, as fragments of 16 x 16 of a and 16 x n of d (PTX ISA, figures of wgmma
// .m64nNk16): lane l holds rows l / 4 and l / 4 + 8.
void AsyncProxy::Compute(const Warp& warp, size_t number) const {
  Product& product = *warp.products[number - warp.first];
  const int n = product.lanes[0].n;
  float a[kWarpRows][kInputs], columns[kInputs][kMostColumns], d[kWarpRows][kMostColumns];
  for (int column = 0; column < n; ++column) {
    float row[kInputs];
    ReadRow(product.lanes[0].b, column, row);
    for (int k = 0; k < kInputs; ++k) columns[k][column] = row[k];
  }
  const auto row_of = [](int lane, int i) { return lane / 4 + i / 2 % 2 * 8; };
  const auto column_of = [](int lane, int i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; };
  for (int l = 0; l < kLanes; ++l) {
    const Lane& lane = product.lanes[l];
    for (int i = 0; i < 8; ++i) {
      const auto bits = static_cast<uint16_t>(lane.a[i / 2] >> (i % 2 * 16));
      a[row_of(l, i)][column_of(l, i)] = product.fenced ? kernels::Bf16ToFloat(bits) : std::numeric_limits<float>::quiet_NaN();
    }
    const float* before = product.values.data();
    if (product.chained >> l & 1) {
      size_t i = number - 1;  // there is one
      while (warp.products[i - warp.first]->lanes[l].d != lane.d) --i;
      before = warp.products[i - warp.first]->values.data();
    }
    for (int i = 0; i < n / 2; ++i) d[row_of(l, i)][column_of(l, i)] = before[l * (n / 2) + i];
  }
  for (int row = 0; row < kWarpRows; ++row) {
    for (int k = 0; k < kInputs; ++k) {
      for (int i = 0; i < n; ++i) d[row][i] += a[row][k] * columns[k][i];
    }
  }
  for (int l = 0; l < kLanes; ++l) {
    for (int i = 0; i < n / 2; ++i) product.values[l * (n / 2) + i] = d[row_of(l, i)][column_of(l, i)];
  }
  product.computed = true;
}

void AsyncProxy::Wait(int thread, int pending) {
  Thread& self = threads_[thread];
  Warp& warp = warps_[thread / kLanes];
  size_t end = self.waited;
  while (self.groups.size() > static_cast<size_t>(pending)) {
    end = self.groups.front();
    self.groups.erase(self.groups.begin());
  }
  for (size_t i = warp.first; i < end; ++i) {
    if (!warp.products[i - warp.first]->computed) Compute(warp, i);
  }
  const int l = thread % kLanes;
  for (size_t i = self.waited; i < end; ++i) {
    const Product& product = *warp.products[i - warp.first];
    const Lane& lane = product.lanes[l];
    bool in_use = false;  // by a later one
    for (size_t j = i + 1; j < warp.issued(); ++j) in_use |= warp.products[j - warp.first]->lanes[l].d == lane.d;
    if (!in_use) std::copy_n(product.values.data() + static_cast<ptrdiff_t>(l) * (lane.n / 2), lane.n / 2, lane.d);
  }
  self.waited = end;
  // Those that all lanes have waited for are kept no longer, but the last, which a later one may go on from.
  size_t all = end;
  for (int i = 0; i < kLanes; ++i) all = std::min(all, threads_[thread - l + i].waited);
  for (; warp.first + 1 < all; ++warp.first) warp.products.pop_front();
}

void AsyncProxy::Finish(int thread) {
  const Warp& warp = warps_[thread / kLanes];
  if (threads_[thread].waited != warp.issued()) Die("a thread ends with products that it has not waited for");
}

void AsyncProxy::FinishBlock() const {
  for (size_t i = 0; i < warps_.size(); ++i) {
    if (warps_[i].issued() != done_[i / (kWarpgroup / kLanes)].size()) {
      Die("a warp has fewer products than its warpgroup's others");
    }
  }
}

void ProxyFence() { TheAsyncProxy().Fence(ThreadIndex()); }
uint32_t SharedAddress(const void* shared) { return TheAsyncProxy().AddressOf(shared); }
void WgmmaFence() { TheAsyncProxy().FenceRegisters(ThreadIndex()); }
void WgmmaCommit() { TheAsyncProxy().Commit(ThreadIndex()); }
void WgmmaWait(int pending) { TheAsyncProxy().Wait(ThreadIndex(), pending); }

void Wgmma(float* d, int n, const uint32_t (&a)[4], uint64_t b) {
  if (n % 8 != 0 || n < 8 || n > kMostColumns) Die("a warpgroup's product has 8 to 256 columns, in eights");
  AsyncProxy::Lane lane = {.thread = ThreadIndex(), .d = d, .a = a, .n = n, .b = b};
  TogetherInWarp([](void* const* lanes) { TheAsyncProxy().Issue(lanes); }, &lane);
}

}  // namespace baton::cuda_emulator
