#include "cli/plan_print.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/quantity.h"

namespace baton::cli {
namespace {

void Row(absl::string_view label, absl::string_view value, absl::string_view detail, std::string* out) {
  // %-s pads bytes, and every label here is ASCII.
  std::string line = absl::StrFormat("  %-26s%18s   %s", label, value, detail);
  line.erase(line.find_last_not_of(' ') + 1);
  absl::StrAppend(out, line, "\n");
}

std::string Milliseconds(uint64_t ns, int digits) { return absl::StrCat(FormatMilli(ns / 1000, digits), " ms"); }

std::string Duration(uint64_t ns) {
  return ns < 1000000000 ? Milliseconds(ns, 1) : absl::StrCat(FormatMilli(ns / 1000000, 1), " s");
}

// As "about": whole gigabytes from ten up, one decimal below.
std::string About(uint64_t bytes) { return FormatBytes(bytes, bytes >= 10000000000 ? 0 : 1); }

// "3.35 TB/s"
std::string FormatRate(uint64_t bytes_per_s) {
  if (bytes_per_s < 1000000000000) return absl::StrCat(FormatBytes(bytes_per_s, 1), "/s");
  return absl::StrCat(FormatMilli(bytes_per_s / 1000000000, 2), " TB/s");
}

std::string WeightsDetail(const Plan& plan) {
  const PlanInput& in = plan.input;
  if (in.gpu.has_value()) {
    return absl::StrCat(WithCommas(plan.weights_bytes), " bytes on all together, what is whole on each counted ",
                        in.gpu->tensor_parallel, in.gpu->tensor_parallel == 1 ? " time" : " times");
  }
  if (in.worker.has_value()) {
    const WorkerMemory& w = *in.worker;
    return absl::StrCat(WithCommas(plan.weights_bytes), " bytes: matrices ", WithCommas(w.matrix_bytes), ", embedding ",
                        WithCommas(w.embedding_bytes), ", vectors ", WithCommas(w.vector_bytes), ", scratch ",
                        WithCommas(w.scratch_bytes));
  }
  if (plan.ledger_parameters != plan.parameters.total) {
    return absl::StrCat("the published ", plan.ledger_parameters / 1000000000, " billion parameters in ",
                        in.weights_dtype, "; counted from the shapes: ", WithCommas(plan.weights_bytes_exact),
                        " bytes");
  }
  return absl::StrCat(WithCommas(plan.parameters.total), " parameters in ", in.weights_dtype, ": ",
                      WithCommas(plan.weights_bytes), " bytes");
}

void FormatMemory(const Plan& plan, std::string* out) {
  const PlanInput& in = plan.input;
  const Accelerator& a = in.accelerator;
  absl::StrAppend(out, "Memory (decimal units)\n");
  Row("memory", About(plan.total_bytes), absl::StrCat(a.count, " x ", FormatBytes(a.memory_bytes, 0)), out);
  Row(in.worker.has_value() || in.gpu.has_value() ? "weights and scratch" : "weights", About(plan.weights_bytes),
      WeightsDetail(plan), out);
  if (a.count > 1 && !in.gpu.has_value()) {
    Row("weights on each card", FormatBytes(plan.weights_bytes_per_card, 1),
        absl::StrCat("split evenly over ", a.count), out);
  }
  if (plan.weights_fit) {
    const bool same = plan.left_bytes == plan.left_bytes_exact;
    Row("left for KV", About(plan.left_bytes),
        same ? absl::StrCat(WithCommas(plan.left_bytes), " bytes")
             : absl::StrCat(FormatBytes(plan.left_bytes_exact, 1), " with the parameters counted from the shapes"),
        out);
  } else {
    Row("missing", About(plan.missing_bytes), "the weights do not fit", out);
  }
  const ModelShape& s = in.shape;
  Row("KV cache of one token", absl::StrCat(WithCommas(plan.kv_bytes_per_token), " bytes"),
      absl::StrCat(s.num_layers, " layers x 2 x ", s.num_kv_heads, " KV heads x ", s.head_dim, " in ", in.kv_dtype),
      out);
  Row("KV of one conversation", About(plan.kv_bytes_per_conversation),
      absl::StrCat(WithCommas(plan.context), " tokens: ", WithCommas(plan.kv_bytes_per_conversation), " bytes"), out);
  Row("conversations at once", WithCommas(plan.conversations),
      absl::StrCat("of ", WithCommas(plan.context), " tokens; room for ", WithCommas(plan.kv_tokens), " tokens in all"),
      out);
}

void FormatWorker(const Plan& plan, std::string* out) {
  if (!plan.input.worker.has_value()) return;
  const WorkerMemory& w = *plan.input.worker;
  absl::StrAppend(out, "One worker, as it allocates (", w.backend, ")\n");
  Row("KV pool", About(plan.worker_kv_bytes),
      absl::StrCat(WithCommas(w.kv_blocks), " blocks x ", WithCommas(w.kv_block_bytes),
                   " bytes: ", WithCommas(plan.worker_kv_bytes), " bytes, ",
                   WithCommas(w.kv_blocks * w.kv_block_tokens), " tokens"),
      out);
  Row("conversations in the pool", WithCommas(plan.worker_kv_conversations),
      absl::StrCat("of ", WithCommas(plan.context), " tokens (--kv-memory-mib makes it larger)"), out);
  Row("in all", About(plan.weights_bytes + plan.worker_kv_bytes),
      absl::StrCat(WithCommas(plan.weights_bytes + plan.worker_kv_bytes), " bytes"), out);
}

void FormatGpu(const Plan& plan, std::string* out) {
  if (!plan.input.gpu.has_value()) return;
  const GpuMemory& g = *plan.input.gpu;
  const uint64_t n = g.tensor_parallel, heads = plan.input.shape.num_kv_heads;
  const auto row = [out](absl::string_view label, uint64_t bytes, absl::string_view detail) {
    Row(label, FormatBytes(bytes, 1), absl::StrCat(WithCommas(bytes), " bytes", detail.empty() ? "" : ": ", detail), out);
  };
  absl::StrAppend(out, n == 1 ? "The GPU" : absl::StrCat("Each of the ", n, " GPUs"), " of one worker (tensor_parallel ", n,
                  ", reduction_slices ", g.reduction_slices, ")\n");
  row("weights that are split", g.split_bytes, absl::StrCat("attention and feed-forward, 1 / ", n, " of them"));
  row("head", g.head_bytes, plan.input.shape.tied_embeddings ? "and embedding, whole on each" : "whole on each");
  if (g.embedding_bytes > 0) row("embedding", g.embedding_bytes, "whole on each");
  row("norms, rotary angles", g.array_bytes, "whole on each");
  row("activations", g.activation_bytes,
      absl::StrCat("of a step of ", WithCommas(g.batch_tokens), " tokens (max_batch_tokens), whole on each"));
  row("in all, without KV", plan.weights_bytes_per_card, "");
  if (plan.weights_fit) row("left for KV", plan.input.accelerator.memory_bytes - plan.weights_bytes_per_card, "");
  Row("KV of one token", absl::StrCat(WithCommas(plan.gpu_kv_bytes_per_token), " bytes"),
      absl::StrCat(heads / n, " of ", heads, " KV heads"), out);
  if (g.kv_pool_bytes > 0) row("its part of the KV pool", g.kv_pool_bytes, "kv_memory_mib is all GPUs' together");
}

void FormatDecode(const Plan& plan, std::string* out) {
  if (!plan.decode.has_value()) {
    absl::StrAppend(out, "Decode: give --bandwidth (measured or from the data sheet) for its roofline\n");
    return;
  }
  const DecodeRoofline& d = *plan.decode;
  absl::StrAppend(out, "Decode (bound by memory bandwidth)\n");
  Row("one pass over the weights", absl::StrCat("about ", Milliseconds(d.pass_ns, 1)),
      absl::StrCat(FormatBytes(plan.pass_bytes / plan.input.accelerator.count, 1), " a card at ",
                   FormatRate(plan.input.accelerator.bandwidth)),
      out);
  Row("one user, at most", absl::StrCat(FormatMilli(d.one_user_milli_tokens_s, 1), " tokens/s"),
      "one token a pass, no other cost counted", out);
  Row("one user, full context", absl::StrCat(FormatMilli(d.full_one_user_milli_tokens_s, 1), " tokens/s"),
      absl::StrCat(Milliseconds(d.full_pass_ns, 1), " a pass: the weights and that conversation's KV"), out);
  if (plan.conversations > 1) {
    Row(absl::StrCat("all ", WithCommas(plan.conversations), " conversations"),
        absl::StrCat(FormatMilli(d.all_users_milli_tokens_s, 1), " tokens/s"),
        absl::StrCat(Milliseconds(d.all_users_pass_ns, 1), " a pass that serves them together"), out);
  }
  if (plan.compute_bound_batch.has_value()) {
    Row("turns compute-bound at", absl::StrCat("batch ", WithCommas(*plan.compute_bound_batch)),
        "sequences; below that, a larger batch costs almost no time", out);
  }
}

void FormatPrefill(const Plan& plan, std::string* out) {
  if (!plan.prefill.has_value()) {
    absl::StrAppend(out, "Prefill: give --flops (dense, at the weights' type) for its roofline\n");
    return;
  }
  const PrefillRoofline& p = *plan.prefill;
  absl::StrAppend(out, "Prefill (bound by compute)\n");
  Row("work of one token", FormatFlops(p.flops_per_token, 0), "2 x parameters, attention not counted", out);
  Row("peak", absl::StrCat(FormatFlops(p.peak_flops, 1), "/s"),
      absl::StrCat("all cards, ", plan.input.gpu.has_value() ? "16 bits" : plan.input.weights_dtype), out);
  Row("short prompts, at most", absl::StrCat(FormatMilli(p.milli_tokens_s, 0), " tokens/s"), "at peak", out);
  Row("first token, full context", absl::StrCat(">= ", Duration(p.context_ns)),
      absl::StrCat(WithCommas(plan.context), " tokens at peak, attention included (",
                   FormatFlops(p.context_attention_flops, 0), " of ", FormatFlops(p.context_flops, 0), ")"),
      out);
}

double Ms(uint64_t ns) { return static_cast<double>(ns) / 1e6; }
double Unit(uint64_t milli) { return static_cast<double>(milli) / 1e3; }

}  // namespace

std::string FormatPlan(const Plan& plan, const std::vector<std::string>& remarks) {
  const PlanInput& in = plan.input;
  std::string out = absl::StrCat(in.shape.name, " on ", in.accelerator.count, " x ", in.accelerator.name, "\n");
  absl::StrAppend(&out, "  ", in.accelerator.detail, "\n");
  FormatMemory(plan, &out);
  FormatWorker(plan, &out);
  FormatGpu(plan, &out);
  FormatDecode(plan, &out);
  FormatPrefill(plan, &out);
  for (const std::string& remark : remarks) absl::StrAppend(&out, "Note: ", remark, ".\n");
  if (!plan.weights_fit) {
    absl::StrAppend(&out, "Does not fit: ", WithCommas(plan.missing_bytes),
                    " bytes are missing. Add cards (--count), or use a smaller --weights-dtype.\n");
  } else if (plan.conversations == 0) {
    absl::StrAppend(&out, "Not one conversation of ", WithCommas(plan.context),
                    " tokens fits. Shorten --context, add cards (--count), or use a smaller --kv-dtype.\n");
  }
  return out;
}

nlohmann::ordered_json PlanToJson(const Plan& plan, const std::vector<std::string>& remarks) {
  const ModelShape& s = plan.input.shape;
  const Accelerator& a = plan.input.accelerator;
  nlohmann::ordered_json json;
  json["model"] = {{"name", s.name},
                   {"architecture", s.architecture},
                   {"source", s.source},
                   {"num_layers", s.num_layers},
                   {"num_kv_heads", s.num_kv_heads},
                   {"head_dim", s.head_dim},
                   {"parameters", plan.ledger_parameters},
                   {"parameters_counted", plan.parameters.total},
                   {"weights_dtype", plan.input.weights_dtype},
                   {"kv_dtype", plan.input.kv_dtype}};
  json["accelerator"] = {{"name", a.name},
                         {"detail", a.detail},
                         {"count", a.count},
                         {"memory_bytes", a.memory_bytes},
                         {"bandwidth_bytes_per_s", a.bandwidth},
                         {"flops_8bit", a.flops_8bit},
                         {"flops_16bit", a.flops_16bit}};
  json["memory"] = {{"total_bytes", plan.total_bytes},
                    {"weights_bytes", plan.weights_bytes},
                    {"weights_bytes_exact", plan.weights_bytes_exact},
                    {"weights_bytes_per_card", plan.weights_bytes_per_card},
                    {"fits", plan.weights_fit},
                    {"missing_bytes", plan.missing_bytes},
                    {"left_bytes", plan.left_bytes},
                    {"left_bytes_exact", plan.left_bytes_exact},
                    {"context_tokens", plan.context},
                    {"kv_bytes_per_token", plan.kv_bytes_per_token},
                    {"kv_bytes_per_conversation", plan.kv_bytes_per_conversation},
                    {"conversations", plan.conversations},
                    {"kv_tokens", plan.kv_tokens}};
  json["worker"] = nullptr;
  if (plan.input.worker.has_value()) {
    const WorkerMemory& w = *plan.input.worker;
    json["worker"] = {{"backend", w.backend},
                      {"matrix_bytes", w.matrix_bytes},
                      {"embedding_bytes", w.embedding_bytes},
                      {"vector_bytes", w.vector_bytes},
                      {"scratch_bytes", w.scratch_bytes},
                      {"kv_block_bytes", w.kv_block_bytes},
                      {"kv_block_tokens", w.kv_block_tokens},
                      {"kv_blocks", w.kv_blocks},
                      {"kv_bytes", plan.worker_kv_bytes},
                      {"kv_conversations", plan.worker_kv_conversations},
                      {"total_bytes", plan.weights_bytes + plan.worker_kv_bytes}};
  }
  json["gpu"] = nullptr;
  if (plan.input.gpu.has_value()) {
    const GpuMemory& g = *plan.input.gpu;
    json["gpu"] = {{"tensor_parallel", g.tensor_parallel},
                   {"reduction_slices", g.reduction_slices},
                   {"split_bytes", g.split_bytes},
                   {"head_bytes", g.head_bytes},
                   {"embedding_bytes", g.embedding_bytes},
                   {"array_bytes", g.array_bytes},
                   {"activation_bytes", g.activation_bytes},
                   {"batch_tokens", g.batch_tokens},
                   {"total_bytes", plan.weights_bytes_per_card},
                   {"kv_bytes_per_token", plan.gpu_kv_bytes_per_token},
                   {"kv_pool_bytes", g.kv_pool_bytes}};
  }
  json["decode"] = nullptr;
  if (plan.decode.has_value()) {
    const DecodeRoofline& d = *plan.decode;
    json["decode"] = {{"pass_ms", Ms(d.pass_ns)},
                      {"one_user_tokens_per_s", Unit(d.one_user_milli_tokens_s)},
                      {"full_context_pass_ms", Ms(d.full_pass_ns)},
                      {"full_context_tokens_per_s", Unit(d.full_one_user_milli_tokens_s)},
                      {"all_conversations_pass_ms", Ms(d.all_users_pass_ns)},
                      {"all_conversations_tokens_per_s", Unit(d.all_users_milli_tokens_s)}};
  }
  json["prefill"] = nullptr;
  if (plan.prefill.has_value()) {
    const PrefillRoofline& p = *plan.prefill;
    json["prefill"] = {{"flops_per_token", p.flops_per_token},
                       {"peak_flops_per_s", p.peak_flops},
                       {"tokens_per_s", Unit(p.milli_tokens_s)},
                       {"context_flops", p.context_flops},
                       {"context_attention_flops", p.context_attention_flops},
                       {"context_first_token_ms", Ms(p.context_ns)}};
  }
  json["compute_bound_batch"] = nullptr;
  if (plan.compute_bound_batch.has_value()) json["compute_bound_batch"] = *plan.compute_bound_batch;
  json["remarks"] = remarks;
  return json;
}

}  // namespace baton::cli
