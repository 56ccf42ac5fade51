#include "kernels/cuda/tensor_parallel.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device_matrix.h"
#include "kernels/cuda/tensor_split.h"

namespace baton::kernels::cuda {
namespace {

class SplitMatrix final : public WeightMatrix {
 public:
  SplitMatrix(const HostTensor& tensor, std::vector<std::unique_ptr<WeightMatrix>> parts)
      : rows_(tensor.rows), cols_(tensor.cols), split_(tensor.split), parts_(std::move(parts)) {}

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  size_t memory_bytes() const override {
    size_t bytes = 0;
    for (const auto& part : parts_) bytes += part->memory_bytes();
    return bytes;
  }
  WeightSplit split() const { return split_; }
  const WeightMatrix& part(int i) const { return *parts_[i]; }  // of a rank; of kColumns: a slice

 private:
  const int64_t rows_, cols_;
  const WeightSplit split_;
  const std::vector<std::unique_ptr<WeightMatrix>> parts_;
};

const SplitMatrix& MatrixOf(const WeightMatrix& weight) { return static_cast<const SplitMatrix&>(weight); }

size_t RowBytes(DType dtype, int64_t cols) {
  return static_cast<size_t>(cols / BlockElements(dtype)) * BlockBytes(dtype);
}

// The tensor in f32. Formats that the device has not become that there in any case.
std::vector<float> Dequantized(const HostTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.cols));
  const size_t row_bytes = RowBytes(tensor.dtype, tensor.cols);
  for (int64_t row = 0; row < tensor.rows; ++row) {
    DequantizeRow(tensor.dtype, static_cast<const std::byte*>(tensor.data) + row * row_bytes,
                  values.data() + row * tensor.cols, tensor.cols);
  }
  return values;
}

// Inputs [first, first + cols) of all rows, in the file's format. Both are multiples of its block.
std::vector<std::byte> Columns(const HostTensor& tensor, int64_t first, int64_t cols) {
  const size_t row_bytes = RowBytes(tensor.dtype, tensor.cols), begin = RowBytes(tensor.dtype, first);
  const size_t bytes = RowBytes(tensor.dtype, cols);
  std::vector<std::byte> out(static_cast<size_t>(tensor.rows) * bytes);
  for (int64_t row = 0; row < tensor.rows; ++row) {
    std::memcpy(out.data() + row * bytes, static_cast<const std::byte*>(tensor.data) + row * row_bytes + begin, bytes);
  }
  return out;
}

// Bits of results may depend on a device's architecture (docs/GPU.md).
absl::Status CheckDevices(int ranks) {
  const absl::StatusOr<int> devices = NumDevices();
  if (!devices.ok()) return devices.status();
  if (*devices < ranks) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor_parallel is ", ranks, ", and this process sees ", *devices, " GPUs"));
  }
  int first = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    RequireOk(UseDevice(rank));
    const absl::StatusOr<DeviceInfo> device = DescribeDevice();
    RequireOk(UseDevice(0));
    if (!device.ok()) return device.status();
    if (rank == 0) first = device->compute_capability;
    if (device->compute_capability == first) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("tensor_parallel is ", ranks, ", and GPU ", rank, " has compute capability ", device->compute_capability,
                     " where GPU 0 has ", first, "; choose GPUs of one kind (CUDA_VISIBLE_DEVICES)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorParallelBackend>> TensorParallelBackend::Create(NumericsClass numerics,
                                                                                     const TensorParallel& split,
                                                                                     WeightStorage storage) {
  if (absl::Status s = CheckSplit(split); !s.ok()) return s;
  if (absl::Status s = CheckDevices(split.ranks); !s.ok()) return s;
  std::unique_ptr<TensorParallelBackend> backend(new TensorParallelBackend(split, storage));
  backend->ranks_.resize(static_cast<size_t>(split.ranks));
  backend->OnDevices([&](int rank) {
    backend->ranks_[rank] = std::make_unique<CudaBackend>(numerics, /*graphs=*/split.ranks == 1, storage);
  });
  if (split.ranks > 1) {
    absl::StatusOr<std::unique_ptr<Collectives>> collectives = Collectives::Create(split.ranks);
    if (!collectives.ok()) return collectives.status();
    backend->collectives_ = *std::move(collectives);
    RequireOk(UseDevice(0));
  }
  return backend;
}

TensorParallelBackend::~TensorParallelBackend() {
  if (ranks_.back() == nullptr) return;
  Finish();
  FreeOnRanks(parts_);
  while (!regions_.empty()) Free(const_cast<std::byte*>(regions_.begin()->first));
  collectives_.reset();
  OnDevices([&](int rank) { ranks_[rank].reset(); });
}

std::string TensorParallelBackend::name() const {
  return num_ranks() == 1 ? ranks_[0]->name() : absl::StrCat(ranks_[0]->name(), "/tp", num_ranks());
}

KvLayout TensorParallelBackend::LayoutOf(const KvLayout& layout) const {
  KvLayout own = layout;
  own.num_kv_heads /= num_ranks();
  return own;
}

KvView TensorParallelBackend::ViewOf(const KvView& kv, int rank) const { return {At(kv.base, rank), LayoutOf(kv.layout)}; }

absl::StatusOr<std::unique_ptr<WeightMatrix>> TensorParallelBackend::PackWeights(const HostTensor& tensor) {
  const int parts = tensor.split == WeightSplit::kColumns ? split_.slices : num_ranks();
  if (absl::Status s = CheckSplit(tensor, split_); !s.ok()) return s;
  HostTensor whole = tensor;
  std::vector<float> values;
  if (tensor.split == WeightSplit::kColumns && parts > 1 && MatrixStep(tensor.dtype) == 0) {
    values = Dequantized(tensor);
    whole.dtype = DType::kF32;
    whole.data = values.data();
  }
  std::vector<std::unique_ptr<WeightMatrix>> packed;
  absl::Status failed;
  OnRanks([&](int rank, CudaBackend& backend) {
    for (int i = rank * parts / num_ranks(); i < (rank + 1) * parts / num_ranks() && failed.ok(); ++i) {
      HostTensor part = whole;
      std::vector<std::byte> columns;
      if (tensor.split == WeightSplit::kRows) {
        part.rows = whole.rows / parts;
        part.data = static_cast<const std::byte*>(whole.data) + i * part.rows * RowBytes(whole.dtype, whole.cols);
      } else if (tensor.split == WeightSplit::kColumns && parts > 1) {
        part.cols = whole.cols / parts;
        columns = Columns(whole, i * part.cols, part.cols);
        part.data = columns.data();
      }
      absl::StatusOr<std::unique_ptr<WeightMatrix>> matrix = backend.PackWeights(part);
      failed = matrix.status();
      if (matrix.ok()) packed.push_back(*std::move(matrix));
    }
  });
  if (!failed.ok()) return failed;
  return std::make_unique<SplitMatrix>(tensor, std::move(packed));
}

absl::StatusOr<std::unique_ptr<WeightMatrix>> TensorParallelBackend::PackRows(const HostTensor& tensor) {
  if (MatrixStep(tensor.dtype) == 0) return std::unique_ptr<WeightMatrix>();
  HostTensor whole = tensor;
  whole.split = WeightSplit::kNone;
  std::vector<std::unique_ptr<WeightMatrix>> packed;
  absl::Status failed;
  OnRanks([&](int, CudaBackend& backend) {
    if (!failed.ok()) return;
    absl::StatusOr<std::unique_ptr<WeightMatrix>> matrix = backend.PackRows(whole);
    failed = matrix.status();
    if (matrix.ok()) packed.push_back(*std::move(matrix));
  });
  if (!failed.ok()) return failed;
  return std::make_unique<SplitMatrix>(whole, std::move(packed));
}

uint64_t TensorParallelBackend::PackedBytes(const HostTensor& tensor) const {
  return cuda::PackedBytes(tensor, split_, storage_);
}

uint64_t TensorParallelBackend::PackedRowsBytes(const HostTensor& tensor) const {
  return cuda::PackedRowsBytes(tensor, split_);
}

void TensorParallelBackend::ReadRow(const WeightMatrix& weight, int64_t row, float* out) const {
  RequireThat(MatrixOf(weight).split() == WeightSplit::kNone, "a row of a weight that is split");
  OnRanks([&](int rank, CudaBackend& backend) { backend.ReadRow(MatrixOf(weight).part(rank), row, At(out, rank)); });
}

void TensorParallelBackend::ReadRows(const WeightMatrix& weight, std::span<const int32_t> rows, float scale, float* out) {
  RequireThat(MatrixOf(weight).split() == WeightSplit::kNone, "rows of a weight that is split");
  OnRanks([&](int rank, CudaBackend& backend) { backend.ReadRows(MatrixOf(weight).part(rank), rows, scale, At(out, rank)); });
}

void TensorParallelBackend::MatMul(const float* x, int64_t x_stride, int m, std::span<const MatMulOutput> outputs) {
  if (outputs.size() == 1 && split_.slices > 1 && MatrixOf(*outputs[0].weight).split() == WeightSplit::kColumns) {
    return MultiplySlices(x, x_stride, m, outputs[0]);
  }
  OnRanks([&](int rank, CudaBackend& backend) {
    std::vector<MatMulOutput> own;
    for (const MatMulOutput& output : outputs) {
      const SplitMatrix& matrix = MatrixOf(*output.weight);
      RequireThat(split_.slices == 1 || matrix.split() != WeightSplit::kColumns, "a sum over ranks beside other products");
      const WeightMatrix& part = matrix.part(rank);
      const int64_t first = matrix.split() == WeightSplit::kRows ? rank * part.rows() : 0;
      own.push_back({&part, output.bias == nullptr ? nullptr : At(output.bias, rank) + first, At(output.y, rank) + first,
                     output.y_stride});
    }
    backend.MatMul(At(x, rank), x_stride, m, own);
  });
}

void TensorParallelBackend::MultiplySlices(const float* x, int64_t x_stride, int m, const MatMulOutput& output) {
  RequireThat(output.bias == nullptr, "a sum over ranks with a bias");
  const SplitMatrix& matrix = MatrixOf(*output.weight);
  const int own = split_.slices / num_ranks(), dim = static_cast<int>(matrix.rows());
  const size_t part = static_cast<size_t>(m) * static_cast<size_t>(dim);
  if (const size_t floats = part * static_cast<size_t>(own + num_ranks()); parts_floats_ < floats) {
    Finish();  // a gather may still read another rank's
    FreeOnRanks(std::exchange(parts_, {}));
    parts_ = Require(AllocateOnRanks((floats + floats / 2) * sizeof(float)));
    parts_floats_ = floats + floats / 2;
  }
  std::vector<float*> gathered(static_cast<size_t>(num_ranks()));
  std::vector<Stream> streams(static_cast<size_t>(num_ranks()));
  OnRanks([&](int rank, CudaBackend& backend) {
    float* const slices = reinterpret_cast<float*>(parts_[rank]);
    gathered[rank] = slices + part * static_cast<size_t>(own);
    streams[rank] = backend.stream();
    const int64_t inputs = matrix.cols() / split_.slices;
    for (int i = 0; i < own; ++i) {
      const int slice = rank * own + i;
      const MatMulOutput product[] = {{&matrix.part(slice), nullptr, slices + part * static_cast<size_t>(i), dim}};
      backend.MatMul(At(x, rank) + slice * inputs, x_stride, m, product);
    }
    if (num_ranks() == 1) return SumTree(slices, own, m, dim, output.y, output.y_stride, backend.stream());
    SumTree(slices, own, m, dim, gathered[rank] + part * static_cast<size_t>(rank), dim, backend.stream());
  });
  if (num_ranks() == 1) return;
  RequireOk(collectives_->AllGather(gathered, part, streams));
  OnRanks([&](int rank, CudaBackend& backend) {
    SumTree(gathered[rank], num_ranks(), m, dim, At(output.y, rank), output.y_stride, backend.stream());
  });
}

void TensorParallelBackend::RmsNorm(const float* x, int64_t x_stride, int m, int dim, const float* weight, float epsilon,
                                    float* y, int64_t y_stride) {
  OnRanks([&](int rank, CudaBackend& backend) {
    backend.RmsNorm(At(x, rank), x_stride, m, dim, At(weight, rank), epsilon, At(y, rank), y_stride);
  });
}

void TensorParallelBackend::Rope(float* x, int64_t x_stride, int m, int num_heads, int head_dim,
                                 std::span<const int32_t> positions, const RopeTable& table) {
  const int own = num_heads / num_ranks();
  OnRanks([&](int rank, CudaBackend& backend) {
    RopeTable here = table;
    here.cos = At(table.cos, rank);
    here.sin = At(table.sin, rank);
    backend.Rope(At(x, rank) + int64_t{rank} * own * head_dim, x_stride, m, own, head_dim, positions, here);
  });
}

void TensorParallelBackend::WriteKv(int layer, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                                    std::span<const SequenceChunk> chunks, const KvView& kv) {
  OnRanks([&](int rank, CudaBackend& backend) {
    const KvView own = ViewOf(kv, rank);
    const int64_t first = int64_t{rank} * own.layout.num_kv_heads * own.layout.head_dim;
    backend.WriteKv(layer, At(k, rank) + first, k_stride, At(v, rank) + first, v_stride, chunks, own);
  });
}

void TensorParallelBackend::Attention(int layer, const float* q, int64_t q_stride, std::span<const SequenceChunk> chunks,
                                      const KvView& kv, const AttentionParams& params, float* out, int64_t out_stride) {
  AttentionParams own = params;
  own.num_heads /= num_ranks();
  OnRanks([&](int rank, CudaBackend& backend) {
    const int64_t first = int64_t{rank} * own.num_heads * kv.layout.head_dim;
    backend.Attention(layer, At(q, rank) + first, q_stride, chunks, ViewOf(kv, rank), own, At(out, rank) + first, out_stride);
  });
}

void TensorParallelBackend::GatedActivation(Activation act, float* gate, int64_t gate_stride, const float* up,
                                            int64_t up_stride, int m, int dim) {
  const int own = dim / num_ranks();
  OnRanks([&](int rank, CudaBackend& backend) {
    backend.GatedActivation(act, At(gate, rank) + rank * own, gate_stride, At(up, rank) + rank * own, up_stride, m, own);
  });
}

void TensorParallelBackend::Add(float* x, int64_t x_stride, const float* y, int64_t y_stride, int m, int dim) {
  OnRanks([&](int rank, CudaBackend& backend) { backend.Add(At(x, rank), x_stride, At(y, rank), y_stride, m, dim); });
}

}  // namespace baton::kernels::cuda
