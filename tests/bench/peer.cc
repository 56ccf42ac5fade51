#include "tests/bench/peer.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace baton::bench {
namespace {

// Runs a program to its end; what it wrote to standard output, and to standard error if `with_errors`.
struct Output {
  int status = -1;
  std::string text;
};

Output Execute(const std::vector<std::string>& command, int cpu, const std::string& preload, bool with_errors) {
  Output output;
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return output;
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const std::string preload_variable = absl::StrCat("LD_PRELOAD=", preload);
  std::vector<char*> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  if (!preload.empty()) variables.push_back(const_cast<char*>(preload_variable.c_str()));
  variables.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(fds[1], STDOUT_FILENO);
    const int null = open("/dev/null", O_WRONLY);
    dup2(with_errors ? fds[1] : null, STDERR_FILENO);
    if (cpu >= 0) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(cpu, &set);
      sched_setaffinity(0, sizeof set, &set);
    }
    execve(argv[0], argv.data(), variables.data());
    _exit(127);
  }
  close(fds[1]);
  char buffer[4096];
  for (ssize_t n; (n = read(fds[0], buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR);) {
    if (n > 0) output.text.append(buffer, static_cast<size_t>(n));
  }
  close(fds[0]);
  if (child > 0) waitpid(child, &output.status, 0);
  return output;
}

std::string Tail(const std::string& text) { return text.size() <= 400 ? text : text.substr(text.size() - 400); }

}  // namespace

std::string Cell::name() const {
  if (prefill) return absl::StrCat("prefill ", tokens);
  return absl::StrCat("decode b", batch, " c", context);
}

absl::StatusOr<Peer> Peer::Parse(absl::string_view text) {
  Peer peer;
  std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  if (words.empty()) return absl::InvalidArgumentError("--peer is empty; give [NAME=]PATH [ARGUMENT...]");
  const std::vector<std::string> parts = absl::StrSplit(words[0], absl::MaxSplits('=', 1));
  peer.path_ = parts.back();
  const size_t slash = peer.path_.rfind('/');
  const std::string program = slash == std::string::npos ? peer.path_ : peer.path_.substr(slash + 1);
  peer.name_ = parts.size() == 2 ? parts[0] : program;
  peer.arguments_.assign(words.begin() + 1, words.end());
  peer.kind_ = absl::StrContains(program, "batched") ? Kind::kBatchedBench : Kind::kBench;
  if (access(peer.path_.c_str(), X_OK) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--peer: cannot run ", peer.path_, ": ", std::strerror(errno)));
  }
  if (peer.kind_ == Kind::kBench) {
    peer.has_depth_ = absl::StrContains(Execute({peer.path_, "--help"}, -1, "", true).text, "--n-depth");
  }
  return peer;
}

bool Peer::Runs(const Cell& cell) const {
  if (kind_ == Kind::kBench) return cell.prefill || cell.batch == 1;
  return !cell.prefill && cell.batch > 1 && cell.context <= 256;
}

std::vector<std::string> Peer::Command(const Cell& cell, const std::string& model, int threads) const {
  std::vector<std::string> command = {path_, "-m", model, "-t", absl::StrCat(threads)};
  const auto add = [&](std::initializer_list<std::string> more) { command.insert(command.end(), more); };
  const std::string tokens = absl::StrCat(cell.tokens);
  if (kind_ == Kind::kBatchedBench) {
    const int prompt = std::max(cell.context, 1);
    add({"-npp", absl::StrCat(prompt), "-ntg", tokens, "-npl", absl::StrCat(cell.batch), "-c",
         absl::StrCat((prompt + cell.tokens) * cell.batch + 256)});
  } else {
    add({"-r", "1", "-o", "json"});
    if (cell.prefill) {
      add({"-p", tokens, "-n", "0"});
    } else if (cell.context == 0) {
      add({"-p", "0", "-n", tokens});
    } else if (has_depth_) {
      add({"-p", "0", "-n", tokens, "-d", absl::StrCat(cell.context)});
    } else {
      add({"-p", "0", "-n", "0", "-gp", absl::StrCat(cell.context, ",", tokens)});
    }
  }
  command.insert(command.end(), arguments_.begin(), arguments_.end());
  return command;
}

absl::StatusOr<double> Peer::Run(const Cell& cell, const std::string& model, int threads, int cpu, ClockKind clock,
                                 const std::string& preload) const {
  const bool batched = kind_ == Kind::kBatchedBench;
  const std::vector<std::string> command = Command(cell, model, threads);
  const Output output = Execute(command, cpu, clock == ClockKind::kCpu ? preload : "", batched);
  const double rate = batched ? ParseBatchedTable(output.text) : ParseBenchJson(output.text);
  if (output.status != 0 || rate <= 0) {
    return absl::InternalError(
        absl::StrCat(name_, " failed on ", cell.name(), " (status ", output.status, "): ", Tail(output.text)));
  }
  return rate;
}

double ParseBenchJson(const std::string& output) {
  const size_t begin = output.find('[');
  if (begin == std::string::npos) return -1;
  const auto json = nlohmann::json::parse(output.substr(begin), nullptr, /*allow_exceptions=*/false);
  if (!json.is_array() || json.empty()) return -1;
  const auto rate = json.back().find("avg_ts");
  return rate != json.back().end() && rate->is_number() ? rate->get<double>() : -1;
}

double ParseBatchedTable(const std::string& output) {
  constexpr size_t kColumns = 10, kDecodeRate = 7;  // PP TG B N_KV T_PP S_PP T_TG S_TG T S
  double rate = -1;
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    std::vector<absl::string_view> cells = absl::StrSplit(line, '|', absl::SkipWhitespace());
    double value = 0;
    if (cells.size() >= kColumns && absl::SimpleAtod(cells[0], &value) && absl::SimpleAtod(cells[kDecodeRate], &value)) {
      rate = value;
    }
  }
  return rate;
}

}  // namespace baton::bench
