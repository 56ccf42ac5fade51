#include "model/transformer.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "model/exact_math.h"

namespace baton::model {
namespace {

// A batch that contradicts itself is a bug of the engine, and going on would read or write foreign memory.
void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "Transformer::Forward: %s\n", what);
  std::abort();
}

void RequireValid(const ForwardBatch& batch, const ModelConfig& config, int max_context, const kernels::KvView& kv,
                  size_t num_logits) {
  const int rows = static_cast<int>(batch.token_ids.size());
  Require(batch.positions.size() == batch.token_ids.size(), "positions and token_ids differ in number");
  for (int32_t id : batch.token_ids) Require(id >= 0 && id < config.vocab_size, "a token id is out of the vocabulary");
  int next_row = 0;
  for (const kernels::SequenceChunk& chunk : batch.chunks) {
    Require(chunk.row_begin == next_row && chunk.num_rows > 0 && chunk.num_rows <= rows - next_row,
            "chunks do not cover the rows in order");
    Require(chunk.context_len >= 0 && chunk.context_len <= max_context - chunk.num_rows,
            "a sequence is longer than max_context");
    for (int i = 0; i < chunk.num_rows; ++i) {
      Require(batch.positions[next_row + i] == chunk.context_len + i, "positions contradict context_len");
    }
    const int64_t room = static_cast<int64_t>(chunk.block_table.size()) * kv.layout.block_size;
    Require(chunk.context_len + int64_t{chunk.num_rows} <= room, "a block table is too short");
    next_row += chunk.num_rows;
  }
  Require(next_row == rows, "chunks do not cover all rows");
  int32_t last = -1;
  for (int32_t row : batch.logit_rows) {
    Require(row > last && row < rows, "logit_rows are not ascending rows of the batch");
    last = row;
  }
  Require(num_logits == batch.logit_rows.size() * static_cast<size_t>(config.vocab_size), "logits have the wrong size");
  Require(kv.layout.num_layers == config.num_layers && kv.layout.num_kv_heads == config.num_kv_heads &&
              kv.layout.head_dim == config.head_dim,
          "the KV layout is another model's");
}

}  // namespace

Transformer::Transformer(ModelConfig config, kernels::Backend* backend, kernels::DeviceSpace* device, int max_context)
    : config_(std::move(config)),
      backend_(backend),
      device_(device),
      max_context_(max_context),
      rope_(config_.rope, config_.rope_dim),
      local_rope_(config_.local_rope, config_.rope_dim) {}

kernels::KvLayout Transformer::KvLayoutFor(kernels::DType dtype, int block_size) const {
  return {.dtype = dtype,
          .block_size = block_size,
          .num_layers = config_.num_layers,
          .num_kv_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim};
}

MemoryLedger Transformer::memory() const {
  MemoryLedger ledger;
  ledger.embedding_bytes = embedding_.size();
  ledger.scratch_bytes = scratch_.size_bytes();
  ledger.vector_bytes = Bytes(output_norm_) + rope_.memory_bytes() + local_rope_.memory_bytes();
  ledger.weight_bytes = head_->memory_bytes();
  for (const Layer& layer : layers_) {
    for (const auto* v : {&layer.attn_norm, &layer.ffn_norm, &layer.q_norm, &layer.k_norm, &layer.post_attention_norm,
                          &layer.post_ffw_norm, &layer.q_bias, &layer.k_bias, &layer.v_bias}) {
      ledger.vector_bytes += Bytes(*v);
    }
    for (const auto* w : {&layer.q, &layer.k, &layer.v, &layer.attn_output, &layer.gate, &layer.up, &layer.down}) {
      ledger.weight_bytes += (*w)->memory_bytes();
    }
  }
  return ledger;
}

void Transformer::Forward(const ForwardBatch& batch, const kernels::KvView& kv, std::span<float> logits) {
  RequireValid(batch, config_, max_context_, kv, logits.size());
  const int rows = static_cast<int>(batch.token_ids.size());
  if (rows == 0) return;
  Require(scratch_.Reserve(config_, rows, device_), "no memory for a batch larger than max_batch_rows");
  Embed(batch.token_ids);
  FillRopeTables(batch.positions);
  for (int i = 0; i < config_.num_layers; ++i) {
    AttentionBlock(i, batch, kv);
    FeedForwardBlock(layers_[i], rows);
  }
  if (!batch.logit_rows.empty()) {
    Head(batch, logits);
  } else if (device_ != nullptr) {
    device_->Finish();  // or the next pass would seem to take the time of this one
  }
}

void Transformer::ToDevice(float* to, const float* from, int rows, int width) const {
  if (device_ == nullptr) return;
  device_->Upload(to, from, static_cast<size_t>(rows) * static_cast<size_t>(width) * sizeof(float));
}

void Transformer::Embed(std::span<const int32_t> token_ids) {
  const size_t row_bytes = embedding_.size() / static_cast<size_t>(config_.vocab_size);
  const int rows = static_cast<int>(token_ids.size());
  // The head's rows come where the backend's memory is.
  if (embedding_.empty()) {
    for (int r = 0; r < rows; ++r) backend_->ReadRow(*head_, token_ids[r], scratch_.x + int64_t{r} * config_.dim);
    if (config_.embedding_scale == 1) return;
    if (device_ != nullptr) {
      device_->Download(scratch_.host.x, scratch_.x, token_ids.size() * static_cast<size_t>(config_.dim) * sizeof(float));
    }
  }
  float* x = scratch_.host.x;
  for (int32_t id : token_ids) {
    if (!embedding_.empty()) {
      kernels::DequantizeRow(embedding_dtype_, embedding_.data() + static_cast<size_t>(id) * row_bytes, x, config_.dim);
    }
    if (config_.embedding_scale != 1) {
      for (int i = 0; i < config_.dim; ++i) x[i] *= config_.embedding_scale;
    }
    x += config_.dim;
  }
  ToDevice(scratch_.x, scratch_.host.x, rows, config_.dim);
}

void Transformer::FillRopeTables(std::span<const int32_t> positions) {
  const int rows = static_cast<int>(positions.size()), width = config_.rope_dim / 2;
  const Scratch& s = scratch_;
  rope_.Fill(positions, s.host.rope_cos, s.host.rope_sin);
  ToDevice(s.rope_cos, s.host.rope_cos, rows, width);
  ToDevice(s.rope_sin, s.host.rope_sin, rows, width);
  if (config_.sliding_window <= 0) return;
  local_rope_.Fill(positions, s.host.local_rope_cos, s.host.local_rope_sin);
  ToDevice(s.local_rope_cos, s.host.local_rope_cos, rows, width);
  ToDevice(s.local_rope_sin, s.host.local_rope_sin, rows, width);
}

void Transformer::AttentionBlock(int layer_idx, const ForwardBatch& batch, const kernels::KvView& kv) {
  const Layer& layer = layers_[layer_idx];
  const bool slides = config_.layer_slides[layer_idx];
  const int rows = static_cast<int>(batch.token_ids.size());
  const int dim = config_.dim, q_dim = config_.q_dim(), kv_dim = config_.kv_dim();
  const int heads = config_.num_heads, kv_heads = config_.num_kv_heads, head_dim = config_.head_dim;
  const float epsilon = config_.norm_epsilon;
  Scratch& s = scratch_;
  const auto bias = [](const Vector& b) { return b.empty() ? nullptr : b.data(); };

  backend_->RmsNorm(s.x, dim, rows, dim, layer.attn_norm.data(), epsilon, s.normed, dim);
  const kernels::MatMulOutput qkv[] = {{layer.q.get(), bias(layer.q_bias), s.q, q_dim},
                                       {layer.k.get(), bias(layer.k_bias), s.k, kv_dim},
                                       {layer.v.get(), bias(layer.v_bias), s.v, kv_dim}};
  backend_->MatMul(s.normed, dim, rows, qkv);
  if (config_.qk_norm) {
    backend_->RmsNorm(s.q, head_dim, rows * heads, head_dim, layer.q_norm.data(), epsilon, s.q, head_dim);
    backend_->RmsNorm(s.k, head_dim, rows * kv_heads, head_dim, layer.k_norm.data(), epsilon, s.k, head_dim);
  }
  // The tables hold this batch's rows, so a row's "position" in them is its index.
  const kernels::RopeTable table = {.cos = slides ? s.local_rope_cos : s.rope_cos,
                                    .sin = slides ? s.local_rope_sin : s.rope_sin,
                                    .rope_dim = config_.rope_dim,
                                    .style = config_.rope_style};
  const std::span<const int32_t> row_idx(s.row_idx, static_cast<size_t>(rows));
  backend_->Rope(s.q, q_dim, rows, heads, head_dim, row_idx, table);
  backend_->Rope(s.k, kv_dim, rows, kv_heads, head_dim, row_idx, table);
  backend_->WriteKv(layer_idx, s.k, kv_dim, s.v, kv_dim, batch.chunks, kv);
  const kernels::AttentionParams params = {.num_heads = heads,
                                           .scale = config_.attention_scale,
                                           .sliding_window = slides ? config_.sliding_window : 0,
                                           .logit_softcap = config_.attention_softcap};
  backend_->Attention(layer_idx, s.q, q_dim, batch.chunks, kv, params, s.attended, q_dim);
  const kernels::MatMulOutput output[] = {{layer.attn_output.get(), nullptr, s.out, dim}};
  backend_->MatMul(s.attended, q_dim, rows, output);
  if (config_.post_norms) {
    backend_->RmsNorm(s.out, dim, rows, dim, layer.post_attention_norm.data(), epsilon, s.out, dim);
  }
  backend_->Add(s.x, dim, s.out, dim, rows, dim);
}

void Transformer::FeedForwardBlock(const Layer& layer, int rows) {
  const int dim = config_.dim, ffn_dim = config_.ffn_dim;
  const float epsilon = config_.norm_epsilon;
  Scratch& s = scratch_;
  backend_->RmsNorm(s.x, dim, rows, dim, layer.ffn_norm.data(), epsilon, s.normed, dim);
  const kernels::MatMulOutput gate_up[] = {{layer.gate.get(), nullptr, s.gate, ffn_dim},
                                           {layer.up.get(), nullptr, s.up, ffn_dim}};
  backend_->MatMul(s.normed, dim, rows, gate_up);
  backend_->GatedActivation(config_.activation, s.gate, ffn_dim, s.up, ffn_dim, rows, ffn_dim);
  const kernels::MatMulOutput down[] = {{layer.down.get(), nullptr, s.out, dim}};
  backend_->MatMul(s.gate, ffn_dim, rows, down);
  if (config_.post_norms) {
    backend_->RmsNorm(s.out, dim, rows, dim, layer.post_ffw_norm.data(), epsilon, s.out, dim);
  }
  backend_->Add(s.x, dim, s.out, dim, rows, dim);
}

// Only the rows whose logits are wanted; they are gathered to the front of `normed`.
void Transformer::Head(const ForwardBatch& batch, std::span<float> logits) {
  const int dim = config_.dim, vocab = config_.vocab_size;
  const int rows = static_cast<int>(batch.logit_rows.size());
  for (int i = 0; i < rows; ++i) {
    float* const to = scratch_.normed + static_cast<size_t>(i) * dim;
    const float* const from = scratch_.x + static_cast<size_t>(batch.logit_rows[i]) * dim;
    const size_t bytes = static_cast<size_t>(dim) * sizeof(float);
    device_ != nullptr ? device_->CopyWithin(to, from, bytes) : void(std::memcpy(to, from, bytes));
  }
  backend_->RmsNorm(scratch_.normed, dim, rows, dim, output_norm_.data(), config_.norm_epsilon, scratch_.normed, dim);
  if (device_ != nullptr && device_logits_floats_ < logits.size()) {
    device_logits_ = {};
    auto memory = kernels::DeviceArray::Allocate(device_, logits.size_bytes());
    Require(memory.ok(), "no memory on the device for the logits of so many rows");
    device_logits_ = *std::move(memory);
    device_logits_floats_ = logits.size();
  }
  float* const computed = device_ != nullptr ? static_cast<float*>(device_logits_.data()) : logits.data();
  const kernels::MatMulOutput output[] = {{head_.get(), nullptr, computed, vocab}};
  backend_->MatMul(scratch_.normed, dim, rows, output);
  if (device_ != nullptr) device_->Download(logits.data(), computed, logits.size_bytes());
  if (config_.final_softcap > 0) {
    const double cap = config_.final_softcap;
    for (float& logit : logits) logit = static_cast<float>(cap * Tanh(logit / cap));
  }
}

}  // namespace baton::model
