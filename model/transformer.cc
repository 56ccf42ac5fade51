#include "model/transformer.h"

#include <algorithm>
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
  ledger.embedding_bytes = embedding_.size() + (embedding_rows_ != nullptr ? embedding_rows_->memory_bytes() : 0);
  ledger.scratch_bytes = scratch_.size_bytes();
  ledger.vector_bytes = Bytes(output_norm_) + rope_.memory_bytes() + local_rope_.memory_bytes() +
                        device_angles_.memory_bytes() + device_local_angles_.memory_bytes();
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
  // Then the calls of a pass of single rows are those of any other pass of as many rows.
  const bool all_logits = batch.logit_rows.size() == batch.token_ids.size();
  const kernels::DeviceSpace::Pass pass = {batch.chunks, kv, all_logits ? this : nullptr, scratch_.capacity()};
  const int pass_rows = device_ != nullptr ? device_->PassRows(pass) : rows;
  Require(scratch_.Reserve(config_, pass_rows, device_), "no memory for a batch larger than max_batch_rows");
  const int head_rows = all_logits ? pass_rows : static_cast<int>(batch.logit_rows.size());
  float* const computed = ReserveLogits(head_rows, logits);
  Embed(batch.token_ids);
  FillRopeTables(batch);
  const auto calls = [&] {
    for (int i = 0; i < config_.num_layers; ++i) {
      AttentionBlock(i, pass_rows, batch, kv);
      FeedForwardBlock(layers_[i], pass_rows);
    }
    if (head_rows > 0) Head(head_rows, all_logits ? std::span<const int32_t>() : batch.logit_rows, computed);
  };
  if (device_ == nullptr) {
    calls();
  } else {
    device_->RunPass(pass, calls);
    // With no logits to wait for the next pass would seem to take the time of this one.
    logits.empty() ? device_->Finish() : device_->Download(logits.data(), computed, logits.size_bytes());
  }
  if (config_.final_softcap <= 0) return;
  const double cap = config_.final_softcap;
  for (float& logit : logits) logit = static_cast<float>(cap * Tanh(logit / cap));
}

void Transformer::ToDevice(float* to, const float* from, int rows, int width) const {
  if (device_ == nullptr) return;
  device_->Upload(to, from, static_cast<size_t>(rows) * static_cast<size_t>(width) * sizeof(float));
}

void Transformer::Embed(std::span<const int32_t> token_ids) {
  const size_t row_bytes = embedding_.size() / static_cast<size_t>(config_.vocab_size);
  const int rows = static_cast<int>(token_ids.size());
  if (embedding_.empty() && device_ != nullptr) {
    const kernels::WeightMatrix& table = embedding_rows_ != nullptr ? *embedding_rows_ : *head_;
    return device_->ReadRows(table, token_ids, config_.embedding_scale, scratch_.x);
  }
  float* x = scratch_.host.x;
  for (int32_t id : token_ids) {
    if (embedding_.empty()) {
      backend_->ReadRow(*head_, id, x);
    } else {
      kernels::DequantizeRow(embedding_dtype_, embedding_.data() + static_cast<size_t>(id) * row_bytes, x, config_.dim);
    }
    if (config_.embedding_scale != 1) {
      for (int i = 0; i < config_.dim; ++i) x[i] *= config_.embedding_scale;
    }
    x += config_.dim;
  }
  ToDevice(scratch_.x, scratch_.host.x, rows, config_.dim);
}

void Transformer::FillRopeTables(const ForwardBatch& batch) {
  if (device_ != nullptr) {
    int end = 0;
    for (const kernels::SequenceChunk& chunk : batch.chunks) end = std::max(end, chunk.context_len + chunk.num_rows);
    device_angles_.Extend(end);
    return device_local_angles_.Extend(end);
  }
  rope_.Fill(batch.positions, scratch_.rope_cos, scratch_.rope_sin);
  if (config_.sliding_window > 0) local_rope_.Fill(batch.positions, scratch_.local_rope_cos, scratch_.local_rope_sin);
}

void Transformer::AttentionBlock(int layer_idx, int rows, const ForwardBatch& batch, const kernels::KvView& kv) {
  const Layer& layer = layers_[layer_idx];
  const bool slides = config_.layer_slides[layer_idx];
  const int dim = config_.dim, q_dim = config_.q_dim(), kv_dim = config_.kv_dim();
  Scratch& s = scratch_;
  const auto bias = [](const Vector& b) { return b.empty() ? nullptr : b.data(); };
  // On the host the tables hold this batch's rows, so a row's "position" in them is its index.
  const bool on_device = device_ != nullptr;
  const DeviceAngles& angles = slides ? device_local_angles_ : device_angles_;
  backend_->SelfAttention(
      {.m = rows,
       .dim = dim,
       .x = s.x,
       .norm = NormOf(layer.attn_norm),
       .normed = s.normed,
       .q = {layer.q.get(), bias(layer.q_bias), s.q, q_dim},
       .k = {layer.k.get(), bias(layer.k_bias), s.k, kv_dim},
       .v = {layer.v.get(), bias(layer.v_bias), s.v, kv_dim},
       .q_norm = NormOf(layer.q_norm),
       .k_norm = NormOf(layer.k_norm),
       .positions = on_device ? batch.positions : std::span<const int32_t>(s.row_idx, static_cast<size_t>(rows)),
       .rope = {.cos = on_device ? angles.cos() : slides ? s.local_rope_cos : s.rope_cos,
                .sin = on_device ? angles.sin() : slides ? s.local_rope_sin : s.rope_sin,
                .rope_dim = config_.rope_dim,
                .style = config_.rope_style},
       .layer = layer_idx,
       .chunks = batch.chunks,
       .kv = kv,
       .params = {.num_heads = config_.num_heads,
                  .scale = config_.attention_scale,
                  .sliding_window = slides ? config_.sliding_window : 0,
                  .logit_softcap = config_.attention_softcap},
       .out = s.attended,
       .out_stride = q_dim,
       .next = layer.attn_output.get()});
  backend_->ResidualMatMul({.m = rows,
                            .input = s.attended,
                            .input_stride = q_dim,
                            .product = {layer.attn_output.get(), nullptr, s.out, dim},
                            .norm = NormOf(layer.post_attention_norm),
                            .x = s.x});
}

void Transformer::FeedForwardBlock(const Layer& layer, int rows) {
  const int dim = config_.dim, ffn_dim = config_.ffn_dim;
  Scratch& s = scratch_;
  backend_->GatedMatMul({.m = rows,
                         .dim = dim,
                         .x = s.x,
                         .norm = NormOf(layer.ffn_norm),
                         .normed = s.normed,
                         .gate = {layer.gate.get(), nullptr, s.gate, ffn_dim},
                         .up = {layer.up.get(), nullptr, s.up, ffn_dim},
                         .activation = config_.activation,
                         .next = layer.down.get()});
  backend_->ResidualMatMul({.m = rows,
                            .input = s.gate,
                            .input_stride = ffn_dim,
                            .product = {layer.down.get(), nullptr, s.out, dim},
                            .norm = NormOf(layer.post_ffw_norm),
                            .x = s.x});
}

float* Transformer::ReserveLogits(int rows, std::span<float> logits) {
  if (device_ == nullptr) return logits.data();
  const size_t floats = static_cast<size_t>(rows) * static_cast<size_t>(config_.vocab_size);
  if (device_logits_floats_ < floats) {
    device_logits_ = {};
    auto memory = kernels::DeviceArray::Allocate(device_, floats * sizeof(float));
    Require(memory.ok(), "no memory on the device for the logits of so many rows");
    device_logits_ = *std::move(memory);
    device_logits_floats_ = floats;
  }
  return static_cast<float*>(device_logits_.data());
}

// Listed rows are gathered to the front of `normed`.
void Transformer::Head(int rows, std::span<const int32_t> listed, float* logits) {
  const int dim = config_.dim;
  for (size_t i = 0; i < listed.size(); ++i) {
    float* const to = scratch_.normed + i * static_cast<size_t>(dim);
    const float* const from = scratch_.x + static_cast<size_t>(listed[i]) * dim;
    const size_t bytes = static_cast<size_t>(dim) * sizeof(float);
    device_ != nullptr ? device_->CopyWithin(to, from, bytes) : void(std::memcpy(to, from, bytes));
  }
  const float* const from = listed.empty() ? scratch_.x : scratch_.normed;
  backend_->RmsNorm(from, dim, rows, dim, output_norm_.data(), config_.norm_epsilon, scratch_.normed, dim);
  const kernels::MatMulOutput output[] = {{head_.get(), nullptr, logits, config_.vocab_size}};
  backend_->MatMul(scratch_.normed, dim, rows, output);
}

}  // namespace baton::model
