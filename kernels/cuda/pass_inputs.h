// What a pass's calls need of the host - where rows are, which blocks they write, who computes what of attention - as one
// image, so that it goes to the device in one copy for all layers.
//
// Thread contract: one thread at a time.
#ifndef BATON_KERNELS_CUDA_PASS_INPUTS_H_
#define BATON_KERNELS_CUDA_PASS_INPUTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "kernels/kv_view.h"

namespace baton::kernels::cuda {

// Of calls that share a plan.
struct AttentionShape {
  int num_kv_heads = 0, head_dim = 0;
  int group = 0;           // query heads of a KV head
  int sliding_window = 0;  // 0: none
  bool tensor_cores = false;
  bool operator==(const AttentionShape&) const = default;
};

// Whether each sequence has one row, and the rows follow one another.
bool OnlyDecodes(std::span<const SequenceChunk> chunks);
// For passes that only decode: how many pieces of keys a grid has room for, a power of two, so that grids seldom change while
// contexts grow.
int PieceBucket(std::span<const SequenceChunk> chunks);

class PassInputs {
 public:
  // Of one shape; offsets are of AttentionUnits in the image.
  struct Plan {
    size_t prefill = 0, decode = 0;
    int num_prefill = 0, num_decode = 0;
    int max_pieces = 0;        // AttentionArgs::max_pieces
    int64_t record_floats = 0;
  };

  // Forgets what it had. `rows` is at least the chunks' number. With piece_bucket, PieceBucket of chunks that only decode,
  // offsets and counts depend on it, on rows and on the shapes alone: rows behind the chunks' have units without work, and
  // block tables, whose length varies, come last. 0: as many units as there is work.
  void Build(std::span<const SequenceChunk> chunks, int block_size, std::span<const AttentionShape> shapes, int rows,
             int piece_bucket);

  std::span<const std::byte> image() const { return image_; }
  int rows() const { return rows_; }
  size_t positions() const { return positions_; }        // offset of int32_t[rows]; 0 where there is no chunk
  size_t block_ids() const { return block_ids_; }        // likewise, of the block with that position; -1
  size_t block_tables() const { return block_tables_; }  // AttentionArgs::block_tables
  const Plan& plan(size_t shape) const { return plans_[shape]; }
  int64_t record_floats() const;  // the largest of all shapes

 private:
  template <typename T>
  size_t Append(std::span<const T> values);
  Plan AppendPlan(std::span<const SequenceChunk> chunks, const AttentionShape& shape, int rows, int piece_bucket,
                  std::vector<int32_t>* block_tables);

  std::vector<std::byte> image_;
  int rows_ = 0;
  size_t positions_ = 0, block_ids_ = 0, block_tables_ = 0;
  std::vector<Plan> plans_;
};

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_PASS_INPUTS_H_
