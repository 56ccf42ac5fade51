// The fused calls (README.md has the regions). Whoever computed some columns of a product also rotates, activates, adds and
// quantizes them, which needs no barrier and finds them in the cache.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/packed_matrix.h"

namespace baton::kernels::cpu {
namespace {

int64_t PanelsOf(const MatMulOutput& output) { return (output.weight->rows() + kPanelRows - 1) / kPanelRows; }

// Nanoseconds, about, as MatMul has it.
int64_t WorkOf(int64_t panels, int64_t cols, int m) { return panels * cols / 8 * m; }

}  // namespace

template <typename Fn>
void CpuBackend::ForTiles(const ProductInput& in, int64_t num_panels, int num_outputs, const Fn& fn) {
  constexpr int64_t kTileFloats = 64 << 10;  // two tiles are a quarter of a second-level cache
  const int64_t unit = PanelsAtATime(in), num_units = (num_panels + unit - 1) / unit;
  const int64_t rows_at_a_time = std::min<int64_t>(RowsAtATime(in), in.m);
  const int64_t fitting_units = std::max<int64_t>(kTileFloats / (rows_at_a_time * kPanelRows * unit), 1);
  const int64_t panels_at_a_time = std::min(fitting_units, num_units) * unit;
  ReserveTiles(rows_at_a_time * panels_at_a_time * kPanelRows, num_outputs);
  ForRange(num_units, WorkOf(num_outputs * num_panels, in.cols, in.m), [&](int64_t from, int64_t to, int thread) {
    float* const tiles = tiles_.data() + tile_floats_ * num_outputs * thread;
    const int64_t panel_end = std::min(to * unit, num_panels);
    for (int64_t row = 0; row < in.m; row += rows_at_a_time) {
      for (int64_t panel = from * unit; panel < panel_end; panel += panels_at_a_time) {
        fn(Range{row, std::min<int64_t>(row + rows_at_a_time, in.m)},
           Range{panel, std::min(panel + panels_at_a_time, panel_end)}, tiles, thread);
      }
    }
  });
}

// One head's queries, keys or values (index: of its KV head's query heads, then the two), of all rows.
void CpuBackend::ProjectHead(const SelfAttentionArgs& a, int kv_head, int index, int thread) {
  const int head_dim = a.kv.layout.head_dim, group = a.params.num_heads / a.kv.layout.num_kv_heads;
  const bool is_query = index < group, is_value = index == group + 1;
  const MatMulOutput& output = is_query ? a.q : is_value ? a.v : a.k;
  const Norm& norm = is_query ? a.q_norm : a.k_norm;
  const int64_t head = is_query ? kv_head * group + index : kv_head;
  const int64_t panels = head_dim / kPanelRows, half = a.rope.rope_dim / 2;
  const int64_t rows_at_a_time = RowsAtATime(input_);
  float* const tile = tiles_.data() + tile_floats_ * thread;
  for (int64_t begin = 0; begin < a.m; begin += rows_at_a_time) {
    const int64_t end = std::min<int64_t>(begin + rows_at_a_time, a.m);
    Multiply(input_, output, {begin, end}, {head * panels, (head + 1) * panels}, thread, tile);
    for (int64_t r = begin; r < end && !is_value; ++r) {
      float* const row = tile + (r - begin) * head_dim;
      if (norm.weight != nullptr) kernels_.rms_norm(row, head_dim, norm.weight, norm.epsilon, row);
      const int64_t offset = a.positions[r] * half;
      kernels_.rope(row, 1, head_dim, a.rope.cos + offset, a.rope.sin + offset, a.rope.rope_dim, a.rope.style);
      if (is_query) std::copy(row, row + head_dim, a.q.y + r * a.q.y_stride + head * head_dim);
    }
    for (const SequenceChunk& chunk : a.chunks) {
      if (is_query) break;
      const int64_t last = std::min<int64_t>(chunk.row_begin + chunk.num_rows, end);
      for (int64_t r = std::max<int64_t>(chunk.row_begin, begin); r < last; ++r) {
        StoreKv(a.kv, a.layer, is_value, kv_head, chunk, static_cast<int>(r - chunk.row_begin),
                tile + (r - begin) * head_dim);
      }
    }
  }
}

// Products and attention are one region: a unit of attention waits for its own KV head's products only.
void CpuBackend::SelfAttention(const SelfAttentionArgs& a) {
  const KvLayout& layout = a.kv.layout;
  next_weight_ = nullptr;
  if (a.m <= 0) return;
  if (layout.head_dim % kPanelRows != 0) return Backend::SelfAttention(a);  // heads share panels
  pool_.PinCaller();
  const MatMulOutput outputs[] = {a.q, a.k, a.v};
  BeginInput(a.normed, a.dim, a.m, outputs, &input_);
  PrepareInput(input_, a.x, a.norm);
  ReserveTiles(std::min<int64_t>(RowsAtATime(input_), a.m) * layout.head_dim, 1);
  const AttentionJob job =
      BeginAttention(a.layer, a.q.y, a.q.y_stride, a.chunks, a.kv, a.params, a.out, a.out_stride);
  if (layout.head_dim % kQuantGroup == 0) next_weight_ = a.next;
  if (next_weight_ != nullptr) {
    const MatMulOutput next = {.weight = next_weight_};
    BeginInput(a.out, a.out_stride, a.m, {&next, 1}, &next_input_);
  }
  if (num_heads_ready_ < layout.num_kv_heads) {
    heads_ready_.reset(new Latch[layout.num_kv_heads]);
    num_heads_ready_ = layout.num_kv_heads;
  }
  const int num_products = a.params.num_heads + 2 * layout.num_kv_heads;
  for (int i = 0; i < layout.num_kv_heads; ++i) heads_ready_[i].Reset(job.group + 2);

  // In the order in which the weights lie in memory.
  const int num_heads = a.params.num_heads;
  const auto project = [&](int task, int thread) {
    const int kv_head = task < num_heads ? task / job.group : (task - num_heads) % layout.num_kv_heads;
    const int index = task < num_heads ? task % job.group : job.group + (task - num_heads) / layout.num_kv_heads;
    ProjectHead(a, kv_head, index, thread);
    heads_ready_[kv_head].Arrive();
  };
  const auto prepare_next = [&](const AttentionUnit& unit) {
    if (next_weight_ == nullptr) return;
    const int64_t first = int64_t{unit.kv_head} * job.group;
    const Range columns = {(first + unit.head_begin) * layout.head_dim, (first + unit.head_end) * layout.head_dim};
    for (int r = unit.row_begin; r < unit.row_end; ++r) {
      const int64_t row = unit.chunk->row_begin + r;
      PrepareColumns(next_input_, row, columns, a.out + row * a.out_stride + columns.begin);
    }
  };
  const int num_units = static_cast<int>(units_.size());
  const int tasks = std::min(num_units, ThreadPool::kMaxTasks / 2);
  const auto attend = [&](int task, int thread) {
    const int end = static_cast<int>(int64_t{num_units} * (task + 1) / tasks);
    for (int i = static_cast<int>(int64_t{num_units} * task / tasks); i < end; ++i) {
      heads_ready_[units_[i].kv_head].Wait();
      RunUnit(job, units_[i], thread);
      if (units_[i].only_piece < 0) prepare_next(units_[i]);
    }
  };
  const int64_t product_work = WorkOf(PanelsOf(a.q) + PanelsOf(a.k) + PanelsOf(a.v), input_.cols, a.m);
  if (product_work + job.work < kWorthSplitting) {
    for (int i = 0; i < num_products; ++i) project(i, 0);
    for (int i = 0; i < tasks; ++i) attend(i, 0);
  } else {
    pool_.RunStages(num_products, project, tasks, attend);
  }
  RunMerges(job);
  for (const AttentionMerge& merge : merges_) prepare_next(merge.unit);
}

void CpuBackend::GatedMatMul(const GatedMatMulArgs& a) {
  if (a.m <= 0) return;
  pool_.PinCaller();
  const MatMulOutput outputs[] = {a.gate, a.up};
  BeginInput(a.normed, a.dim, a.m, outputs, &input_);
  PrepareInput(input_, a.x, a.norm);
  next_weight_ = a.next;
  if (next_weight_ != nullptr) {
    const MatMulOutput next = {.weight = next_weight_};
    BeginInput(a.gate.y, a.gate.y_stride, a.m, {&next, 1}, &next_input_);
  }
  const int64_t cols = a.gate.weight->rows();
  const bool wants_floats = next_weight_ == nullptr || next_input_.wants_floats;
  ForTiles(input_, PanelsOf(a.gate), 2, [&](Range rows, Range panels, float* gate, int thread) {
    float* const up = gate + tile_floats_;
    Multiply(input_, a.gate, rows, panels, thread, gate);
    Multiply(input_, a.up, rows, panels, thread, up);
    const Range columns = {panels.begin * kPanelRows, std::min(panels.end * kPanelRows, cols)};
    const int width = static_cast<int>(columns.end - columns.begin);
    for (int64_t r = 0; r < rows.end - rows.begin; ++r) {
      float* const row = gate + r * TileStride(panels);
      kernels_.gated(a.activation, row, up + r * TileStride(panels), width);
      if (next_weight_ != nullptr) PrepareColumns(next_input_, rows.begin + r, columns, row);
      if (wants_floats) std::copy(row, row + width, a.gate.y + (rows.begin + r) * a.gate.y_stride + columns.begin);
    }
  });
}

void CpuBackend::ResidualMatMul(const ResidualMatMulArgs& a) {
  if (a.m <= 0) return;
  pool_.PinCaller();
  if (next_weight_ != a.product.weight || next_input_.x != a.input || next_input_.m != a.m) {
    BeginInput(a.input, a.input_stride, a.m, {&a.product, 1}, &next_input_);
    PrepareInput(next_input_, nullptr, {});
  }
  next_weight_ = nullptr;
  const ProductInput& in = next_input_;
  const int64_t dim = a.product.weight->rows(), y_stride = a.product.y_stride;
  float* const y = a.product.y;
  ForTiles(in, PanelsOf(a.product), 1, [&](Range rows, Range panels, float* tile, int thread) {
    if (a.norm.weight != nullptr) return Multiply(in, a.product, rows, panels, thread);
    Multiply(in, a.product, rows, panels, thread, tile);
    const int64_t begin = panels.begin * kPanelRows, end = std::min(panels.end * kPanelRows, dim);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      kernels_.add(a.x + r * dim + begin, tile + (r - rows.begin) * TileStride(panels), static_cast<int>(end - begin));
    }
  });
  if (a.norm.weight == nullptr) return;
  ForRange(a.m, int64_t{a.m} * dim * 3 / 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      kernels_.rms_norm(y + r * y_stride, static_cast<int>(dim), a.norm.weight, a.norm.epsilon, y + r * y_stride);
      kernels_.add(a.x + r * dim, y + r * y_stride, static_cast<int>(dim));
    }
  });
}

}  // namespace baton::kernels::cpu
