// What a model takes of devices' memory, told by its tensors' names, formats and shapes: before anything is read, and where
// there is no device at all (`baton plan`).
#ifndef BATON_MODEL_DEVICE_DEMAND_H_
#define BATON_MODEL_DEVICE_DEMAND_H_

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "kernels/device_space.h"
#include "model/config.h"
#include "model/gguf.h"

namespace baton::model {

// Which part of the matrix of this name (in the file) each of several devices holds. They share heads and the feed-forward's
// width, so that only what comes back to `dim` is a sum over them.
kernels::WeightSplit SplitOf(absl::string_view tensor);

// A matrix without its data, as the packing of weights is asked for it.
kernels::HostTensor ShapeOf(const GgufTensor& matrix);

// What Transformer::Load takes, but for the activations (Scratch::BytesFor, whole on each device) and logits.
struct DeviceDemand {
  // Of all devices together, to the byte, but for gaps between allocations.
  uint64_t split_bytes = 0;      // matrices of which each of several has a part
  uint64_t head_bytes = 0;       // whole on each; the embedding too, if it is tied
  uint64_t embedding_bytes = 0;  // rows that are looked up, whole on each; 0: the head's, or on the host
  // Of each device.
  uint64_t array_bytes = 0;  // norms, biases, angles
  // Of the host.
  uint64_t host_bytes = 0;     // embeddings of a format that the kernels do not read
  uint64_t loading_bytes = 0;  // while it loads: a tensor and what it becomes

  uint64_t device_bytes(int num_devices) const {
    return split_bytes + head_bytes + embedding_bytes + static_cast<uint64_t>(num_devices) * array_bytes;
  }
};
// weights, rows: what a matrix takes of all devices together, as DeviceSpace::PackedBytes and PackedRowsBytes say it.
DeviceDemand DeviceDemandOf(std::span<const GgufTensor> tensors, const ModelConfig& config, int max_context,
                            absl::FunctionRef<uint64_t(const kernels::HostTensor&)> weights,
                            absl::FunctionRef<uint64_t(const kernels::HostTensor&)> rows);
DeviceDemand DeviceDemandOf(const GgufFile& file, const ModelConfig& config, int max_context,
                            const kernels::DeviceSpace& device);

}  // namespace baton::model

#endif  // BATON_MODEL_DEVICE_DEMAND_H_
