#include "cli/cluster_client.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/remote_generator.h"
#include "common/rpc/channel.h"

namespace baton::cli {

absl::StatusOr<ClusterClient> ClusterClient::Open(const v1::Config& config) {
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = RouterChannel(config);
  if (!channel.ok()) return channel.status();
  ClusterClient client;
  client.config_ = config;
  client.channel_ = *std::move(channel);
  client.stub_ = v1::Cluster::NewStub(client.channel_);
  return client;
}

absl::StatusOr<v1::ClusterStatus> ClusterClient::Status() {
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + absl::Seconds(10));
  v1::ClusterStatus cluster;
  const grpc::Status called = stub_->GetClusterStatus(&context, {}, &cluster);
  if (absl::Status s = ExplainCall(called, config_.router(), channel_->GetState(false)); !s.ok()) return s;
  return cluster;
}

absl::StatusOr<v1::ClusterWorker> ClusterClient::Find(const std::string& name) {
  absl::StatusOr<v1::ClusterStatus> cluster = Status();
  if (!cluster.ok()) return cluster.status();
  for (v1::ClusterWorker& worker : *cluster->mutable_workers()) {
    if (worker.info().name() == name && worker.state() != "lost") return std::move(worker);
  }
  return absl::NotFoundError(absl::StrCat("no worker named ", name));
}

absl::StatusOr<std::unique_ptr<v1::Worker::Stub>> ClusterClient::StubOf(const v1::ClusterWorker& worker) const {
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel =
      WorkerChannel(config_, worker.info().address(), worker.info().role());
  if (!channel.ok()) return channel.status();
  return v1::Worker::NewStub(*channel);
}

}  // namespace baton::cli
