// `baton chat`: a conversation. Ctrl-C ends the running answer only.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/connect.h"
#include "cli/generation.h"
#include "cli/interrupts.h"
#include "cli/output.h"
#include "cli/remote_generator.h"
#include "cli/sampling_flags.h"
#include "cli/settings.h"
#include "common/validate_request.h"

namespace baton::cli {
namespace {

struct ChatFlags {
  std::string system;
  SamplingFlags sampling;
  double timeout_s = 0;
  bool local = false;
};

constexpr char kHelp[] =
    "/help             these words\n"
    "/history          the conversation so far\n"
    "/reset            forget the conversation\n"
    "/stats            tokens so far, and how the last answer ran\n"
    "/system TEXT      start anew with this system message\n"
    "/seed N           and /temperature, /top-p, /max-tokens: as the flags; without a value the default\n"
    "/quit             leave (so does the end of input)\n"
    "Ctrl-C            stop the answer that is being written";

class ChatSession {
 public:
  ChatSession(const ChatFlags& flags, const Output& out, Generator* generator, std::atomic<bool>* cancelled)
      : flags_(flags),
        out_(out),
        generator_(generator),
        cancelled_(cancelled),
        interactive_(::isatty(STDIN_FILENO) == 1) {
    Reset();
  }

  // Until /quit or the end of stdin. The exit code: with piped input, 1 when any request failed.
  int Run() {
    if (interactive_) out_.Note("Type a message. /help lists commands; Ctrl-C stops an answer, /quit leaves.");
    std::string line;
    while (true) {
      if (interactive_) out_.Raw(out_.Paint(Style::kBold, "> "));
      cancelled_->store(false);
      if (!std::getline(std::cin, line)) break;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      const std::string trimmed(absl::StripAsciiWhitespace(line));
      if (trimmed.empty()) continue;
      if (trimmed[0] == '/') {
        if (!Command(trimmed)) return exit_code_;
        continue;
      }
      cancelled_->store(false);  // a Ctrl-C at the prompt is not about this message
      Ask(line);
    }
    if (interactive_) out_.Note("");
    return exit_code_;
  }

 private:
  void Reset() {
    history_.Clear();
    if (flags_.system.empty()) return;
    v1::ChatMessage* message = history_.add_messages();
    message->set_role("system");
    message->set_content(flags_.system);
  }

  // False: leave.
  bool Command(const std::string& command) {
    if (command == "/quit" || command == "/exit") return false;
    if (command == "/reset") {
      Reset();
      out_.Note("The conversation starts anew.");
    } else if (command == "/stats") {
      out_.Note(absl::StrCat("conversation: ", history_.messages_size(), " messages, ", num_answers_, " answers, ",
                             prompt_tokens_, " prompt tokens (", cached_tokens_, " cached), ", completion_tokens_,
                             " completion tokens"));
      if (!last_summary_.empty()) out_.Raw(last_summary_);
    } else if (command == "/history") {
      for (const v1::ChatMessage& message : history_.messages()) {
        out_.Note(absl::StrCat(out_.Paint(Style::kBold, absl::StrCat(message.role(), ":")), " ",
                               Printable(message.content())));
      }
    } else if (command == "/help") {
      out_.Note(kHelp);
    } else if (!Setting(command)) {
      out_.Note(absl::StrCat("There is no command ", Printable(command), "; /help lists them."));
    }
    return true;
  }

  // "/seed 7" and the like: what the flags of the same names say, from the next message on. False: there is no such
  // command.
  bool Setting(const std::string& command) {
    const size_t space = command.find(' ');
    const std::string name = command.substr(0, space);
    const std::string value(
        absl::StripAsciiWhitespace(space == std::string::npos ? absl::string_view() : command.c_str() + space));
    SamplingFlags changed = flags_.sampling;
    bool understood = true;
    if (name == "/system") {
      if (FirstInvalidUtf8(value) >= 0) {
        out_.Note("That is not UTF-8.");
        return true;
      }
      flags_.system = value;
      Reset();
      out_.Note(value.empty() ? "The conversation starts anew, without a system message."
                              : "The conversation starts anew with that system message.");
      return true;
    } else if (name == "/seed") {
      changed.seed = value;
    } else if (name == "/temperature") {
      understood = Parse(value, &changed.temperature);
    } else if (name == "/top-p") {
      understood = Parse(value, &changed.top_p);
    } else if (name == "/max-tokens") {
      understood = Parse(value, &changed.max_tokens);
    } else {
      return false;
    }
    v1::SamplingParams ignored;
    if (!understood || !ToSamplingParams(changed, &ignored).ok()) {
      out_.Note(absl::StrCat("\"", Printable(value), "\" is no value of ", name, "; expected a number, or nothing for ",
                             "the default."));
      return true;
    }
    flags_.sampling = changed;
    out_.Note(absl::StrCat(name.substr(1), " is ", value.empty() ? "as by default" : value, " from here on."));
    return true;
  }

  template <typename T>
  static bool Parse(const std::string& text, std::optional<T>* value) {
    value->reset();
    if (text.empty()) return true;
    double number = 0;
    if (!absl::SimpleAtod(text, &number) || !(std::abs(number) < 1e9)) return false;
    *value = static_cast<T>(number);
    return static_cast<double>(**value) == number || std::is_floating_point_v<T>;
  }

  void Ask(const std::string& line) {
    if (FirstInvalidUtf8(line) >= 0) {
      Failed(absl::InvalidArgumentError("The message is not UTF-8."));
      return;
    }
    v1::ChatMessage* message = history_.add_messages();
    message->set_role("user");
    message->set_content(line);
    v1::GenerateRequest request;
    *request.mutable_chat() = history_;
    if (absl::Status s = ToSamplingParams(flags_.sampling, request.mutable_sampling()); !s.ok()) {
      history_.mutable_messages()->RemoveLast();
      Failed(s);
      return;
    }
    Generation generation(request);
    const absl::Status status = generator_->Generate(request, [&](const v1::GenerateResponse& event) {
      int index = 0;
      const std::string text = generation.Add(event, &index);
      if (!out_.json() && !text.empty()) out_.Data(out_.stdout_is_tty() ? Printable(text) : text);
    });
    const std::string& answer = generation.choices()[0].text;
    if (!out_.json() && !answer.empty() && answer.back() != '\n') out_.Data("\n");
    const bool interrupted = cancelled_->load();
    // What was shown stays in the conversation, so that the next message can refer to it.
    if (answer.empty()) {
      history_.mutable_messages()->RemoveLast();
    } else {
      v1::ChatMessage* reply = history_.add_messages();
      reply->set_role("assistant");
      reply->set_content(answer);
    }
    if (interrupted && !status.ok()) {
      out_.Note("(stopped)");
      return;
    }
    if (!status.ok()) {
      Failed(status);
      return;
    }
    Count(generation);
  }

  void Count(const Generation& generation) {
    ++num_answers_;
    prompt_tokens_ += generation.summary().usage().prompt_tokens();
    cached_tokens_ += generation.summary().usage().cached_tokens();
    completion_tokens_ += generation.summary().usage().completion_tokens();
    last_summary_ = FormatGenerationSummary(generation);
    if (out_.json()) out_.Json(GenerationToJson(generation));
  }

  void Failed(const absl::Status& status) {
    std::string next = NextAfter(status, "chat");
    // Of a conversation, the usual cause is that it outgrew the context.
    if (absl::IsInvalidArgument(status) && history_.messages_size() > 2) next = "/reset starts a shorter conversation";
    out_.Fail(status, next, kExitFailure);
    if (!interactive_) exit_code_ = kExitFailure;
  }

  ChatFlags flags_;
  const Output& out_;
  Generator* const generator_;
  std::atomic<bool>* const cancelled_;
  const bool interactive_;
  v1::Chat history_;
  int exit_code_ = kExitOk;
  int num_answers_ = 0;
  uint64_t prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0;
  std::string last_summary_;
};

int RunChat(const ChatFlags& flags, const Invocation& invocation) {
  const Output out(invocation.json);
  const absl::StatusOr<LoadedConfig> settings =
      LoadConfig(ProcessRole::kCommand, invocation.setting_args, BatonEnvironment());
  if (!settings.ok()) return out.Fail(settings.status(), "baton chat --help", kExitUsage);
  std::atomic<Generator*> generator{nullptr};
  std::atomic<bool> cancelled{false};
  Interrupts interrupts([&] {
    Generator* g = generator.load();
    const bool again = cancelled.exchange(true);
    if (g != nullptr && g->Cancel()) return;
    // Nothing runs: the first is a slip, the second is meant.
    if (g == nullptr || again) ::_exit(kExitInterrupted);
    out.Note("\n(Ctrl-C again, or /quit, leaves)");
    if (::isatty(STDIN_FILENO) == 1) out.Raw(out.Paint(Style::kBold, "> "));
  });
  const absl::StatusOr<absl::Duration> timeout = ParseTimeout(flags.timeout_s);
  if (!timeout.ok()) return out.Fail(timeout.status(), "baton chat --help", kExitUsage);
  if (FirstInvalidUtf8(flags.system) >= 0) {
    return out.Fail(absl::InvalidArgumentError("--system is not UTF-8."), "baton chat --help", kExitUsage);
  }
  absl::StatusOr<std::unique_ptr<Generator>> connected = Connect(settings->config, flags.local, *timeout, out);
  if (!connected.ok()) {
    return out.Fail(connected.status(), "baton chat --local --model FILE.gguf",
                    settings->config.has_model() ? kExitFailure : kExitUsage);
  }
  // A missing router is better said before the first message is typed.
  if (auto* remote = dynamic_cast<RemoteGenerator*>(connected->get())) {
    v1::ListModelsResponse models;
    if (absl::Status s = remote->ListModels(&models); !s.ok()) return out.Fail(s, NextAfter(s, "chat"), kExitFailure);
  }
  ChatSession session(flags, out, connected->get(), &cancelled);
  generator = connected->get();
  const int exit_code = session.Run();
  generator = nullptr;
  return exit_code;
}

}  // namespace

void AddChat(CLI::App* app, Invocation* invocation) {
  auto flags = std::make_shared<ChatFlags>();
  flags->sampling.default_max_tokens = 512;
  CLI::App* sub = app->add_subcommand("chat", "Talk to the model; also reads messages from a pipe, one a line");
  sub->add_option("--system", flags->system, "The system message");
  sub->add_flag("--local", flags->local, "Run in this process, without a cluster (needs --model)");
  sub->add_option("--timeout", flags->timeout_s, "Seconds an answer may take; default: the router's limit");
  sub->add_flag("--json", invocation->json, "Print one JSON line on stdout for each answer");
  AddSamplingFlags(sub, &flags->sampling, /*all=*/false);
  sub->footer(
      HelpFooter({"baton chat --system \"Be brief.\"", "printf 'Hi\\nAnd in French?\\n' | baton chat --seed 1",
                  "baton chat --local --model FILE.gguf"},
                 {"router", "model", "max_context", "kv_memory_mib", "kv_dtype", "numerics", "isa", "threads"}));
  sub->callback(
      [flags, invocation] { invocation->run = [flags, invocation] { return RunChat(*flags, *invocation); }; });
}

}  // namespace baton::cli
