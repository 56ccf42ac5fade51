#include "cli/plan.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/checked.h"

namespace baton::cli {
namespace {

constexpr uint64_t kNanosPerSecond = 1000000000;

absl::Status Overflow(absl::string_view what) {
  return absl::OutOfRangeError(
      absl::StrCat(what,
                   " does not fit in 64 bits: the model's shapes or the context are not realistic. Check the "
                   "numbers in the model file and --context."));
}

absl::Status CheckShape(const ModelShape& s) {
  const std::pair<const char*, uint64_t> positive[] = {
      {"layers", s.num_layers},     {"hidden size", s.hidden_size}, {"heads", s.num_heads},
      {"KV heads", s.num_kv_heads}, {"head size", s.head_dim},      {"intermediate size", s.intermediate_size},
      {"vocabulary", s.vocab_size}};
  for (const auto& [name, value] : positive) {
    if (value == 0) return absl::InvalidArgumentError(absl::StrCat(s.name, ": ", name, " is zero or missing."));
  }
  if (s.num_heads % s.num_kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(s.name, ": ", s.num_heads, " heads cannot share ", s.num_kv_heads, " KV heads evenly."));
  }
  return absl::OkStatus();
}

// The causal half of attention over `n` prompt tokens: position p does 2 products of head_dim with each of p + 1 keys.
Checked AttentionFlops(const ModelShape& s, uint64_t n) {
  const Checked pairs = Checked::MulDiv(Checked(n), Checked(n) + 1, 2);
  return pairs * 4 * s.num_layers * s.num_heads * s.head_dim;
}

uint64_t PeakFlops(const Accelerator& a, uint64_t weight_bits) {
  // A card without 8-bit units computes 8-bit weights at its 16-bit rate, after conversion.
  if (weight_bits <= 8 && a.flops_8bit != 0) return a.flops_8bit;
  return a.flops_16bit != 0 ? a.flops_16bit : a.flops_8bit;
}

}  // namespace

absl::StatusOr<ParameterCount> CountParameters(const ModelShape& s) {
  if (absl::Status status = CheckShape(s); !status.ok()) return status;
  const Checked q_dim = Checked(s.num_heads) * s.head_dim;
  const Checked kv_dim = Checked(s.num_kv_heads) * s.head_dim;
  const Checked attention = (q_dim + kv_dim * 2 + q_dim) * s.hidden_size;
  const Checked mlp = Checked(s.hidden_size) * s.intermediate_size * 3;
  const Checked head = Checked(s.vocab_size) * s.hidden_size;
  Checked small = Checked(s.norms_per_layer) * s.hidden_size;
  if (s.attention_bias) small = small + q_dim + kv_dim * 2;
  if (s.attention_out_bias) small = small + s.hidden_size;
  if (s.qk_norm) small = small + Checked(s.head_dim) * 2;
  const Checked matmul = (attention + mlp) * s.num_layers + head;
  const Checked total = matmul + small * s.num_layers + s.hidden_size + (s.tied_embeddings ? Checked(0) : head);
  if (!total.ok()) return Overflow("The number of parameters");
  return ParameterCount{.total = total.value(), .matmul = matmul.value()};
}

const std::vector<Accelerator>& AcceleratorPresets() {
  static const auto* const presets = new std::vector<Accelerator>{
      {"h100", "NVIDIA H100 SXM5 (NVIDIA H100 data sheet; dense rates)", 1, 80000000000, 3350000000000,
       1979000000000000, 989000000000000},
      {"h200", "NVIDIA H200 SXM (NVIDIA H200 data sheet; dense rates)", 1, 141000000000, 4800000000000,
       1979000000000000, 989000000000000},
      {"b200", "NVIDIA B200 (an eighth of the DGX B200 data sheet; dense rates)", 1, 180000000000, 8000000000000,
       4500000000000000, 2250000000000000},
      {"a100", "NVIDIA A100 SXM4 80 GB (NVIDIA A100 data sheet; no FP8)", 1, 80000000000, 2039000000000, 0,
       312000000000000},
      {"l40s", "NVIDIA L40S (NVIDIA L40S data sheet; dense rates)", 1, 48000000000, 864000000000, 733000000000000,
       362000000000000},
      {"mi300x", "AMD Instinct MI300X (AMD data sheet; dense rates)", 1, 192000000000, 5300000000000, 2614900000000000,
       1307400000000000},
  };
  return *presets;
}

absl::StatusOr<Accelerator> FindAccelerator(absl::string_view text) {
  std::string name = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
  uint64_t count = 1;
  const size_t x = name.find('x');
  uint64_t parsed = 0;
  if (x != std::string::npos && x > 0 &&
      absl::SimpleAtoi(absl::StripAsciiWhitespace(absl::string_view(name).substr(0, x)), &parsed)) {
    if (parsed == 0) return absl::InvalidArgumentError("--accelerator: the count must be at least 1, as in 8xh100.");
    count = parsed;
    name = std::string(absl::StripAsciiWhitespace(absl::string_view(name).substr(x + 1)));
  }
  std::vector<std::string> names;
  for (const Accelerator& preset : AcceleratorPresets()) {
    if (preset.name == name) {
      Accelerator found = preset;
      found.count = count;
      return found;
    }
    names.push_back(preset.name);
  }
  return absl::NotFoundError(absl::StrCat("--accelerator \"", text.substr(0, 40), "\" is not a known name (",
                                          absl::StrJoin(names, ", "),
                                          "). Use one of them, as in 8xh100, or give --memory, --bandwidth and "
                                          "--flops."));
}

absl::StatusOr<uint64_t> BitsOf(absl::string_view flag, absl::string_view dtype) {
  static constexpr std::pair<const char*, uint64_t> kBits[] = {{"f32", 32}, {"bf16", 16}, {"f16", 16}, {"fp16", 16},
                                                               {"fp8", 8},  {"int8", 8},  {"int4", 4}, {"fp4", 4}};
  for (const auto& [name, bits] : kBits) {
    if (dtype == name) return bits;
  }
  return absl::InvalidArgumentError(absl::StrCat(flag, " \"", dtype.substr(0, 40),
                                                 "\" is not an element type. Use f32, bf16, f16, fp8, int8, int4 or "
                                                 "fp4."));
}

namespace {

Checked BytesOf(const WorkerMemory& w) {
  return Checked(w.matrix_bytes) + w.embedding_bytes + w.vector_bytes + w.scratch_bytes;
}

// Of one GPU.
Checked BytesOf(const GpuMemory& g) {
  return Checked(g.split_bytes) + g.head_bytes + g.embedding_bytes + g.array_bytes + g.activation_bytes;
}

// A worker's pool is in whole blocks, so a conversation takes whole blocks too.
bool FillWorker(const WorkerMemory& w, Plan* plan) {
  const Checked pool = Checked(w.kv_blocks) * w.kv_block_bytes;
  const Checked blocks = Checked::MulDiv(plan->context, 1, w.kv_block_tokens, /*up=*/true);
  if (!pool.ok() || !blocks.ok() || blocks.value() == 0) return false;
  plan->worker_kv_bytes = pool.value();
  plan->worker_kv_conversations = w.kv_blocks / blocks.value();
  plan->pass_bytes = w.matrix_bytes;
  return true;
}

// Fills what needs the bandwidth. Times are those of one card with its share of everything.
bool FillDecode(const Accelerator& a, Plan* plan) {
  const Checked all_bandwidth = Checked(a.bandwidth) * a.count;
  auto pass = [&](Checked bytes) { return Checked::MulDiv(bytes, kNanosPerSecond, all_bandwidth); };
  auto rate = [&](Checked bytes, uint64_t users) {
    return Checked::MulDiv(all_bandwidth, Checked(users) * 1000, bytes);
  };
  const Checked weights = plan->pass_bytes;
  const Checked one = weights + plan->kv_bytes_per_conversation;
  const Checked all = weights + Checked(plan->kv_bytes_per_conversation) * plan->conversations;
  const Checked results[] = {pass(weights), rate(weights, 1), pass(one),
                             rate(one, 1),  pass(all),        rate(all, plan->conversations)};
  for (const Checked& r : results) {
    if (!r.ok()) return false;
  }
  plan->decode = DecodeRoofline{.pass_ns = results[0].value(),
                                .one_user_milli_tokens_s = results[1].value(),
                                .full_pass_ns = results[2].value(),
                                .full_one_user_milli_tokens_s = results[3].value(),
                                .all_users_pass_ns = results[4].value(),
                                .all_users_milli_tokens_s = results[5].value()};
  return true;
}

bool FillPrefill(const Accelerator& a, uint64_t weight_bits, uint64_t matmul_parameters, Plan* plan) {
  const Checked peak = Checked(PeakFlops(a, weight_bits)) * a.count;
  const Checked per_token = Checked(matmul_parameters) * 2;
  const Checked attention = AttentionFlops(plan->input.shape, plan->context);
  const Checked context = per_token * plan->context + attention;
  const Checked rate = Checked::MulDiv(peak, 1000, per_token);
  const Checked time = Checked::MulDiv(context, kNanosPerSecond, peak);
  if (!rate.ok() || !time.ok()) return false;
  plan->prefill = PrefillRoofline{.flops_per_token = per_token.value(),
                                  .peak_flops = peak.value(),
                                  .milli_tokens_s = rate.value(),
                                  .context_flops = context.value(),
                                  .context_attention_flops = attention.value(),
                                  .context_ns = time.value()};
  if (a.bandwidth == 0) return true;
  // batch * flops_per_token / peak >= weights / bandwidth
  const Checked flops_in_a_pass = Checked::MulDiv(Checked(plan->pass_bytes), peak, Checked(a.bandwidth) * a.count);
  const Checked batch = Checked::MulDiv(flops_in_a_pass, 1, per_token, /*up=*/true);
  if (!batch.ok()) return false;
  plan->compute_bound_batch = batch.value();
  return true;
}

}  // namespace

absl::StatusOr<Plan> ComputePlan(const PlanInput& input) {
  Plan plan;
  plan.input = input;
  const ModelShape& shape = input.shape;
  const Accelerator& a = input.accelerator;
  plan.context = input.context != 0 ? input.context : shape.max_context;
  if (plan.context == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape.name, " does not say how long its context is. Give it, as in --context 128K."));
  }
  if (a.count == 0 || a.memory_bytes == 0) {
    return absl::InvalidArgumentError(
        "The accelerator has no memory. Give --memory (and --count), as in --memory 80GB.");
  }
  const absl::StatusOr<uint64_t> weight_bits = BitsOf("--weights-dtype", input.weights_dtype);
  if (!weight_bits.ok()) return weight_bits.status();
  const absl::StatusOr<uint64_t> kv_bits = BitsOf("--kv-dtype", input.kv_dtype);
  if (!kv_bits.ok()) return kv_bits.status();
  const absl::StatusOr<ParameterCount> counted = CountParameters(shape);
  if (!counted.ok()) return counted.status();
  plan.parameters = *counted;

  if (input.gpu.has_value() && a.count != input.gpu->tensor_parallel) {
    return absl::InvalidArgumentError(absl::StrCat("tensor_parallel is ", input.gpu->tensor_parallel, ", and there are ",
                                                   a.count, " accelerators."));
  }
  // What is split and what is whole on each GPU follows from the shapes alone.
  const bool published = shape.published_parameters.has_value() && !input.exact && !input.gpu.has_value();
  plan.ledger_parameters = published ? *shape.published_parameters : counted->total;
  const Checked exact = input.gpu.has_value()      ? BytesOf(*input.gpu) * a.count
                        : input.worker.has_value() ? BytesOf(*input.worker)
                                                   : Checked::MulDiv(counted->total, *weight_bits, 8, true);
  const Checked weights = published ? Checked::MulDiv(plan.ledger_parameters, *weight_bits, 8, true) : exact;
  const Checked total = Checked(a.count) * a.memory_bytes;
  const Checked kv_token =
      Checked::MulDiv(Checked(shape.num_layers) * 2 * shape.num_kv_heads * shape.head_dim, *kv_bits, 8, true);
  const Checked kv_conversation = kv_token * plan.context;
  if (!exact.ok() || !weights.ok() || !total.ok()) return Overflow("The memory");
  if (!kv_conversation.ok()) return Overflow("The KV cache of one conversation");

  plan.total_bytes = total.value();
  plan.weights_bytes = weights.value();
  plan.weights_bytes_exact = exact.value();
  plan.weights_bytes_per_card = Checked::MulDiv(weights, 1, a.count, true).value();
  plan.kv_bytes_per_token = kv_token.value();
  plan.kv_bytes_per_conversation = kv_conversation.value();
  plan.pass_bytes = plan.weights_bytes;
  if (input.gpu.has_value()) {
    plan.pass_bytes = (input.gpu->split_bytes + input.gpu->head_bytes) * a.count;
    plan.gpu_kv_bytes_per_token = plan.kv_bytes_per_token / a.count;  // the backend refuses heads that do not divide
  }
  if (input.worker.has_value() && !FillWorker(*input.worker, &plan)) return Overflow("The worker's memory");
  plan.weights_fit = plan.weights_bytes <= plan.total_bytes && plan.weights_bytes_exact <= plan.total_bytes;
  if (plan.weights_fit) {
    plan.left_bytes = plan.total_bytes - plan.weights_bytes;
    plan.left_bytes_exact = plan.total_bytes - plan.weights_bytes_exact;
    // Both figures must agree on a promise made to users, so the smaller one decides.
    const uint64_t room = std::min(plan.left_bytes, plan.left_bytes_exact);
    plan.conversations = room / plan.kv_bytes_per_conversation;
    plan.kv_tokens = room / plan.kv_bytes_per_token;
  } else {
    plan.missing_bytes = std::max(plan.weights_bytes, plan.weights_bytes_exact) - plan.total_bytes;
  }
  if (a.bandwidth != 0 && !FillDecode(a, &plan)) return Overflow("The decode roofline");
  const uint64_t matmul_parameters = published ? plan.ledger_parameters : counted->matmul;
  // Our GPU kernels multiply in 16 bits, however few the weights have (docs/GPU.md).
  const uint64_t compute_bits = input.gpu.has_value() ? std::max<uint64_t>(*weight_bits, 16) : *weight_bits;
  if (PeakFlops(a, compute_bits) != 0 && !FillPrefill(a, compute_bits, matmul_parameters, &plan)) {
    return Overflow("The prefill roofline");
  }
  return plan;
}

}  // namespace baton::cli
