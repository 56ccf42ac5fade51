#include "kernels/backend.h"

#include <utility>

namespace baton::kernels {

absl::string_view Name(NumericsClass numerics) {
  switch (numerics) {
    case NumericsClass::kF32:
      return "f32";
    case NumericsClass::kInt:
      return "int";
    case NumericsClass::kBf16:
      return "bf16";
  }
  return "unknown";
}

std::optional<Isa> IsaFromName(absl::string_view name) {
  constexpr std::pair<absl::string_view, Isa> kNames[] = {
      {"auto", Isa::kAuto},     {"scalar", Isa::kScalar},           {"avx2", Isa::kAvx2},
      {"avx512", Isa::kAvx512}, {"avx512_bf16", Isa::kAvx512Bf16}, {"amx", Isa::kAmx},
  };
  for (const auto& [known, isa] : kNames) {
    if (name == known) return isa;
  }
  return std::nullopt;
}

std::optional<NumericsClass> NumericsFromName(absl::string_view name) {
  for (const NumericsClass numerics : {NumericsClass::kF32, NumericsClass::kInt, NumericsClass::kBf16}) {
    if (Name(numerics) == name) return numerics;
  }
  return std::nullopt;
}

void Backend::SelfAttention(const SelfAttentionArgs& a) {
  const int heads = a.params.num_heads, kv_heads = a.kv.layout.num_kv_heads, head_dim = a.kv.layout.head_dim;
  const MatMulOutput outputs[] = {a.q, a.k, a.v};
  RmsNorm(a.x, a.dim, a.m, a.dim, a.norm.weight, a.norm.epsilon, a.normed, a.dim);
  MatMul(a.normed, a.dim, a.m, outputs);
  if (a.q_norm.weight != nullptr) {
    RmsNorm(a.q.y, head_dim, a.m * heads, head_dim, a.q_norm.weight, a.q_norm.epsilon, a.q.y, head_dim);
  }
  if (a.k_norm.weight != nullptr) {
    RmsNorm(a.k.y, head_dim, a.m * kv_heads, head_dim, a.k_norm.weight, a.k_norm.epsilon, a.k.y, head_dim);
  }
  Rope(a.q.y, a.q.y_stride, a.m, heads, head_dim, a.positions, a.rope);
  Rope(a.k.y, a.k.y_stride, a.m, kv_heads, head_dim, a.positions, a.rope);
  WriteKv(a.layer, a.k.y, a.k.y_stride, a.v.y, a.v.y_stride, a.chunks, a.kv);
  Attention(a.layer, a.q.y, a.q.y_stride, a.chunks, a.kv, a.params, a.out, a.out_stride);
}

void Backend::GatedMatMul(const GatedMatMulArgs& a) {
  const MatMulOutput outputs[] = {a.gate, a.up};
  RmsNorm(a.x, a.dim, a.m, a.dim, a.norm.weight, a.norm.epsilon, a.normed, a.dim);
  MatMul(a.normed, a.dim, a.m, outputs);
  GatedActivation(a.activation, a.gate.y, a.gate.y_stride, a.up.y, a.up.y_stride, a.m,
                  static_cast<int>(a.gate.weight->rows()));
}

void Backend::ResidualMatMul(const ResidualMatMulArgs& a) {
  const int dim = static_cast<int>(a.product.weight->rows());
  MatMul(a.input, a.input_stride, a.m, {&a.product, 1});
  float* const y = a.product.y;
  if (a.norm.weight != nullptr) {
    RmsNorm(y, a.product.y_stride, a.m, dim, a.norm.weight, a.norm.epsilon, y, a.product.y_stride);
  }
  Add(a.x, dim, y, a.product.y_stride, a.m, dim);
}

}  // namespace baton::kernels
