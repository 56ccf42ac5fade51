#include "model/device_demand.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "model/device_angles.h"

namespace baton::model {

kernels::WeightSplit SplitOf(absl::string_view tensor) {
  for (const absl::string_view rows : {"attn_q.weight", "attn_k.weight", "attn_v.weight", "ffn_gate.weight", "ffn_up.weight"}) {
    if (absl::EndsWith(tensor, rows)) return kernels::WeightSplit::kRows;
  }
  for (const absl::string_view columns : {"attn_output.weight", "ffn_down.weight"}) {
    if (absl::EndsWith(tensor, columns)) return kernels::WeightSplit::kColumns;
  }
  return kernels::WeightSplit::kNone;
}

kernels::HostTensor ShapeOf(const GgufTensor& matrix) {
  return {.dtype = matrix.dtype, .rows = matrix.dims[1], .cols = matrix.dims[0], .split = SplitOf(matrix.name)};
}

DeviceDemand DeviceDemandOf(std::span<const GgufTensor> tensors, const ModelConfig& config, int max_context,
                            absl::FunctionRef<uint64_t(const kernels::HostTensor&)> weights,
                            absl::FunctionRef<uint64_t(const kernels::HostTensor&)> rows) {
  DeviceDemand demand;
  for (const GgufTensor& tensor : tensors) {
    if (tensor.dims.size() < 2) {
      // Frequencies of the rotary embedding become part of the angles.
      if (tensor.name != "rope_freqs.weight") demand.array_bytes += tensor.num_elements * sizeof(float);
      continue;
    }
    const kernels::HostTensor shape = ShapeOf(tensor);
    const bool for_rows = tensor.name == "token_embd.weight" && !config.tied_head;
    const uint64_t packed = for_rows ? rows(shape) : weights(shape);
    uint64_t* const kind = for_rows                                       ? &demand.embedding_bytes
                           : shape.split == kernels::WeightSplit::kNone ? &demand.head_bytes
                                                                        : &demand.split_bytes;
    *kind += packed;
    if (packed == 0) demand.host_bytes += tensor.num_bytes;
    demand.loading_bytes = std::max(demand.loading_bytes, tensor.num_bytes + packed);
  }
  const int tables = config.sliding_window > 0 ? 2 : 1;
  demand.array_bytes += tables * DeviceAngles::BytesFor(config.rope_dim / 2, max_context);
  return demand;
}

DeviceDemand DeviceDemandOf(const GgufFile& file, const ModelConfig& config, int max_context,
                            const kernels::DeviceSpace& device) {
  return DeviceDemandOf(
      file.tensors(), config, max_context, [&device](const kernels::HostTensor& matrix) { return device.PackedBytes(matrix); },
      [&device](const kernels::HostTensor& matrix) { return device.PackedRowsBytes(matrix); });
}

}  // namespace baton::model
