// What is asked of one worker.
// `baton drain NAME`: it finishes what it has and leaves.
// `baton role NAME prefill|decode`: it finishes what it has and joins again in that role, with the weights that it holds.
#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/cluster_client.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/settings.h"
#include "common/rpc/channel.h"
#include "common/status.h"

namespace baton::cli {
namespace {

struct DrainFlags {
  std::string name;
  double timeout_s = 0;
};

struct RoleFlags {
  std::string name, role;
  bool force = false;
  double timeout_s = 120;
};

// A worker that was found, and how to reach it.
struct Target {
  ClusterClient cluster;
  v1::ClusterWorker worker;
  std::unique_ptr<v1::Worker::Stub> stub;
};

// Or the exit code of having said why not.
struct Found {
  std::unique_ptr<Target> target;  // null: not found
  int exit_code = kExitOk;
};

Found FindWorker(const std::string& name, const std::string& help, const Invocation& invocation, const Output& out) {
  const absl::StatusOr<LoadedConfig> settings =
      LoadConfig(ProcessRole::kCommand, invocation.setting_args, BatonEnvironment());
  if (!settings.ok()) return {nullptr, out.Fail(settings.status(), help, kExitUsage)};
  absl::StatusOr<ClusterClient> cluster = ClusterClient::Open(settings->config);
  if (!cluster.ok()) return {nullptr, out.Fail(cluster.status(), "baton config check", kExitUsage)};
  absl::StatusOr<v1::ClusterWorker> worker = cluster->Find(name);
  if (!worker.ok()) return {nullptr, out.Fail(worker.status(), "baton status", kExitFailure)};
  absl::StatusOr<std::unique_ptr<v1::Worker::Stub>> stub = cluster->StubOf(*worker);
  if (!stub.ok()) return {nullptr, out.Fail(stub.status(), "baton config check", kExitUsage)};
  return {std::make_unique<Target>(Target{*std::move(cluster), *std::move(worker), *std::move(stub)})};
}

// Until `there` says so of the worker (null: it has left). OK, or why not.
absl::Status WaitFor(Target* target, double timeout_s, const std::function<bool(const v1::ClusterWorker*)>& there) {
  const std::string name = target->worker.info().name();
  for (const absl::Time until = absl::Now() + absl::Seconds(timeout_s);; absl::SleepFor(absl::Milliseconds(50))) {
    const absl::StatusOr<v1::ClusterWorker> worker = target->cluster.Find(name);
    if (!worker.ok() && worker.status().code() != absl::StatusCode::kNotFound) return worker.status();
    if (there(worker.ok() ? &*worker : nullptr)) return absl::OkStatus();
    if (absl::Now() > until) {
      return absl::DeadlineExceededError(absl::StrCat(name, " is ", worker.ok() ? worker->state() : "gone", " so far"));
    }
  }
}

int RunDrain(const DrainFlags& flags, const Invocation& invocation) {
  const Output out(invocation.json);
  const Found found = FindWorker(flags.name, "baton drain --help", invocation, out);
  if (found.target == nullptr) return found.exit_code;
  const v1::WorkerInfo info = found.target->worker.info();
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + absl::Seconds(10));
  v1::DrainResponse response;
  const absl::Status asked = FromGrpcStatus(found.target->stub->Drain(&context, {}, &response));
  if (!asked.ok()) return out.Fail(asked, absl::StrCat("is ", info.address(), " reachable from here?"), kExitFailure);
  out.Note(absl::StrCat(flags.name, " drains: it takes nothing new, finishes what it has, and leaves"));
  if (flags.timeout_s > 0) {
    const absl::Status left = WaitFor(found.target.get(), flags.timeout_s, [&](const v1::ClusterWorker* worker) {
      return worker == nullptr || worker->info().incarnation() != info.incarnation();
    });
    if (!left.ok()) return out.Fail(left, "baton status", kExitFailure);
  }
  if (out.json()) out.Json({{"worker", flags.name}, {"left", flags.timeout_s > 0}});
  return kExitOk;
}

int RunRole(const RoleFlags& flags, const Invocation& invocation) {
  const Output out(invocation.json);
  const Found found = FindWorker(flags.name, "baton role --help", invocation, out);
  if (found.target == nullptr) return found.exit_code;
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + absl::Seconds(10));
  v1::ChangeRoleRequest request;
  request.set_role(flags.role);
  request.set_force(flags.force);
  v1::ChangeRoleResponse response;
  const absl::Status asked = FromGrpcStatus(found.target->stub->ChangeRole(&context, request, &response));
  if (!asked.ok()) {
    std::string next = "baton status";
    if (asked.code() == absl::StatusCode::kResourceExhausted) {
      next = absl::StrCat("baton role ", flags.name, " ", flags.role, " --force");
    } else if (asked.code() == absl::StatusCode::kUnavailable) {
      next = absl::StrCat("is ", found.target->worker.info().address(), " reachable from here?");
    }
    return out.Fail(asked, next, kExitFailure);
  }
  const absl::Status changed = WaitFor(found.target.get(), flags.timeout_s, [&](const v1::ClusterWorker* worker) {
    return worker != nullptr && worker->info().role() == flags.role && worker->state() == "ready";
  });
  if (!changed.ok()) return out.Fail(changed, "baton status --watch 1", kExitFailure);
  if (out.json()) {
    out.Json({{"worker", flags.name}, {"role", flags.role}});
  } else {
    out.Note(absl::StrCat(flags.name, " is a ", flags.role, " worker"));
  }
  return kExitOk;
}

}  // namespace

void AddDrain(CLI::App* app, Invocation* invocation) {
  auto flags = std::make_shared<DrainFlags>();
  CLI::App* sub = app->add_subcommand("drain", "Let a worker finish what it has and leave");
  sub->add_option("worker", flags->name, "Its name, as `baton status` shows it")->required();
  sub->add_option("--timeout", flags->timeout_s, "Wait so many seconds until it has left; default 0: do not wait")
      ->check(CLI::Range(0.0, 86400.0));
  sub->add_flag("--json", invocation->json, "Print one JSON line on stdout");
  sub->footer(HelpFooter({"baton drain decode-1", "baton drain decode-1 --timeout 60"}, {"router"}));
  sub->callback(
      [flags, invocation] { invocation->run = [flags, invocation] { return RunDrain(*flags, *invocation); }; });
}

void AddRole(CLI::App* app, Invocation* invocation) {
  auto flags = std::make_shared<RoleFlags>();
  CLI::App* sub = app->add_subcommand("role", "Make a prefill worker a decode worker, or the other way round, without a restart");
  sub->add_option("worker", flags->name, "Its name, as `baton status` shows it")->required();
  sub->add_option("to", flags->role, "prefill or decode")->required()->check(CLI::IsMember({"prefill", "decode"}));
  sub->add_flag("--force", flags->force, "However short the time since its last change (role_dwell_ms)");
  sub->add_option("--timeout", flags->timeout_s, "Seconds to wait until it serves again; default 120")
      ->check(CLI::Range(0.0, 86400.0));
  sub->add_flag("--json", invocation->json, "Print one JSON line on stdout");
  sub->footer(HelpFooter({"baton role decode-1 prefill"}, {"router"}));
  sub->callback([flags, invocation] { invocation->run = [flags, invocation] { return RunRole(*flags, *invocation); }; });
}

}  // namespace baton::cli
