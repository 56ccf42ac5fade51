// `baton scale prefill=3 decode=2`: the number of workers of the cluster that `baton up` runs here.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/cluster_client.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/settings.h"
#include "common/control_socket.h"

namespace baton::cli {
namespace {

constexpr int kMaxWorkers = 64;  // of a role, as the settings of `up`

struct ScaleFlags {
  std::vector<std::string> sizes;
  double timeout_s = 120;
};

// "prefill=3" to {"prefill", 3}.
absl::StatusOr<std::map<std::string, int>> ParseSizes(const std::vector<std::string>& words) {
  std::map<std::string, int> sizes;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    const std::string role = word.substr(0, equals);
    int count = -1;
    if (equals == std::string::npos || (role != "prefill" && role != "decode") ||
        !absl::SimpleAtoi(word.substr(equals + 1), &count) || count < 1 || count > kMaxWorkers) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", word, "\" is not prefill=N or decode=N with N from 1 to ", kMaxWorkers));
    }
    sizes[role] = count;
  }
  return sizes;
}

int RunScale(const ScaleFlags& flags, const Invocation& invocation) {
  const Output out(invocation.json);
  const absl::StatusOr<LoadedConfig> settings =
      LoadConfig(ProcessRole::kCommand, invocation.setting_args, BatonEnvironment());
  if (!settings.ok()) return out.Fail(settings.status(), "baton scale --help", kExitUsage);
  const absl::StatusOr<std::map<std::string, int>> sizes = ParseSizes(flags.sizes);
  if (!sizes.ok()) return out.Fail(sizes.status(), "baton scale prefill=2 decode=2", kExitUsage);
  const std::string& address = settings->config.router();
  const absl::StatusOr<std::string> path = ControlSocketPath(address);
  if (!path.ok()) return out.Fail(path.status(), "baton up", kExitFailure);
  const absl::StatusOr<nlohmann::json> answer = CallControl(*path, {{"scale", *sizes}}, absl::Seconds(10));
  if (!answer.ok()) {
    return out.Fail(answer.status(),
                    "scale works on a cluster that `baton up` runs on this machine, as this user; --router names its "
                    "router",
                    kExitFailure);
  }
  if (answer->contains("error")) {
    return out.Fail(absl::FailedPreconditionError(answer->value("error", "")), "baton status", kExitFailure);
  }
  // Until the router has them all.
  absl::StatusOr<ClusterClient> client = ClusterClient::Open(settings->config);
  if (!client.ok()) return out.Fail(client.status(), "baton config check", kExitUsage);
  const absl::Time until = absl::Now() + absl::Seconds(flags.timeout_s);
  std::map<std::string, int> ready;
  while (true) {
    const absl::StatusOr<v1::ClusterStatus> cluster = client->Status();
    if (!cluster.ok()) return out.Fail(cluster.status(), "baton status", kExitFailure);
    ready = {{"prefill", 0}, {"decode", 0}};
    bool leaving = false;
    for (const v1::ClusterWorker& w : cluster->workers()) {
      if (w.state() == "ready") ++ready[w.info().role()];
      leaving |= w.state() == "draining";
    }
    const bool there =
        std::all_of(sizes->begin(), sizes->end(), [&](const auto& size) { return ready[size.first] == size.second; });
    if (there && !leaving) break;
    if (absl::Now() > until) {
      return out.Fail(absl::DeadlineExceededError(absl::StrCat("the cluster has ", ready["prefill"], " prefill and ",
                                                               ready["decode"], " decode workers ready so far")),
                      "baton status --watch 1", kExitFailure);
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
  if (out.json()) {
    out.Json({{"prefill", ready["prefill"]}, {"decode", ready["decode"]}});
  } else {
    out.Note(absl::StrCat("the cluster has ", ready["prefill"], " prefill and ", ready["decode"], " decode workers"));
  }
  return kExitOk;
}

}  // namespace

void AddScale(CLI::App* app, Invocation* invocation) {
  auto flags = std::make_shared<ScaleFlags>();
  CLI::App* sub = app->add_subcommand("scale", "Change the number of workers of the cluster that `baton up` runs");
  sub->add_option("sizes", flags->sizes, "prefill=N, decode=N or both")->required()->expected(1, 2);
  sub->add_option("--timeout", flags->timeout_s, "Seconds to wait for it; default 120")->check(CLI::Range(0.0, 86400.0));
  sub->add_flag("--json", invocation->json, "Print one JSON line on stdout");
  sub->footer(HelpFooter({"baton scale prefill=3 decode=2"}, {"router"}));
  sub->callback(
      [flags, invocation] { invocation->run = [flags, invocation] { return RunScale(*flags, *invocation); }; });
}

}  // namespace baton::cli
