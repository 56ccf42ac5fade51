#include "kernels/cuda/tensor_split.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device_matrix.h"
#include "kernels/cuda/kernels.h"

namespace baton::kernels::cuda {
namespace {

// Inputs of a slice come in whole groups of so many: blocks of the device's formats, and what kernels read at once.
constexpr int kSliceGroup = 32;

uint64_t BytesOf(const PackedShape& shape) { return static_cast<uint64_t>(shape.code_bytes + shape.scale_bytes); }

}  // namespace

absl::Status CheckSplit(const TensorParallel& split) {
  const auto power_of_two = [](int n) { return n > 0 && std::has_single_bit(static_cast<unsigned>(n)); };
  if (power_of_two(split.ranks) && power_of_two(split.slices) && split.slices <= kMaxTreeParts &&
      split.slices % split.ranks == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tensor_parallel is ", split.ranks, " and reduction_slices ", split.slices,
                   "; both are powers of two, the second at most ", kMaxTreeParts, " and no smaller than the first"));
}

absl::Status CheckSplit(const HostTensor& tensor, const TensorParallel& split) {
  if (tensor.split == WeightSplit::kRows && tensor.rows % split.ranks != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("its ", tensor.rows, " rows are no multiple of tensor_parallel, ", split.ranks));
  }
  if (tensor.split == WeightSplit::kColumns && split.slices > 1 && tensor.cols % (split.slices * kSliceGroup) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("its ", tensor.cols, " inputs are no multiple of ", kSliceGroup,
                                                      " for each of reduction_slices, ", split.slices, "; lower that"));
  }
  return absl::OkStatus();
}

absl::Status CheckKvHeads(int num_kv_heads, const TensorParallel& split) {
  if (num_kv_heads % split.ranks == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the model has ", num_kv_heads,
                                                    " KV heads, which is no multiple of tensor_parallel, ", split.ranks));
}

uint64_t PackedBytes(const HostTensor& tensor, const TensorParallel& split, WeightStorage storage) {
  HostTensor part = tensor;
  int parts = split.ranks;
  if (tensor.split == WeightSplit::kRows) {
    part.rows = (tensor.rows + parts - 1) / parts;
  } else if (tensor.split == WeightSplit::kColumns && split.slices > 1) {
    parts = split.slices;
    if (MatrixStep(tensor.dtype) == 0) part.dtype = DType::kF32;
    part.cols = (tensor.cols + parts - 1) / parts;
  }
  return static_cast<uint64_t>(parts) * BytesOf(ShapeForDevice(part.dtype, part.rows, part.cols, storage));
}

uint64_t PackedRowsBytes(const HostTensor& tensor, const TensorParallel& split) {
  if (MatrixStep(tensor.dtype) == 0) return 0;
  return static_cast<uint64_t>(split.ranks) * BytesOf(ShapeForDevice(tensor.dtype, tensor.rows, tensor.cols));
}

}  // namespace baton::kernels::cuda
