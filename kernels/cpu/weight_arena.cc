#include "kernels/cpu/weight_arena.h"

#include <sys/mman.h>

namespace baton::kernels::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kChunkBytes = size_t{32} << 20;

size_t RoundUp(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

std::shared_ptr<uint8_t> MapHuge(size_t bytes) {
  // One huge page more than needed, to align the start.
  const size_t mapped_bytes = bytes + kHugePage;
  void* const mapping = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  uint8_t* const start = reinterpret_cast<uint8_t*>(RoundUp(reinterpret_cast<uintptr_t>(mapping), kHugePage));
  madvise(start, bytes, MADV_HUGEPAGE);  // an optimisation; may be refused
  return std::shared_ptr<uint8_t>(start, [mapping, mapped_bytes](uint8_t*) { munmap(mapping, mapped_bytes); });
}

}  // namespace

std::shared_ptr<uint8_t> WeightArena::Allocate(size_t bytes) {
  bytes = RoundUp(bytes, 64);
  if (bytes > kChunkBytes / 2) return MapHuge(RoundUp(bytes, kHugePage));
  if (bytes > chunk_bytes_ - used_) {
    chunk_ = MapHuge(kChunkBytes);
    if (chunk_ == nullptr) {
      chunk_bytes_ = used_ = 0;
      return nullptr;
    }
    chunk_bytes_ = kChunkBytes;
    used_ = 0;
  }
  std::shared_ptr<uint8_t> piece(chunk_, chunk_.get() + used_);
  used_ += bytes;
  return piece;
}

}  // namespace baton::kernels::cpu
