// Where `baton plan` gets a model's shape from: a name it knows or a Hugging Face config.json. (A GGUF file goes
// through the worker's own loader; see model_file.h.)
#ifndef BATON_CLI_PLAN_MODEL_H_
#define BATON_CLI_PLAN_MODEL_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/plan.h"

namespace baton::cli {

struct PlanModel {
  ModelShape shape;
  std::string weights_dtype;         // what the model is published in
  std::vector<std::string> remarks;  // what was assumed
};

// nullopt: not a known name.
std::optional<PlanModel> NamedModel(absl::string_view name);
std::vector<std::string> ModelNames();

// `json` is the text of a config.json, `name` what to call the model. INVALID_ARGUMENT names the field that is missing
// or wrong; UNIMPLEMENTED for architectures whose size follows other rules (mixture of experts, latent attention).
absl::StatusOr<PlanModel> ParseHfConfig(absl::string_view json, absl::string_view name);

}  // namespace baton::cli

#endif  // BATON_CLI_PLAN_MODEL_H_
