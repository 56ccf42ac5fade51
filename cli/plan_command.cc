// `baton plan MODEL`: turns flags into a PlanInput.
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/gpu_plan.h"
#include "cli/loading_display.h"
#include "cli/model_file.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "cli/plan_model.h"
#include "cli/plan_print.h"
#include "cli/quantity.h"
#include "common/read_file.h"
#include "cli/settings.h"

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
  std::string kv_dtype;
  std::string context;
  uint64_t count = 0;
  uint64_t kv_memory_mib = 0;
  uint64_t tensor_parallel = 0;   // 0: not given
  uint64_t reduction_slices = 0;  // 0: not given
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

bool IsGguf(const std::string& model, const absl::StatusOr<std::string>& text) {
  return absl::EndsWith(model, ".gguf") || (text.ok() && absl::StartsWith(*text, "GGUF"));
}

absl::Status ParseContext(const PlanFlags& flags, uint64_t* context) {
  if (flags.context.empty()) return absl::OkStatus();
  const absl::StatusOr<uint64_t> parsed = ParseTokens("--context", flags.context);
  if (!parsed.ok()) return parsed.status();
  *context = *parsed;
  return absl::OkStatus();
}

// Whether it is the plan of a worker over GPUs of ours.
bool OverGpus(const PlanFlags& flags) { return flags.tensor_parallel != 0 || flags.reduction_slices != 0; }

kernels::TensorParallel SplitOf(const PlanFlags& flags) {
  const int ranks = flags.tensor_parallel == 0 ? 1 : static_cast<int>(flags.tensor_parallel);
  return {.ranks = ranks, .slices = flags.reduction_slices == 0 ? ranks : static_cast<int>(flags.reduction_slices)};
}

// Of the accelerators those that one worker has.
absl::Status TakeGpus(const PlanFlags& flags, Accelerator* accelerator, std::vector<std::string>* remarks) {
  const auto ranks = static_cast<uint64_t>(SplitOf(flags).ranks);
  if (const std::string& kv = flags.kv_dtype; !kv.empty() && kv != "f32" && kv != "f16" && kv != "bf16") {
    return absl::InvalidArgumentError(
        absl::StrCat("--kv-dtype is \"", kv.substr(0, 40), "\"; a worker's is f32, f16 or bf16."));
  }
  const bool counted = flags.count != 0 || accelerator->count > 1;
  if (counted && accelerator->count < ranks) {
    return absl::InvalidArgumentError(absl::StrCat("--tensor-parallel is ", ranks, ", and there are ", accelerator->count,
                                                   " x ", accelerator->name, ". Give more, as in --count ", ranks, "."));
  }
  if (accelerator->count > ranks) {
    remarks->push_back(absl::StrCat("this is one worker; ", accelerator->count, " x ", accelerator->name, " hold ",
                                    accelerator->count / ranks, " like it, each with all of the weights"));
  }
  accelerator->count = ranks;
  return absl::OkStatus();
}

absl::Status UseModelFileOnGpus(const PlanFlags& flags, PlanInput* input) {
  ModelFileOptions options;
  if (!flags.kv_dtype.empty()) options.kv_dtype = flags.kv_dtype;
  options.max_context = input->context;
  options.kv_memory_mib = flags.kv_memory_mib;
  if (!flags.weights_dtype.empty() && flags.weights_dtype != "fp8") {
    return absl::InvalidArgumentError("--weights-dtype of a GGUF file on GPUs is fp8, or left away: the file's own.");
  }
  absl::StatusOr<ModelFileOnGpus> file =
      PlanModelFileOnGpus(flags.model, options, SplitOf(flags), /*fp8=*/flags.weights_dtype == "fp8");
  if (!file.ok()) return file.status();
  input->shape = file->shape;
  input->gpu = file->memory;
  input->kv_dtype = options.kv_dtype;
  input->weights_dtype = "bf16";  // what the file's types are computed in
  if (input->context == 0) input->context = file->shape.max_context;
  return absl::OkStatus();
}

// A model file is loaded as a worker loads it, and planned for this machine unless an accelerator is named.
absl::Status UseModelFile(const PlanFlags& flags, const Output& out, PlanInput* input) {
  LoadingDisplay display(out);
  ModelFileOptions options;
  if (!flags.kv_dtype.empty()) options.kv_dtype = flags.kv_dtype;
  options.max_context = input->context;
  options.kv_memory_mib = flags.kv_memory_mib;
  options.progress = [&display](absl::string_view phase, double fraction) { display.Show(phase, fraction); };
  absl::StatusOr<ModelFile> file = LoadModelFile(flags.model, options);
  if (!file.ok()) return file.status();
  input->shape = file->shape;
  input->worker = file->memory;
  input->kv_dtype = options.kv_dtype;
  input->weights_dtype = "int8";  // what the file's types are computed in
  if (input->context == 0) input->context = file->shape.max_context;
  return absl::OkStatus();
}

absl::StatusOr<Plan> MakePlan(const PlanFlags& flags, const Output& out, std::vector<std::string>* remarks) {
  PlanInput input;
  if (absl::Status s = ParseContext(flags, &input.context); !s.ok()) return s;
  absl::StatusOr<Accelerator> accelerator = AcceleratorOf(flags);
  if (!accelerator.ok()) return accelerator.status();
  input.accelerator = *accelerator;
  if (OverGpus(flags)) {
    if (absl::Status s = TakeGpus(flags, &input.accelerator, remarks); !s.ok()) return s;
  }
  input.exact = flags.exact;

  std::optional<PlanModel> model = NamedModel(flags.model);
  const absl::StatusOr<std::string> text =
      model.has_value() ? absl::StatusOr<std::string>("") : ReadSmallFile(flags.model, kMaxConfigBytes);
  if (!model.has_value() && IsGguf(flags.model, text) && OverGpus(flags)) {
    if (absl::Status s = UseModelFileOnGpus(flags, &input); !s.ok()) return s;
    return ComputePlan(input);
  }
  if (!model.has_value() && IsGguf(flags.model, text)) {
    if (flags.accelerator.empty() && flags.memory.empty()) {
      Accelerator machine = ThisMachine();
      machine.count = input.accelerator.count = 1;
      if (!flags.bandwidth.empty()) machine.bandwidth = input.accelerator.bandwidth;
      if (!flags.flops.empty()) machine.flops_8bit = machine.flops_16bit = input.accelerator.flops_8bit;
      input.accelerator = machine;
    }
    if (absl::Status s = UseModelFile(flags, out, &input); !s.ok()) return s;
    return ComputePlan(input);
  }
  if (!text.ok()) {
    return absl::Status(text.status().code(), absl::StrCat(text.status().message(), " The names that need no file: ",
                                                           absl::StrJoin(ModelNames(), ", "), "."));
  }
  if (!model.has_value()) {
    absl::StatusOr<PlanModel> parsed = ParseHfConfig(*text, flags.model);
    if (!parsed.ok()) return parsed.status();
    model = *std::move(parsed);
  }
  input.shape = model->shape;
  input.weights_dtype = flags.weights_dtype.empty() ? model->weights_dtype : flags.weights_dtype;
  if (!flags.kv_dtype.empty()) input.kv_dtype = flags.kv_dtype;
  if (input.shape.max_context != 0 && input.context > input.shape.max_context) {
    model->remarks.push_back(absl::StrCat("the model was made for ", WithCommas(input.shape.max_context),
                                          " tokens of context, fewer than --context"));
  }
  remarks->insert(remarks->end(), model->remarks.begin(), model->remarks.end());
  if (OverGpus(flags)) {
    const uint64_t context = input.context != 0 ? input.context : input.shape.max_context;
    const absl::StatusOr<GpuMemory> memory =
        GpuMemoryOf(input.shape, input.weights_dtype, {.split = SplitOf(flags), .context = context});
    if (!memory.ok()) return memory.status();
    input.gpu = *memory;
  }
  return ComputePlan(input);
}

int RunPlan(const PlanFlags& flags, bool json) {
  const Output out(json);
  std::vector<std::string> remarks;
  const absl::StatusOr<Plan> plan = MakePlan(flags, out, &remarks);
  if (!plan.ok()) {
    // That it does not fit into this machine is an answer of the machine's, not a mistake in the question.
    return out.Fail(plan.status(), "baton plan llama-3.1-405b --accelerator 8xh100",
                    absl::IsResourceExhausted(plan.status()) ? kExitFailure : kExitUsage);
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
  sub->add_option(
         "model", flags->model,
         absl::StrCat("A .gguf file, a Hugging Face config.json, or one of: ", absl::StrJoin(ModelNames(), ", ")))
      ->required();
  std::vector<std::string> names;
  for (const Accelerator& preset : AcceleratorPresets()) names.push_back(preset.name);
  sub->add_option(
      "--accelerator", flags->accelerator,
      absl::StrCat("Named accelerator with a count, as in 8xh100 (the default; for a GGUF file: this machine); names: ",
                   absl::StrJoin(names, ", ")));
  sub->add_option("--count", flags->count, "Number of accelerators; default: from --accelerator, else 1")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1000000}));
  sub->add_option("--memory", flags->memory, "Memory of one accelerator, as in 80GB");
  sub->add_option("--bandwidth", flags->bandwidth, "Memory bandwidth of one, as in 3.35TB/s");
  sub->add_option("--flops", flags->flops, "Dense FLOP/s of one at the weights' type, as in 1979T");
  sub->add_option("--weights-dtype", flags->weights_dtype,
                  "f32, bf16, f16, fp8, int8, int4 or fp4; default: as the model is published (fp8 for the 405B); for a GGUF "
                  "file with --tensor-parallel: fp8 (the setting numerics), else its own");
  sub->add_option("--kv-dtype", flags->kv_dtype, "Element type of the KV cache; default bf16, for a GGUF file f16");
  sub->add_option("--kv-memory-mib", flags->kv_memory_mib, "GGUF file: MiB of a worker's KV pool; default 512")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 24));
  sub->add_option("--tensor-parallel", flags->tensor_parallel,
                  "GPUs that one worker splits the model over: what each of them holds; refused where a worker would refuse it")
      ->check(CLI::Range(uint64_t{1}, uint64_t{32}));
  sub->add_option("--reduction-slices", flags->reduction_slices,
                  "The setting of that name, with --tensor-parallel; default: as many as GPUs")
      ->check(CLI::Range(uint64_t{1}, uint64_t{32}));
  sub->add_option("--context", flags->context,
                  "Tokens of one conversation, as in 128K (131,072); default: the model's");
  sub->add_flag("--exact", flags->exact, "Count parameters from the shapes even where a round figure is published");
  sub->add_flag("--json", invocation->json, "Print one JSON document on stdout");
  sub->footer(HelpFooter({"baton plan llama-3.1-405b --accelerator 8xh100 --context 128K", "baton plan FILE.gguf",
                          "baton plan llama-3.1-70b --weights-dtype fp8 --accelerator 4xh100 --tensor-parallel 4",
                          "baton plan config.json --memory 80GB --bandwidth 3.35TB/s --flops 1979T --count 8"},
                         {}));
  sub->callback(
      [flags, invocation] { invocation->run = [flags, invocation] { return RunPlan(*flags, invocation->json); }; });
}

}  // namespace baton::cli
