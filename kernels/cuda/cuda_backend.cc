#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/pack_weights.h"

namespace baton::kernels::cuda {
namespace {

constexpr size_t kStagingPartBytes = 1 << 20;

// A pointer to host memory is a bug of the caller, which a GPU would answer with a fault.
void RequireOnDevice(std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers) {
    if (KernelsMayUse(pointer)) continue;
    std::fprintf(stderr, "a kernel was given memory that is not the device's\n");
    std::abort();
  }
}

class CudaMatrix final : public WeightMatrix {
 public:
  // `frees` counts its end.
  static absl::StatusOr<std::unique_ptr<WeightMatrix>> Create(const HostTensor& tensor, WeightStorage storage,
                                                              std::shared_ptr<uint64_t> frees) {
    const PackedWeights packed = PackForDevice(tensor, storage);
    auto matrix = std::make_unique<CudaMatrix>(std::move(frees));
    matrix->matrix_ = {packed.dtype, tensor.rows, tensor.cols, nullptr, nullptr};
    for (const auto& [from, memory, to] : {std::tuple{&packed.codes, &matrix->codes_, &matrix->matrix_.codes},
                                           {&packed.scales, &matrix->scales_, &matrix->matrix_.scales}}) {
      absl::StatusOr<DeviceMemory> allocated = DeviceMemory::Allocate(from->size());
      if (!allocated.ok()) return allocated.status();
      *memory = *std::move(allocated);
      *to = memory->data();
      if (absl::Status status = CopyToDevice(memory->data(), from->data(), from->size(), nullptr); !status.ok()) {
        return status;
      }
    }
    return matrix;
  }

  explicit CudaMatrix(std::shared_ptr<uint64_t> frees) : frees_(std::move(frees)) {}
  ~CudaMatrix() override { ++*frees_; }

  int64_t rows() const override { return matrix_.rows; }
  int64_t cols() const override { return matrix_.cols; }
  size_t memory_bytes() const override { return codes_.bytes() + scales_.bytes(); }
  const DeviceMatrix& matrix() const { return matrix_; }

 private:
  const std::shared_ptr<uint64_t> frees_;
  DeviceMemory codes_, scales_;
  DeviceMatrix matrix_;
};

const DeviceMatrix& MatrixOf(const WeightMatrix& weight) { return static_cast<const CudaMatrix&>(weight).matrix(); }

}  // namespace

CudaBackend::CudaBackend(NumericsClass numerics, bool graphs, WeightStorage storage)
    : numerics_(numerics),
      storage_(storage),
      stream_(Require(OwnedStream::Create())),
      copy_stream_(Require(OwnedStream::Create())),
      calls_(Require(Event::Create())),
      graphs_(graphs) {}

CudaBackend::~CudaBackend() {
  // Memory goes before the streams do.
  RequireOk(Synchronize(stream_.get()));
  RequireOk(Synchronize(copy_stream_.get()));
}

void CudaBackend::Staging::Send(void* to, const void* from, size_t bytes, Stream stream) {
  constexpr size_t kAlignment = 256;
  auto* target = static_cast<std::byte*>(to);
  auto* source = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    if (filled_ >= kStagingPartBytes) Next(stream);
    Part& part = parts_[part_];
    if (part.memory.data() == nullptr) {
      part.memory = Require(PinnedMemory::Allocate(kStagingPartBytes));
      part.sent = Require(Event::Create());
    }
    const size_t n = std::min(bytes, kStagingPartBytes - filled_);
    std::memcpy(part.memory.data() + filled_, source, n);
    RequireOk(StartCopyToDevice(target, part.memory.data() + filled_, n, stream));
    filled_ += (n + kAlignment - 1) / kAlignment * kAlignment;
    target += n;
    source += n;
    bytes -= n;
  }
}

void CudaBackend::Staging::Next(Stream stream) {
  RequireOk(parts_[part_].sent.Record(stream));
  part_ = (part_ + 1) % std::size(parts_);
  filled_ = 0;
  if (parts_[part_].memory.data() != nullptr) RequireOk(parts_[part_].sent.Wait());
}

void* CudaBackend::Reserve(DeviceMemory* memory, size_t bytes) {
  if (bytes <= memory->bytes()) return memory->data();
  if (recording_) {
    recorded_for_nothing_ = true;
    return memory->data();
  }
  *memory = Require(DeviceMemory::Allocate(bytes + bytes / 2));
  ++*frees_;
  return memory->data();
}

const void* CudaBackend::Put(DeviceMemory* memory, std::span<const std::byte> bytes) {
  void* const to = Reserve(memory, bytes.size());
  Upload(to, bytes.data(), bytes.size());
  return to;
}

absl::StatusOr<std::unique_ptr<WeightMatrix>> CudaBackend::PackWeights(const HostTensor& tensor) {
  return CudaMatrix::Create(tensor, storage_, frees_);
}

absl::StatusOr<std::unique_ptr<WeightMatrix>> CudaBackend::PackRows(const HostTensor& tensor) {
  if (MatrixStep(tensor.dtype) == 0) return std::unique_ptr<WeightMatrix>();
  return CudaMatrix::Create(tensor, WeightStorage::kOwnBits, frees_);
}

uint64_t CudaBackend::PackedBytes(const HostTensor& tensor) const {
  const PackedShape shape = ShapeForDevice(tensor.dtype, tensor.rows, tensor.cols, storage_);
  return static_cast<uint64_t>(shape.code_bytes + shape.scale_bytes);
}

uint64_t CudaBackend::PackedRowsBytes(const HostTensor& tensor) const {
  if (MatrixStep(tensor.dtype) == 0) return 0;
  const PackedShape shape = ShapeForDevice(tensor.dtype, tensor.rows, tensor.cols);
  return static_cast<uint64_t>(shape.code_bytes + shape.scale_bytes);
}

void CudaBackend::ReadRow(const WeightMatrix& weight, int64_t row, float* out) const {
  RequireOnDevice({out});
  cuda::ReadRow(MatrixOf(weight), row, out, stream_.get());
}

void CudaBackend::ReadRows(const WeightMatrix& weight, std::span<const int32_t> rows, float scale, float* out) {
  RequireOnDevice({out});
  cuda::ReadRows(MatrixOf(weight), static_cast<const int32_t*>(Put(&row_ids_, std::as_bytes(rows))),
                 static_cast<int>(rows.size()), scale, out, stream_.get());
}

void CudaBackend::MatMul(const float* x, int64_t x_stride, int m, std::span<const MatMulOutput> outputs) {
  for (const MatMulOutput& output : outputs) RequireOnDevice({x, output.bias, output.y});
  if (numerics_ == NumericsClass::kBf16) {
    if (outputs.empty()) return;
    const int64_t cols = outputs[0].weight->cols();
    void* const rounded = Reserve(&rounded_, RoundedInputsBytes(m, cols));
    RoundInputs(x, x_stride, m, cols, rounded, stream_.get());
    for (const MatMulOutput& output : outputs) {
      Bf16MatMul({.rounded = rounded,
                  .m = m,
                  .weight = MatrixOf(*output.weight),
                  .bias = output.bias,
                  .y = output.y,
                  .y_stride = output.y_stride,
                  .wgmma = wgmma_},
                 stream_.get());
    }
    return;
  }
  for (const MatMulOutput& output : outputs) {
    cuda::MatMul({.x = x,
                  .x_stride = x_stride,
                  .m = m,
                  .weight = MatrixOf(*output.weight),
                  .bias = output.bias,
                  .y = output.y,
                  .y_stride = output.y_stride},
                 stream_.get());
  }
}

void CudaBackend::RmsNorm(const float* x, int64_t x_stride, int m, int dim, const float* weight, float epsilon, float* y,
                          int64_t y_stride) {
  RequireOnDevice({x, weight, y});
  // Without a residual the kernel only reads x.
  cuda::RmsNorm({.x = const_cast<float*>(x),
                 .x_stride = x_stride,
                 .m = m,
                 .dim = dim,
                 .weight = weight,
                 .epsilon = epsilon,
                 .y = y,
                 .y_stride = y_stride},
                stream_.get());
}

void CudaBackend::Rope(float* x, int64_t x_stride, int m, int num_heads, int head_dim,
                       std::span<const int32_t> positions, const RopeTable& table) {
  RequireOnDevice({x, table.cos, table.sin});
  const int32_t* at = nullptr;
  if (pass_ != nullptr) {
    if (!EnsureInputs(pass_->chunks, pass_->kv, nullptr, nullptr)) return;
    at = Input<int32_t>(inputs_.positions());
  } else {
    at = static_cast<const int32_t*>(Put(&positions_, std::as_bytes(positions.first(m))));
  }
  RopeWriteKv({.q = x,
               .q_stride = x_stride,
               .m = m,
               .num_heads = num_heads,
               .head_dim = head_dim,
               .positions = at,
               .cos = table.cos,
               .sin = table.sin,
               .rope_dim = table.rope_dim,
               .interleaved = table.style == RopeStyle::kInterleaved},
              stream_.get());
}

void CudaBackend::WriteKv(int layer, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                          std::span<const SequenceChunk> chunks, const KvView& kv) {
  RequireOnDevice({k, v, kv.base});
  if (!EnsureInputs(chunks, kv, nullptr, nullptr)) return;
  RopeWriteKv({.k = k,
               .k_stride = k_stride,
               .v = v,
               .v_stride = v_stride,
               .m = inputs_.rows(),
               .head_dim = kv.layout.head_dim,
               .positions = Input<int32_t>(inputs_.positions()),
               .block_ids = Input<int32_t>(inputs_.block_ids()),
               .kv = kv,
               .layer = layer},
              stream_.get());
}

void CudaBackend::Attention(int layer, const float* q, int64_t q_stride, std::span<const SequenceChunk> chunks,
                            const KvView& kv, const AttentionParams& params, float* out, int64_t out_stride) {
  RequireOnDevice({q, out, kv.base});
  const AttentionShape shape = {.num_kv_heads = kv.layout.num_kv_heads,
                                .head_dim = kv.layout.head_dim,
                                .group = params.num_heads / kv.layout.num_kv_heads,
                                .sliding_window = params.sliding_window,
                                .tensor_cores = OnTensorCores(kv.layout)};
  size_t index = 0;
  if (!EnsureInputs(chunks, kv, &shape, &index)) return;
  const PassInputs::Plan& plan = inputs_.plan(index);
  AttentionArgs args = {.q = q,
                        .q_stride = q_stride,
                        .out = out,
                        .out_stride = out_stride,
                        .kv = kv,
                        .layer = layer,
                        .group = shape.group,
                        .scale = params.scale,
                        .sliding_window = params.sliding_window,
                        .logit_softcap = params.logit_softcap,
                        .block_tables = Input<int32_t>(inputs_.block_tables()),
                        .max_pieces = plan.max_pieces,
                        .records = static_cast<float*>(records_.data()),
                        .tensor_cores = shape.tensor_cores};
  args.units = Input<AttentionUnit>(plan.prefill);
  args.num_units = plan.num_prefill;
  PrefillAttention(args, stream_.get());
  args.units = Input<AttentionUnit>(plan.decode);
  args.num_units = plan.num_decode;
  DecodeAttention(args, stream_.get());
}

void CudaBackend::GatedActivation(Activation act, float* gate, int64_t gate_stride, const float* up, int64_t up_stride,
                                  int m, int dim) {
  RequireOnDevice({gate, up});
  cuda::GatedActivation(act, gate, gate_stride, up, up_stride, m, dim, stream_.get());
}

void CudaBackend::Add(float* x, int64_t x_stride, const float* y, int64_t y_stride, int m, int dim) {
  RequireOnDevice({x, y});
  cuda::Add(x, x_stride, y, y_stride, m, dim, stream_.get());
}

absl::StatusOr<void*> CudaBackend::Allocate(size_t bytes) {
  absl::StatusOr<DeviceMemory> memory = DeviceMemory::Allocate(bytes);
  if (!memory.ok()) return memory.status();
  void* const at = memory->data();
  allocated_.emplace(at, *std::move(memory));
  return at;
}

void CudaBackend::Free(void* memory) {
  if (allocated_.erase(memory) > 0) ++*frees_;
}

void CudaBackend::Upload(void* to, const void* from, size_t bytes) {
  RequireOnDevice({to});
  if (recording_) {  // the graph would send what lies in the staging memory by then
    std::fprintf(stderr, "a pass that is recorded uploads something\n");
    std::abort();
  }
  staging_.Send(to, from, bytes, stream_.get());
}

void CudaBackend::Download(void* to, const void* from, size_t bytes) {
  RequireOnDevice({from});
  RequireOk(CopyFromDevice(to, from, bytes, stream_.get()));
}

void CudaBackend::CopyWithin(void* to, const void* from, size_t bytes) {
  RequireOnDevice({to, from});
  RequireGiven(CopyWithinDevice(to, from, bytes, stream_.get()));
}

void CudaBackend::Clear(void* to, size_t bytes) {
  RequireOnDevice({to});
  RequireGiven(ClearDevice(to, bytes, stream_.get()));
}

void CudaBackend::Finish() { RequireOk(Synchronize(stream_.get())); }

void CudaBackend::BeginCopies() {
  RequireOk(calls_.Record(stream_.get()));
  RequireOk(calls_.HoldBack(copy_stream_.get()));
}

CudaBackend::CopyId CudaBackend::EndCopies() {
  if (spare_events_.empty()) spare_events_.push_back(Require(Event::Create()));
  copies_.push_back({++last_copy_, std::move(spare_events_.back())});
  spare_events_.pop_back();
  RequireOk(copies_.back().done.Record(copy_stream_.get()));
  return last_copy_;
}

CudaBackend::CopyId CudaBackend::StartUploads(std::span<const Copy> copies) {
  BeginCopies();
  for (const Copy& copy : copies) {
    RequireOnDevice({copy.to});
    RequireOk(StartCopyToDevice(copy.to, copy.from, copy.bytes, copy_stream_.get()));
  }
  return EndCopies();
}

CudaBackend::CopyId CudaBackend::StartDownloads(std::span<const Copy> copies) {
  BeginCopies();
  for (const Copy& copy : copies) {
    RequireOnDevice({copy.from});
    RequireOk(StartCopyFromDevice(copy.to, copy.from, copy.bytes, copy_stream_.get()));
  }
  return EndCopies();
}

CudaBackend::CopyId CudaBackend::StartStridedCopies(std::span<const StridedCopy> copies, CopyDirection direction) {
  BeginCopies();
  for (const StridedCopy& copy : copies) {
    RequireOnDevice({direction == CopyDirection::kToDevice ? copy.to : copy.from});
    RequireOk(StartStridedCopy(copy, direction, copy_stream_.get()));
  }
  return EndCopies();
}

bool CudaBackend::CopiesDone(CopyId id) {
  while (!copies_.empty() && copies_.front().id <= id && Require(copies_.front().done.Done())) {
    spare_events_.push_back(std::move(copies_.front().done));
    copies_.pop_front();
  }
  return copies_.empty() || copies_.front().id > id;
}

void CudaBackend::WaitCopies(CopyId id) {
  while (!copies_.empty() && copies_.front().id <= id) {
    RequireOk(copies_.front().done.Wait());
    spare_events_.push_back(std::move(copies_.front().done));
    copies_.pop_front();
  }
}

absl::Status CudaBackend::Pin(void* memory, size_t bytes) { return PinHostMemory(memory, bytes); }
void CudaBackend::Unpin(void* memory) { UnpinHostMemory(memory); }

absl::Status CudaBackend::CheckLayout(const KvLayout& layout) const {
  if (layout.head_dim % 8 != 0 || layout.head_dim > 256) {
    return absl::FailedPreconditionError(absl::StrCat("the model's heads have ", layout.head_dim,
                                                      " elements; on a GPU they are multiples of 8 up to 256"));
  }
  const absl::StatusOr<DeviceInfo> device = DescribeDevice();
  if (!device.ok()) return device.status();
  const size_t needed = PrefillAttentionSharedBytes(layout, OnTensorCores(layout));
  if (needed <= device->shared_bytes_per_block) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("attention over heads of ", layout.head_dim, " elements needs ", needed, " bytes of shared memory, ",
                   device->name, " has ", device->shared_bytes_per_block,
                   "; another kv_dtype may need less, or run this model on another GPU or on the CPU"));
}

}  // namespace baton::kernels::cuda
