// Activations of one forward pass, in one allocation that is made once and grows only when a larger batch comes. On the
// host's heap, or in a device's memory; there host code has `host`, which it uploads from.
//
// Thread contract: that of its owner.
#ifndef BATON_MODEL_SCRATCH_H_
#define BATON_MODEL_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/device_space.h"
#include "model/config.h"

namespace baton::model {

class Scratch {
 public:
  // Row-major [rows, width] each, 64-byte aligned; a width is the row stride too.
  float* x = nullptr;         // residual stream, dim
  float* normed = nullptr;    // input of a matrix product, dim
  float* out = nullptr;       // output of attention or feed-forward, dim
  float* q = nullptr;         // q_dim
  float* k = nullptr;         // kv_dim
  float* v = nullptr;         // kv_dim
  float* attended = nullptr;  // q_dim
  float* gate = nullptr;      // ffn_dim
  float* up = nullptr;        // ffn_dim
  float* rope_cos = nullptr;  // rope_dim / 2
  float* rope_sin = nullptr;
  float* local_rope_cos = nullptr;  // null when no layer slides
  float* local_rope_sin = nullptr;
  int32_t* row_idx = nullptr;  // 0, 1, 2, ...: rows of the rope tables; host memory, always

  // Where host code writes x and the rope tables. Without a device, those themselves.
  struct Host {
    float *x = nullptr, *rope_cos = nullptr, *rope_sin = nullptr, *local_rope_cos = nullptr, *local_rope_sin = nullptr;
  };
  Host host;

  // Makes room for `rows` rows; contents are lost when it has to grow. rows > 0. False when there is no memory for
  // BytesFor(config, rows); then there is room for none.
  [[nodiscard]] bool Reserve(const ModelConfig& config, int rows, kernels::DeviceSpace* device = nullptr);
  int capacity() const { return capacity_; }
  size_t size_bytes() const { return size_bytes_; }

  // What Reserve(config, rows) allocates.
  static size_t BytesFor(const ModelConfig& config, int rows);

 private:
  size_t Carve(const ModelConfig& config, int rows, std::byte* base);

  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  kernels::DeviceArray device_memory_;
  int capacity_ = 0;
  size_t size_bytes_ = 0;
};

}  // namespace baton::model

#endif  // BATON_MODEL_SCRATCH_H_
