// `baton inspect MODEL`.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"
#include "cli/inspect.h"
#include "cli/output.h"
#include "cli/settings.h"

namespace baton::cli {

void AddInspect(CLI::App* app, Invocation* invocation) {
  auto path = std::make_shared<std::string>();
  CLI::App* sub =
      app->add_subcommand("inspect", "What a model file holds: shapes, tensor types, tokenizer, fingerprint");
  sub->add_option("model", *path, "A .gguf file")->required();
  sub->add_flag("--json", invocation->json, "Print one JSON document on stdout");
  sub->footer(HelpFooter({"baton inspect FILE.gguf"}, {}));
  sub->callback([path, invocation] {
    invocation->run = [path, invocation] {
      const Output out(invocation->json);
      const absl::StatusOr<Inspection> inspection = InspectModel(*path);
      if (!inspection.ok()) {
        return out.Fail(inspection.status(),
                        "check the path, or fetch the file again (scripts/setup gets a small model)", kExitFailure);
      }
      if (out.json()) {
        out.Json(InspectionToJson(*inspection));
      } else {
        out.Data(FormatInspection(*inspection));
      }
      return kExitOk;
    };
  });
}

}  // namespace baton::cli
