// `baton tokenize`, `baton detokenize` and `baton tokenizer export`: what a model makes of text.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/command.h"
#include "cli/local_text.h"
#include "cli/output.h"
#include "cli/prompt_input.h"
#include "cli/remote_generator.h"
#include "cli/settings.h"
#include "cli/tokenizer_export.h"
#include "common/validate_request.h"

namespace baton::cli {
namespace {

struct TokenizeFlags {
  std::optional<std::string> text;
  std::string ids;
  bool chat = false;
  bool no_special = false;
  bool local = false;
};

struct ExportFlags {
  std::string model;
  std::string dir;
  bool force = false;
};

absl::StatusOr<std::vector<int32_t>> TokenizeLocally(const v1::TokenizeRequest& request, const std::string& model) {
  const absl::StatusOr<std::unique_ptr<LocalText>> text = LocalText::Load(model);
  if (!text.ok()) return text.status();
  if (request.has_chat()) {
    v1::GenerateRequest prompt;
    *prompt.mutable_chat() = request.chat();
    return (*text)->PromptTokens(prompt);
  }
  model::EncodeOptions options;
  options.add_special = request.add_special_tokens();
  return (*text)->tokenizer().Encode(request.text(), options);
}

absl::StatusOr<std::vector<int32_t>> Tokenize(const TokenizeFlags& flags, const v1::Config& config) {
  const absl::StatusOr<std::string> text = PromptOrStdin(flags.text);
  if (!text.ok()) return text.status();
  if (const int64_t at = FirstInvalidUtf8(*text); at >= 0) {
    return absl::InvalidArgumentError(absl::StrCat("The text is not UTF-8: byte ", at, " is wrong."));
  }
  v1::TokenizeRequest request;
  request.set_add_special_tokens(!flags.no_special);
  if (flags.chat) {
    v1::ChatMessage* message = request.mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content(*text);
  } else {
    request.set_text(*text);
  }
  if (flags.local) return TokenizeLocally(request, config.model());
  v1::TokenizeResponse response;
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = RouterChannel(config);
  if (!channel.ok()) return channel.status();
  RemoteGenerator router(*channel, config.router(), absl::InfiniteDuration());
  if (absl::Status s = router.Tokenize(request, &response); !s.ok()) return s;
  return std::vector<int32_t>(response.token_ids().begin(), response.token_ids().end());
}

absl::StatusOr<std::string> Detokenize(const TokenizeFlags& flags, const v1::Config& config) {
  const absl::StatusOr<std::string> words =
      PromptOrStdin(flags.ids.empty() ? std::nullopt : std::optional<std::string>(flags.ids));
  if (!words.ok()) return words.status();
  v1::DetokenizeRequest request;
  for (const absl::string_view word : absl::StrSplit(*words, absl::ByAnyChar(", \n\t[]"), absl::SkipEmpty())) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(word, &id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", word.substr(0, 40), "\" is no token id; expected numbers, as in 1,2,3"));
    }
    request.add_token_ids(id);
  }
  if (flags.local) {
    const absl::StatusOr<std::unique_ptr<LocalText>> text = LocalText::Load(config.model());
    if (!text.ok()) return text.status();
    return (*text)->tokenizer().Decode(std::vector<int32_t>(request.token_ids().begin(), request.token_ids().end()));
  }
  v1::DetokenizeResponse response;
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = RouterChannel(config);
  if (!channel.ok()) return channel.status();
  RemoteGenerator router(*channel, config.router(), absl::InfiniteDuration());
  if (absl::Status s = router.Detokenize(request, &response); !s.ok()) return s;
  return response.text();
}

int RunTokenize(const TokenizeFlags& flags, bool back, const Invocation& invocation) {
  const Output out(invocation.json);
  const std::string command = back ? "detokenize" : "tokenize";
  const std::string help = absl::StrCat("baton ", command, " --help");
  const absl::StatusOr<LoadedConfig> settings =
      LoadConfig(ProcessRole::kCommand, invocation.setting_args, BatonEnvironment());
  if (!settings.ok()) return out.Fail(settings.status(), help, kExitUsage);
  if (flags.local && !settings->config.has_model()) {
    return out.Fail(absl::InvalidArgumentError("--local needs --model FILE.gguf."), help, kExitUsage);
  }
  if (back) {
    const absl::StatusOr<std::string> text = Detokenize(flags, settings->config);
    if (!text.ok()) return out.Fail(text.status(), NextAfter(text.status(), command), ExitCodeOf(text.status()));
    if (out.json()) {
      out.Json({{"text", ToUtf8(*text)}});
    } else {
      out.Data(absl::StrCat(out.stdout_is_tty() ? Printable(*text) : *text, "\n"));
    }
    return kExitOk;
  }
  const absl::StatusOr<std::vector<int32_t>> ids = Tokenize(flags, settings->config);
  if (!ids.ok()) return out.Fail(ids.status(), NextAfter(ids.status(), command), ExitCodeOf(ids.status()));
  if (out.json()) {
    out.Json({{"count", ids->size()}, {"token_ids", *ids}});
  } else {
    out.Data(absl::StrCat(absl::StrJoin(*ids, " "), "\n"));
  }
  return kExitOk;
}

int RunExport(const ExportFlags& flags, const Invocation& invocation) {
  const Output out(invocation.json);
  const absl::Status status = ExportTokenizerFolder(flags.model, flags.dir, flags.force);
  if (absl::IsAlreadyExists(status)) return out.Fail(status, "give another folder, or --force", kExitUsage);
  if (!status.ok()) return out.Fail(status, "baton inspect FILE.gguf", kExitFailure);
  if (out.json()) {
    out.Json({{"folder", ToUtf8(flags.dir)}});
  } else {
    out.Data(absl::StrCat("wrote the tokenizer of ", flags.model, " to ", flags.dir, "\n"));
  }
  return kExitOk;
}

}  // namespace

void AddTokenize(CLI::App* app, Invocation* invocation) {
  for (const bool back : {false, true}) {
    auto flags = std::make_shared<TokenizeFlags>();
    CLI::App* sub = back ? app->add_subcommand("detokenize", "Token ids to text")
                         : app->add_subcommand("tokenize", "Text to token ids, as the model sees it");
    if (back) {
      sub->add_option("ids", flags->ids, "Token ids, as in 1,2,3; left out or \"-\": from stdin");
    } else {
      sub->add_option("text", flags->text, "The text; left out or \"-\": from stdin");
      sub->add_flag("--chat", flags->chat, "As a user's message in the model's chat template");
      sub->add_flag("--no-special", flags->no_special, "Without the token that begins a text");
    }
    sub->add_flag("--local", flags->local, "In this process, without a cluster (needs --model)");
    sub->add_flag("--json", invocation->json, "Print one JSON document on stdout");
    sub->footer(back ? HelpFooter({"baton detokenize 19556,905", "baton tokenize \"Hello world\" | baton detokenize"},
                                  {"router", "model"})
                     : HelpFooter({"baton tokenize \"Hello world\"",
                                   "baton tokenize --local --model FILE.gguf --chat \"Hello\" --json"},
                                  {"router", "model"}));
    sub->callback([flags, back, invocation] {
      invocation->run = [flags, back, invocation] { return RunTokenize(*flags, back, *invocation); };
    });
  }
  CLI::App* tokenizer = app->add_subcommand("tokenizer", "The model's tokenizer as a folder for other programs");
  tokenizer->require_subcommand(1);
  const std::string footer = HelpFooter({"baton tokenizer export DIR --model FILE.gguf"}, {});
  tokenizer->footer(footer);
  auto flags = std::make_shared<ExportFlags>();
  CLI::App* sub = tokenizer->add_subcommand(
      "export", "Write tokenizer.json, tokenizer_config.json and the chat template, as Hugging Face reads them");
  sub->add_option("dir", flags->dir, "The folder; made if it is not there")->required();
  sub->add_option("--model", flags->model, "A .gguf file")->required();
  sub->add_flag("--force", flags->force, "Replace files that are there");
  sub->add_flag("--json", invocation->json, "Print one JSON document on stdout");
  sub->footer(footer);
  sub->callback(
      [flags, invocation] { invocation->run = [flags, invocation] { return RunExport(*flags, *invocation); }; });
}

}  // namespace baton::cli
