// `baton doctor`: what is wrong with this machine or the cluster, and what to do next.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/command.h"
#include "cli/doctor.h"
#include "cli/output.h"
#include "cli/remote_generator.h"
#include "cli/settings.h"
#include "common/rpc/certificate_files.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "proto/cluster.grpc.pb.h"

namespace baton::cli {
namespace {

constexpr int kTrialTokens = 256;

struct DoctorFlags {
  bool no_request = false;
};

// A prompt of token ids that every vocabulary has, once through both pools; another each time, so that no cache
// answers.
absl::Status TryRequest(const v1::Model& model, RemoteGenerator* router, v1::Summary* summary) {
  v1::GenerateRequest request;
  const int tokens = std::clamp(static_cast<int>(model.max_context()) / 2, 1, kTrialTokens);
  uint64_t random = static_cast<uint64_t>(absl::ToUnixNanos(absl::Now()));
  for (int i = 0; i < tokens; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    request.mutable_token_ids()->add_ids(static_cast<int32_t>((random >> 33) % std::max(1u, model.vocab_size() / 2)));
  }
  request.mutable_sampling()->set_max_tokens(2);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0);
  return router->Generate(request, [summary](const v1::GenerateResponse& event) {
    if (event.has_summary()) *summary = event.summary();
  });
}

Finding RequestFinding(const absl::Status& status, const v1::Summary& summary) {
  if (!status.ok()) {
    return {"trial request", Health::kBad, std::string(status.message()), NextAfter(status, "doctor")};
  }
  return {
      "trial request", Health::kGood,
      absl::StrFormat("%d tokens in, first token after %.1f ms, next after %.1f ms", summary.usage().prompt_tokens(),
                      summary.timings().first_token_ms(), summary.timings().itl_p50_ms()),
      ""};
}

// Without a router: whether one could start here.
void AddPorts(const v1::Config& config, Findings* findings) {
  for (const auto& [name, address] :
       {std::pair{"port of gRPC", config.listen()}, std::pair{"port of HTTP", config.http()}}) {
    if (const absl::Status s = rpc::ExplainBindFailure(address); s.ok()) {
      findings->push_back({name, Health::kGood, absl::StrCat(address, " is free"), ""});
    } else {
      findings->push_back({name, Health::kBad, std::string(s.message()), "stop what uses it, or choose another port"});
    }
  }
}

// The files that a router on this machine would show.
void AddHttps(const v1::Config& config, Findings* findings) {
  if (!config.has_http_tls_cert()) return;
  const absl::StatusOr<rpc::CertificatePair> pair = rpc::ReadCertificatePair(config.http_tls_cert(), config.http_tls_key());
  if (!pair.ok()) {
    findings->push_back({"HTTPS", Health::kBad, std::string(pair.status().message()), "set http_tls_cert and http_tls_key"});
    return;
  }
  const absl::Duration left = pair->info.not_after - absl::Now();
  const bool soon = left < rpc::kCertificateEndsSoon;
  findings->push_back({"HTTPS", soon ? Health::kAdvice : Health::kGood,
                       absl::StrFormat("https://%s, the certificate names %s and is valid for %d more days", config.http(),
                                       absl::StrJoin(pair->info.dns_names, ", "), left / absl::Hours(24)),
                       soon ? "put a new certificate in its place" : ""});
}

void AddCluster(const v1::Config& config, const DoctorFlags& flags, Findings* findings) {
  const std::string& address = config.router();
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> opened = RouterChannel(config);
  if (!opened.ok()) {
    findings->push_back({"router", Health::kBad, std::string(opened.status().message()), "baton config check"});
    return;
  }
  const std::shared_ptr<grpc::Channel>& channel = *opened;
  const std::unique_ptr<v1::Cluster::Stub> stub = v1::Cluster::NewStub(channel);
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + absl::Seconds(10));
  v1::ClusterStatus cluster;
  const grpc::Status called = stub->GetClusterStatus(&context, v1::GetClusterStatusRequest(), &cluster);
  if (const absl::Status s = ExplainCall(called, address, channel->GetState(false)); !s.ok()) {
    findings->push_back({"router", Health::kBad, std::string(s.message()), NextAfter(s, "doctor")});
    if (IsNoRouter(s)) AddPorts(config, findings);
    return;
  }
  // Asked again, now that it is connected: the time of a call.
  grpc::ClientContext again;
  rpc::SetDeadline(&again, absl::Now() + absl::Seconds(10));
  const absl::Time start = absl::Now();
  (void)stub->GetClusterStatus(&again, v1::GetClusterStatusRequest(), &cluster);
  findings->push_back({"router", Health::kGood,
                       absl::StrFormat("%s answers in %.2f ms, up %.0f s", address,
                                       absl::ToDoubleMilliseconds(absl::Now() - start), cluster.uptime_s()),
                       ""});
  const Findings of_cluster = ClusterFindings(cluster);
  findings->insert(findings->end(), of_cluster.begin(), of_cluster.end());
  if (flags.no_request) return;
  RemoteGenerator router(channel, address, absl::Seconds(60));
  v1::ListModelsResponse models;
  v1::Summary summary;
  absl::Status tried = router.ListModels(&models);
  if (tried.ok() && models.models().empty()) tried = absl::FailedPreconditionError("the router serves no model");
  if (tried.ok()) tried = TryRequest(models.models(0), &router, &summary);
  findings->push_back(RequestFinding(tried, summary));
  if (tried.ok()) findings->push_back(TransferFinding(summary));
}

int RunDoctor(const DoctorFlags& flags, const Invocation& invocation) {
  const Output out(invocation.json);
  const absl::StatusOr<LoadedConfig> settings =
      LoadConfig(ProcessRole::kCommand, invocation.setting_args, BatonEnvironment());
  if (!settings.ok()) return out.Fail(settings.status(), "baton config check", kExitUsage);
  Findings findings;
  for (const std::string& warning : settings->warnings) {
    findings.push_back({"settings", Health::kAdvice, warning, "baton config dump"});
  }
  findings.push_back(CrossMemoryAttach());  // forks: before gRPC has threads
  const Findings machine = MachineFindings(settings->config);
  findings.insert(findings.end(), machine.begin(), machine.end());
  AddHttps(settings->config, &findings);
  AddCluster(settings->config, flags, &findings);
  if (out.json()) {
    out.Json(FindingsToJson(findings));
  } else {
    const bool color = out.stdout_is_tty() && out.Paint(Style::kBold, "x") != "x";
    for (const Finding& finding : findings) out.Data(FormatFinding(finding, color));
    out.Data(AllWell(findings) ? "All is well.\n" : "Something is wrong: see BAD above.\n");
  }
  return AllWell(findings) ? kExitOk : kExitFailure;
}

}  // namespace

void AddDoctor(CLI::App* app, Invocation* invocation) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* sub = app->add_subcommand("doctor", "Look at this machine and the cluster; each line with the next step");
  sub->add_flag("--no-request", flags->no_request, "Send no trial request through the cluster");
  sub->add_flag("--json", invocation->json, "Print one JSON document on stdout");
  sub->footer(HelpFooter({"baton doctor", "baton doctor --router 10.0.0.5:50051 --model FILE.gguf --json"},
                         {"router", "listen", "http", "model", "cluster_key_file", "numerics", "isa", "tensor_parallel"}));
  sub->callback(
      [flags, invocation] { invocation->run = [flags, invocation] { return RunDoctor(*flags, *invocation); }; });
}

}  // namespace baton::cli
