#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/packed_matrix.h"

namespace baton::kernels::cpu {
namespace {

const PackedMatrix& Packed(const MatMulOutput& output) { return static_cast<const PackedMatrix&>(*output.weight); }

}  // namespace

void CpuBackend::BeginInput(const float* x, int64_t x_stride, int m, std::span<const MatMulOutput> outputs,
                            ProductInput* in) {
  in->x = x;
  in->x_stride = x_stride;
  in->m = m;
  in->cols = outputs[0].weight->cols();
  in->wants_floats = in->wants_quantized = in->wants_rounded = false;
  for (const MatMulOutput& output : outputs) {
    const PackedLayout layout = Packed(output).panels(m).layout;
    in->wants_quantized |= IsIntegerLayout(layout);
    in->wants_rounded |= layout == PackedLayout::kBf16Dot;
    in->wants_floats |= !IsIntegerLayout(layout) && layout != PackedLayout::kBf16Dot;
  }
  if (in->wants_quantized) {
    const size_t groups = static_cast<size_t>(m) * static_cast<size_t>(in->cols) / kQuantGroup;
    in->quantized = {m, in->cols, in->quantized_memory.Reserve(groups * kActivationCellBytes + 1024)};
    matmul_scratch_.Reserve(ExpandScratchBytes(in->cols) * pool_.num_threads());
  }
  if (in->wants_rounded) {
    in->rounded = {m, in->cols, in->rounded_memory.Reserve(m * ((in->cols + 1) / 2) * kernels_.rounded_pair_bytes)};
  }
}

void CpuBackend::PrepareColumns(const ProductInput& in, int64_t row, Range columns, const float* values) const {
  if (in.wants_quantized) kernels_.quantize_row(values, row, columns.begin, columns.end, in.quantized);
  if (in.wants_rounded) kernels_.round_row(values, row, columns.begin, columns.end, in.rounded);
}

void CpuBackend::PrepareInput(const ProductInput& in, const float* from, const Norm& norm) {
  const bool forms = in.wants_quantized || in.wants_rounded;
  if (from == nullptr && !forms) return;
  const int64_t elements = in.m * in.cols;
  const int64_t work = (from != nullptr ? elements / 4 : 0) + (forms ? elements / 4 : 0);
  ForRange(in.m, work, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      if (from != nullptr) {
        kernels_.rms_norm(from + r * in.cols, static_cast<int>(in.cols), norm.weight, norm.epsilon,
                          const_cast<float*>(in.x) + r * in.x_stride);
      }
      PrepareColumns(in, r, {0, in.cols}, in.x + r * in.x_stride);
    }
  });
}

int64_t CpuBackend::RowsAtATime(const ProductInput& in) const {
  const int64_t row_bytes = in.wants_quantized ? in.cols / kQuantGroup * kActivationCellBytes
                            : in.wants_rounded ? (in.cols + 1) / 2 * kernels_.rounded_pair_bytes
                                               : in.cols * static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(kernels_.activation_cache_bytes / (row_bytes + 1) / kActivationBlockRows, 1) * kActivationBlockRows;
}

int64_t CpuBackend::TileStride(Range panels) { return (panels.end - panels.begin) * kPanelRows; }

void CpuBackend::ReserveTiles(int64_t floats, int num_outputs) {
  tile_floats_ = floats;
  tiles_.Reserve(static_cast<size_t>(floats) * num_outputs * pool_.num_threads());
}

void CpuBackend::Multiply(const ProductInput& in, const MatMulOutput& output, Range rows, Range panels, int thread,
                          float* tile) {
  const PackedMatrix& weight = Packed(output);
  const PanelSet& set = weight.panels(in.m);
  MatMulArgs args;
  args.panels = set.panel(0);
  args.panel_bytes = set.panel_bytes;
  args.rows = weight.rows();
  args.cols = in.cols;
  args.x = in.x + rows.begin * in.x_stride;
  args.x_stride = in.x_stride;
  if (in.wants_quantized) {
    args.quantized = {in.m - rows.begin, in.cols,
                      in.quantized.cells + rows.begin * (in.cols / kQuantGroup) * kActivationCellBytes};
    args.scratch = matmul_scratch_.data() + thread * ExpandScratchBytes(in.cols);
  }
  if (in.wants_rounded) {
    args.rounded = {in.m - rows.begin, in.cols,
                    in.rounded.pairs + rows.begin * ((in.cols + 1) / 2) * kernels_.rounded_pair_bytes};
  }
  args.m = static_cast<int>(rows.end - rows.begin);
  args.bias = output.bias;
  if (tile == nullptr) {
    args.y = output.y + rows.begin * output.y_stride;
    args.y_stride = output.y_stride;
  } else {
    args.y = tile;
    args.y_stride = TileStride(panels);
    args.first_column = panels.begin * kPanelRows;
  }
  kernels_.matmul[static_cast<int>(set.layout)](args, panels.begin, panels.end);
}

void CpuBackend::MatMul(const float* x, int64_t x_stride, int m, std::span<const MatMulOutput> outputs) {
  if (m <= 0 || outputs.empty()) return;
  pool_.PinCaller();
  BeginInput(x, x_stride, m, outputs, &input_);
  PrepareInput(input_, nullptr, {});
  int64_t num_panels = 0;
  for (const MatMulOutput& output : outputs) num_panels += Packed(output).num_panels();
  const int64_t unit = PanelsAtATime(input_);
  ForRange((num_panels + unit - 1) / unit, num_panels * input_.cols / 8 * m, [&](int64_t from, int64_t to, int thread) {
    const int64_t begin = from * unit, end = std::min(to * unit, num_panels);
    int64_t first = 0;  // panel number of the output's panel 0
    for (const MatMulOutput& output : outputs) {
      const int64_t panels = Packed(output).num_panels();
      const Range range = {std::max<int64_t>(begin - first, 0), std::min(end - first, panels)};
      first += panels;
      if (range.begin < range.end) Multiply(input_, output, {0, m}, range, thread);
    }
  });
}

}  // namespace baton::kernels::cpu
