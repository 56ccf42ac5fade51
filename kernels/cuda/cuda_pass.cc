// CudaBackend's passes: what goes up for them, and graphs.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_status.h"

namespace baton::kernels::cuda {
namespace {
constexpr size_t kMaxShapes = 16;  // a model has one or two
}  // namespace

int CudaBackend::PassRows(const Pass& pass) const {
  const int rows = RowsOf(pass.chunks);
  return Repeats(pass) ? std::clamp(GraphRows(rows), rows, std::max(pass.room, rows)) : rows;
}

void CudaBackend::RunPass(const Pass& pass, absl::FunctionRef<void()> calls) {
  const bool repeats = Repeats(pass);
  pass_ = &pass;
  pass_rows_ = PassRows(pass);
  pass_pieces_ = repeats ? PieceBucket(pass.chunks) : 0;
  PutInputs(pass.chunks, pass.kv.layout.block_size, pass_rows_, pass_pieces_);
  inputs_are_the_passs_ = true;
  if (repeats && pass_rows_ <= kMaxGraphRows) {
    RunRepeating({pass.repeats, pass.kv.base, pass.kv.layout, pass_rows_, pass_pieces_}, calls);
  } else {
    calls();
  }
  pass_ = nullptr;
  inputs_are_the_passs_ = false;
}

void CudaBackend::PutInputs(std::span<const SequenceChunk> chunks, int block_size, int rows, int piece_bucket) {
  inputs_.Build(chunks, block_size, shapes_, rows, piece_bucket);
  Put(&inputs_memory_, inputs_.image());
  Reserve(&records_, static_cast<size_t>(inputs_.record_floats()) * sizeof(float));
}

bool CudaBackend::EnsureInputs(std::span<const SequenceChunk> chunks, const KvView& kv, const AttentionShape* shape,
                               size_t* index) {
  const bool of_pass = pass_ != nullptr && chunks.data() == pass_->chunks.data() && chunks.size() == pass_->chunks.size() &&
                       kv.layout.block_size == pass_->kv.layout.block_size;
  bool known = true;
  if (shape != nullptr) {
    const auto it = std::find(shapes_.begin(), shapes_.end(), *shape);
    known = it != shapes_.end();
    *index = static_cast<size_t>(it - shapes_.begin());
  }
  if (known && of_pass && inputs_are_the_passs_) return true;
  if (recording_) {
    recorded_for_nothing_ = true;
    return false;
  }
  if (!known) {
    if (shapes_.size() == kMaxShapes) shapes_.clear();
    *index = shapes_.size();
    shapes_.push_back(*shape);
    ++*frees_;  // offsets in the inputs are others now
  }
  PutInputs(chunks, kv.layout.block_size, of_pass ? pass_rows_ : RowsOf(chunks), of_pass ? pass_pieces_ : 0);
  inputs_are_the_passs_ = of_pass;
  return true;
}

void CudaBackend::RunRepeating(const GraphKey& key, absl::FunctionRef<void()> calls) {
  DropStaleGraphs();
  GraphCache::Entry* entry = cache_.Find(key);
  if (entry == nullptr) {
    calls();
    DropStaleGraphs();
    if (cache_.Full()) RequireOk(Synchronize(stream_.get()));
    return cache_.Add(key);
  }
  if (!entry->graph.has_value()) {
    std::optional<Graph> recorded = Record(calls);
    if (!recorded.has_value()) return calls();
    entry->graph = std::move(recorded);
  }
  if (const absl::Status launched = entry->graph->Launch(stream_.get()); !launched.ok()) {
    GiveUpGraphs(launched);
    calls();
  }
}

std::optional<Graph> CudaBackend::Record(absl::FunctionRef<void()> calls) {
  if (const absl::Status begun = Graph::Begin(stream_.get()); !begun.ok()) {
    GiveUpGraphs(begun);
    return std::nullopt;
  }
  recording_ = true;
  recorded_for_nothing_ = false;
  calls();
  recording_ = false;
  absl::StatusOr<Graph> graph = Graph::End(stream_.get());
  if (!graph.ok()) {
    GiveUpGraphs(graph.status());
    return std::nullopt;
  }
  if (recorded_for_nothing_) return std::nullopt;
  return *std::move(graph);
}

void CudaBackend::RequireGiven(const absl::Status& status) const {
  if (!recording_) RequireOk(status);
}

void CudaBackend::DropStaleGraphs() {
  if (cached_at_ == *frees_) return;
  cached_at_ = *frees_;
  if (cache_.size() == 0) return;
  RequireOk(Synchronize(stream_.get()));
  cache_.Clear();
}

// What the driver refused has not run.
void CudaBackend::GiveUpGraphs(const absl::Status& why) {
  std::fprintf(stderr, "the GPU's driver takes no graph of a decode step (%s); steps are launched call by call from now on\n",
               why.ToString().c_str());
  graphs_ = false;
  RequireOk(Synchronize(stream_.get()));
  cache_.Clear();
}

}  // namespace baton::kernels::cuda
