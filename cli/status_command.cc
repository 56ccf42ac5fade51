// `baton status`: what the router knows of its cluster.
#include <CLI/CLI.hpp>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/remote_generator.h"
#include "cli/settings.h"
#include "cli/status_print.h"
#include "common/rpc/channel.h"
#include "proto/cluster.grpc.pb.h"

namespace baton::cli {
namespace {

struct StatusFlags {
  double watch_s = 0;
  std::string why;
};

int RunWhy(const std::string& request_id, const std::string& address, grpc::Channel* channel, v1::Cluster::Stub* stub,
           const Output& out) {
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + absl::Seconds(10));
  v1::ExplainPlacementRequest request;
  request.set_request_id(request_id);
  v1::PlacementExplanation explanation;
  const grpc::Status called = stub->ExplainPlacement(&context, request, &explanation);
  if (const absl::Status s = ExplainCall(called, address, channel->GetState(false)); !s.ok()) {
    return out.Fail(s, IsNoRouter(s) ? NextAfter(s, "status") : "the request's id is in the router's log and in Started",
                    kExitFailure);
  }
  if (out.json()) {
    out.Json(WhyToJson(explanation));
  } else {
    out.Data(FormatWhy(explanation));
  }
  return kExitOk;
}

int RunStatus(const StatusFlags& flags, const Invocation& invocation) {
  const Output out(invocation.json);
  const absl::StatusOr<LoadedConfig> settings =
      LoadConfig(ProcessRole::kCommand, invocation.setting_args, BatonEnvironment());
  if (!settings.ok()) return out.Fail(settings.status(), "baton status --help", kExitUsage);
  const std::string& address = settings->config.router();
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> opened = RouterChannel(settings->config);
  if (!opened.ok()) return out.Fail(opened.status(), "baton status --help", kExitUsage);
  const std::shared_ptr<grpc::Channel>& channel = *opened;
  const std::unique_ptr<v1::Cluster::Stub> stub = v1::Cluster::NewStub(channel);
  if (!flags.why.empty()) return RunWhy(flags.why, address, channel.get(), stub.get(), out);
  while (true) {
    grpc::ClientContext context;
    rpc::SetDeadline(&context, absl::Now() + absl::Seconds(10));
    v1::ClusterStatus cluster;
    const grpc::Status called = stub->GetClusterStatus(&context, v1::GetClusterStatusRequest(), &cluster);
    if (const absl::Status s = ExplainCall(called, address, channel->GetState(false)); !s.ok()) {
      return out.Fail(s, IsNoRouter(s) ? NextAfter(s, "status") : "try again; the router did not answer", kExitFailure);
    }
    if (out.json()) {
      out.Json(StatusToJson(cluster, address));
    } else {
      if (flags.watch_s > 0 && out.stdout_is_tty()) out.Data("\x1b[H\x1b[2J");
      out.Data(FormatStatus(cluster, address));
    }
    if (flags.watch_s <= 0) return kExitOk;
    absl::SleepFor(absl::Seconds(flags.watch_s));
  }
}

}  // namespace

void AddStatus(CLI::App* app, Invocation* invocation) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* sub = app->add_subcommand("status", "Workers, their load and KV blocks, and who was refused");
  sub->add_option("--watch", flags->watch_s, "Again every so many seconds, until Ctrl-C")
      ->check(CLI::Range(0.1, 86400.0));
  sub->add_option("--why", flags->why, "Why the request of this id went where it went, instead");
  sub->add_flag("--json", invocation->json, "Print one JSON line on stdout (each time, with --watch)");
  sub->footer(HelpFooter({"baton status", "baton status --watch 2", "baton status --json | jq .workers",
                          "baton status --why REQUEST_ID"}, {"router", "tls_dir", "tls_cert", "tls_key", "tls_ca", "allow_plaintext"}));
  sub->callback(
      [flags, invocation] { invocation->run = [flags, invocation] { return RunStatus(*flags, *invocation); }; });
}

}  // namespace baton::cli
