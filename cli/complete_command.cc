// `baton complete [PROMPT]`: one request, streamed.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/command.h"
#include "cli/connect.h"
#include "cli/generation.h"
#include "cli/interrupts.h"
#include "cli/output.h"
#include "cli/prompt_input.h"
#include "cli/remote_generator.h"
#include "cli/sampling_flags.h"
#include "cli/settings.h"
#include "common/validate_request.h"

namespace baton::cli {
namespace {

struct CompleteFlags {
  std::optional<std::string> prompt;
  std::string token_ids;
  std::string system;
  std::string request_id;
  std::string priority = "standard";
  SamplingFlags sampling;
  double timeout_s = 0;
  bool chat = false;
  bool local = false;
  bool quiet = false;
};

absl::Status CheckUtf8(absl::string_view what, absl::string_view text) {
  const int64_t at = FirstInvalidUtf8(text);
  if (at < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is not UTF-8: byte ", at, " is wrong."));
}

absl::Status SetPrompt(const CompleteFlags& flags, v1::GenerateRequest* request) {
  if (!flags.token_ids.empty()) {
    if (flags.prompt.has_value() || flags.chat) {
      return absl::InvalidArgumentError("--token-ids is the whole prompt; leave PROMPT and --chat out.");
    }
    for (const absl::string_view word : absl::StrSplit(flags.token_ids, absl::ByAnyChar(", "), absl::SkipEmpty())) {
      int32_t id = 0;
      if (!absl::SimpleAtoi(word, &id)) {
        return absl::InvalidArgumentError(
            absl::StrCat("--token-ids has \"", word.substr(0, 40), "\"; expected numbers with commas, as in 1,2,3"));
      }
      request->mutable_token_ids()->add_ids(id);
    }
    return absl::OkStatus();
  }
  const absl::StatusOr<std::string> given = PromptOrStdin(flags.prompt);
  if (!given.ok()) return given.status();
  const std::string& prompt = *given;
  if (absl::Status s = CheckUtf8("The prompt", prompt); !s.ok()) return s;
  if (absl::Status s = CheckUtf8("--system", flags.system); !s.ok()) return s;
  if (!flags.chat) {
    if (!flags.system.empty()) return absl::InvalidArgumentError("--system needs --chat.");
    request->set_prompt(prompt);
    return absl::OkStatus();
  }
  if (!flags.system.empty()) {
    v1::ChatMessage* message = request->mutable_chat()->add_messages();
    message->set_role("system");
    message->set_content(flags.system);
  }
  v1::ChatMessage* message = request->mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content(prompt);
  return absl::OkStatus();
}

absl::StatusOr<v1::GenerateRequest> MakeRequest(const CompleteFlags& flags, const LoadedConfig& settings) {
  v1::GenerateRequest request;
  if (absl::Status s = ToSamplingParams(flags.sampling, request.mutable_sampling()); !s.ok()) return s;
  for (const std::string& stop : request.sampling().stop()) {
    if (absl::Status s = CheckUtf8("--stop", stop); !s.ok()) return s;
  }
  if (absl::Status s = CheckUtf8("--request-id", flags.request_id); !s.ok()) return s;
  request.set_request_id(flags.request_id);
  request.set_priority(flags.priority == "high"    ? v1::PRIORITY_HIGH
                       : flags.priority == "batch" ? v1::PRIORITY_BATCH
                                                   : v1::PRIORITY_STANDARD);
  if (settings.has_flag("served_model_name")) request.set_model(settings.config.served_model_name());
  if (absl::Status s = SetPrompt(flags, &request); !s.ok()) return s;
  return request;
}

// Streams the text of one answer; several are printed whole, each when it ends, so that they do not mix.
class TextPrinter {
 public:
  TextPrinter(const Output& out, size_t num_choices) : out_(out), streams_(num_choices == 1) {}

  void OnText(const std::string& text) {
    if (out_.json() || !streams_ || text.empty()) return;
    Print(text);
  }
  void OnChoiceDone(const Generation& generation, int index) {
    if (out_.json() || streams_) return;
    out_.Note(out_.Paint(Style::kBold, absl::StrCat("[choice ", index, "]")));
    Print(generation.choices()[static_cast<size_t>(index)].text);
    End();
  }
  // Leaves the cursor at the start of a line.
  void End() {
    if (!at_line_start_) out_.Data("\n");
    at_line_start_ = true;
  }

 private:
  void Print(const std::string& text) {
    // A model's words must not drive the terminal; a file or pipe gets them as they are.
    out_.Data(out_.stdout_is_tty() ? Printable(text) : text);
    if (!text.empty()) at_line_start_ = text.back() == '\n';
  }
  const Output& out_;
  const bool streams_;
  bool at_line_start_ = true;
};

int RunComplete(const CompleteFlags& flags, const Invocation& invocation) {
  const Output out(invocation.json);
  const absl::StatusOr<LoadedConfig> settings =
      LoadConfig(ProcessRole::kCommand, invocation.setting_args, BatonEnvironment());
  if (!settings.ok()) return out.Fail(settings.status(), "baton complete --help", kExitUsage);
  for (const std::string& warning : settings->warnings) out.Note(absl::StrCat("warning: ", warning));

  std::atomic<Generator*> running{nullptr};
  std::atomic<bool> interrupted{false};
  // Before the libraries start threads. A second Ctrl-C, or one with nothing to cancel, ends the program here and now:
  // the router notices and frees what the request held.
  Interrupts interrupts([&] {
    Generator* generator = running.load();
    if (interrupted.exchange(true) || generator == nullptr || !generator->Cancel()) ::_exit(kExitInterrupted);
  });
  const absl::StatusOr<absl::Duration> timeout = ParseTimeout(flags.timeout_s);
  if (!timeout.ok()) return out.Fail(timeout.status(), "baton complete --help", kExitUsage);
  const absl::StatusOr<v1::GenerateRequest> request = MakeRequest(flags, *settings);
  if (!request.ok())
    return out.Fail(request.status(), "baton complete \"Hello\"  (or --help)", ExitCodeOf(request.status()));
  absl::StatusOr<std::unique_ptr<Generator>> generator = Connect(settings->config, flags.local, *timeout, out);
  if (!generator.ok()) {
    const bool usage = !settings->config.has_model();
    return out.Fail(generator.status(), "baton complete --local --model FILE.gguf \"Hello\"",
                    usage ? kExitUsage : kExitFailure);
  }
  Generation generation(*request);
  TextPrinter printer(out, generation.choices().size());
  running = generator->get();
  const absl::Status status = (*generator)->Generate(*request, [&](const v1::GenerateResponse& event) {
    int index = 0;
    printer.OnText(generation.Add(event, &index));
    if (event.has_finished()) printer.OnChoiceDone(generation, index);
  });
  running = nullptr;
  printer.End();
  if (interrupted)
    return out.Fail(absl::CancelledError("Interrupted; what the request held is freed."), "", kExitInterrupted);
  if (!status.ok()) return out.Fail(status, NextAfter(status, "complete"), ExitCodeOf(status));
  if (out.json()) {
    out.Json(GenerationToJson(generation));
  } else if (!flags.quiet) {
    out.Raw(out.Paint(Style::kDim, FormatGenerationSummary(generation)));
  }
  return kExitOk;
}

}  // namespace

void AddComplete(CLI::App* app, Invocation* invocation) {
  auto flags = std::make_shared<CompleteFlags>();
  CLI::App* sub = app->add_subcommand("complete", "Continue a prompt, or answer it with --chat; streams the text");
  sub->add_option("prompt", flags->prompt, "The prompt; left out or \"-\": from stdin");
  sub->add_flag("--chat", flags->chat, "Use the model's chat template, with the prompt as the user's message");
  sub->add_option("--system", flags->system, "With --chat: the system message");
  sub->add_option("--token-ids", flags->token_ids, "Token ids in place of a prompt, as in 1,2,3");
  sub->add_flag("--local", flags->local, "Run in this process, without a cluster (needs --model)");
  sub->add_option("--timeout", flags->timeout_s, "Seconds the answer may take; default: the router's limit");
  sub->add_option("--request-id", flags->request_id, "A name for the request in logs");
  sub->add_option("--priority", flags->priority, "high, standard or batch: who goes first when requests wait; default standard")
      ->check(CLI::IsMember({"high", "standard", "batch"}));
  sub->add_flag("-q,--quiet", flags->quiet, "No summary on stderr");
  sub->add_flag("--json", invocation->json, "Print one JSON document on stdout, at the end");
  AddSamplingFlags(sub, &flags->sampling, /*all=*/true);
  sub->footer(HelpFooter({"baton complete \"Once upon a time\" --max-tokens 50",
                          "echo \"Why is the sky blue?\" | baton complete --chat --seed 7 --json",
                          "baton complete --local --model FILE.gguf \"Hello\""},
                         {"router", "served_model_name", "model", "max_context", "kv_memory_mib", "kv_dtype",
                          "numerics", "isa", "threads"}));
  sub->callback(
      [flags, invocation] { invocation->run = [flags, invocation] { return RunComplete(*flags, *invocation); }; });
}

}  // namespace baton::cli
