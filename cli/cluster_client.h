// What commands ask of a cluster rather than of a model: its status, and its workers themselves.
#ifndef BATON_CLI_CLUSTER_CLIENT_H_
#define BATON_CLI_CLUSTER_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/config.pb.h"
#include "proto/worker.grpc.pb.h"

namespace baton::cli {

// Thread-compatible.
class ClusterClient {
 public:
  // Errors as RouterChannel. The router is not asked yet.
  static absl::StatusOr<ClusterClient> Open(const v1::Config& config);

  // Errors as ExplainCall.
  absl::StatusOr<v1::ClusterStatus> Status();
  // A worker that is not lost. NOT_FOUND: there is none of that name; else as Status.
  absl::StatusOr<v1::ClusterWorker> Find(const std::string& name);
  // Errors as WorkerChannel.
  absl::StatusOr<std::unique_ptr<v1::Worker::Stub>> StubOf(const v1::ClusterWorker& worker) const;

 private:
  v1::Config config_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Cluster::Stub> stub_;
};

}  // namespace baton::cli

#endif  // BATON_CLI_CLUSTER_CLIENT_H_
