#include "model/scratch.h"

#include <new>
#include <numeric>

namespace baton::model {
namespace {
constexpr size_t kAlignment = 64;  // a cache line, and the widest vector register
}  // namespace

void Scratch::Free::operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{kAlignment}); }

// Lays the buffers out from `base` (null: only counts) and returns the bytes used.
size_t Scratch::Carve(const ModelConfig& config, int rows, std::byte* base) {
  size_t used = 0;
  const auto take = [&](int width) {
    float* at = base == nullptr ? nullptr : reinterpret_cast<float*>(base + used);
    const size_t bytes = static_cast<size_t>(rows) * static_cast<size_t>(width) * sizeof(float);
    used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  x = take(config.dim);
  normed = take(config.dim);
  out = take(config.dim);
  q = take(config.q_dim());
  k = take(config.kv_dim());
  v = take(config.kv_dim());
  attended = take(config.q_dim());
  gate = take(config.ffn_dim);
  up = take(config.ffn_dim);
  rope_cos = take(config.rope_dim / 2);
  rope_sin = take(config.rope_dim / 2);
  if (config.sliding_window > 0) {
    local_rope_cos = take(config.rope_dim / 2);
    local_rope_sin = take(config.rope_dim / 2);
  }
  static_assert(sizeof(int32_t) == sizeof(float));
  row_idx = reinterpret_cast<int32_t*>(take(1));
  return used;
}

bool Scratch::Reserve(const ModelConfig& config, int rows, kernels::DeviceSpace* device) {
  if (rows <= capacity_) return true;
  const size_t bytes = BytesFor(config, rows);
  memory_.reset();  // before the new one: never both at once
  device_memory_ = {};
  capacity_ = 0;
  memory_.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlignment})));
  Carve(config, rows, memory_.get());
  host = {x, rope_cos, rope_sin, local_rope_cos, local_rope_sin};
  int32_t* const indices = row_idx;
  std::iota(indices, indices + rows, 0);
  if (device != nullptr) {
    // The same places twice; of the host's only those that it writes are ever touched.
    absl::StatusOr<kernels::DeviceArray> memory = kernels::DeviceArray::Allocate(device, bytes);
    if (!memory.ok()) return false;
    device_memory_ = *std::move(memory);
    Carve(config, rows, static_cast<std::byte*>(device_memory_.data()));
    row_idx = indices;
  }
  capacity_ = rows;
  size_bytes_ = bytes;
  return true;
}

size_t Scratch::BytesFor(const ModelConfig& config, int rows) { return Scratch().Carve(config, rows, nullptr); }

}  // namespace baton::model
