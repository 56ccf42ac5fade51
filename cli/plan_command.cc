// `baton plan MODEL`: turns flags into a PlanInput.
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "cli/plan_model.h"
#include "cli/plan_print.h"
#include "cli/quantity.h"
#include "cli/read_file.h"

namespace baton::cli {
namespace {

constexpr size_t kMaxConfigBytes = 4 << 20;

struct PlanFlags {
  std::string model;
  std::string accelerator;
  std::string memory;
  std::string bandwidth;
  std::string flops;
  std::string weights_dtype;
  std::string kv_dtype = "bf16";
  std::string context;
  uint64_t count = 0;
  bool exact = false;
};

// The accelerator by name, by figures, or a name with figures that replace its own.
absl::StatusOr<Accelerator> AcceleratorOf(const PlanFlags& flags) {
  Accelerator a;
  const bool by_figures = flags.accelerator.empty() && !flags.memory.empty();
  if (by_figures) {
    a.name = "accelerator";
    a.detail = "figures as given";
  } else {
    absl::StatusOr<Accelerator> found = FindAccelerator(flags.accelerator.empty() ? "8xh100" : flags.accelerator);
    if (!found.ok()) return found.status();
    a = *found;
    if (flags.accelerator.empty()) absl::StrAppend(&a.detail, "; the default, see --accelerator");
  }
  if (flags.count != 0) a.count = flags.count;
  if (!flags.memory.empty()) {
    const auto memory = ParseBytes("--memory", flags.memory);
    if (!memory.ok()) return memory.status();
    a.memory_bytes = *memory;
  }
  if (!flags.bandwidth.empty()) {
    const auto bandwidth = ParseBandwidth("--bandwidth", flags.bandwidth);
    if (!bandwidth.ok()) return bandwidth.status();
    a.bandwidth = *bandwidth;
  }
  if (!flags.flops.empty()) {
    const auto rate = ParseFlops("--flops", flags.flops);
    if (!rate.ok()) return rate.status();
    a.flops_8bit = a.flops_16bit = *rate;
  }
  if (!by_figures && !(flags.memory.empty() && flags.bandwidth.empty() && flags.flops.empty())) {
    absl::StrAppend(&a.detail, "; some figures replaced");
  }
  return a;
}

absl::StatusOr<PlanModel> ModelOf(const std::string& model) {
  if (std::optional<PlanModel> named = NamedModel(model)) return *std::move(named);
  if (absl::EndsWith(model, ".gguf")) {
    return absl::UnimplementedError("GGUF files are not read yet.");
  }
  absl::StatusOr<std::string> text = ReadSmallFile(model, kMaxConfigBytes);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat(text.status().message(), " The names that need no file: ",
                                     absl::StrJoin(ModelNames(), ", "), "."));
  }
  if (absl::StartsWith(*text, "GGUF")) return absl::UnimplementedError("GGUF files are not read yet.");
  return ParseHfConfig(*text, model);
}

absl::StatusOr<Plan> MakePlan(const PlanFlags& flags, std::vector<std::string>* remarks) {
  PlanInput input;
  absl::StatusOr<PlanModel> model = ModelOf(flags.model);
  if (!model.ok()) return model.status();
  absl::StatusOr<Accelerator> accelerator = AcceleratorOf(flags);
  if (!accelerator.ok()) return accelerator.status();
  input.shape = model->shape;
  input.accelerator = *accelerator;
  input.weights_dtype = flags.weights_dtype.empty() ? model->weights_dtype : flags.weights_dtype;
  input.kv_dtype = flags.kv_dtype;
  input.exact = flags.exact;
  if (!flags.context.empty()) {
    const auto context = ParseTokens("--context", flags.context);
    if (!context.ok()) return context.status();
    input.context = *context;
    if (input.shape.max_context != 0 && *context > input.shape.max_context) {
      model->remarks.push_back(absl::StrCat("the model was made for ", WithCommas(input.shape.max_context),
                                            " tokens of context, fewer than --context"));
    }
  }
  *remarks = model->remarks;
  return ComputePlan(input);
}

int RunPlan(const PlanFlags& flags, bool json) {
  const Output out(json);
  std::vector<std::string> remarks;
  const absl::StatusOr<Plan> plan = MakePlan(flags, &remarks);
  if (!plan.ok()) {
    return out.Fail(plan.status(), "baton plan llama-3.1-405b --accelerator 8xh100", kExitUsage);
  }
  if (json) {
    out.Json(PlanToJson(*plan, remarks));
  } else {
    out.Data(FormatPlan(*plan, remarks));
  }
  return kExitOk;
}

}  // namespace

void AddPlan(CLI::App* app, Invocation* invocation) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* sub = app->add_subcommand("plan", "What a model needs and how fast it can be at best (memory, roofline)");
  sub->add_option("model", flags->model,
                  absl::StrCat("A .gguf file, a Hugging Face config.json, or one of: ", absl::StrJoin(ModelNames(), ", ")))
      ->required();
  std::vector<std::string> names;
  for (const Accelerator& preset : AcceleratorPresets()) names.push_back(preset.name);
  sub->add_option("--accelerator", flags->accelerator,
                  absl::StrCat("Named accelerator with a count, as in 8xh100 (the default); names: ",
                               absl::StrJoin(names, ", ")));
  sub->add_option("--count", flags->count, "Number of accelerators; default: from --accelerator, else 1")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1000000}));
  sub->add_option("--memory", flags->memory, "Memory of one accelerator, as in 80GB");
  sub->add_option("--bandwidth", flags->bandwidth, "Memory bandwidth of one, as in 3.35TB/s");
  sub->add_option("--flops", flags->flops, "Dense FLOP/s of one at the weights' type, as in 1979T");
  sub->add_option("--weights-dtype", flags->weights_dtype,
                  "f32, bf16, f16, fp8, int8, int4 or fp4; default: as the model is published (fp8 for the 405B)");
  sub->add_option("--kv-dtype", flags->kv_dtype, "Element type of the KV cache; default bf16");
  sub->add_option("--context", flags->context, "Tokens of one conversation, as in 128K (131,072); default: the model's");
  sub->add_flag("--exact", flags->exact, "Count parameters from the shapes even where a round figure is published");
  sub->add_flag("--json", invocation->json, "Print one JSON document on stdout");
  sub->callback([flags, invocation] { invocation->run = [flags, invocation] { return RunPlan(*flags, invocation->json); }; });
}

}  // namespace baton::cli
