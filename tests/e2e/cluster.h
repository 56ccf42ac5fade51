// A real cluster for tests: one router, some prefill and decode workers, each its own process, UCX between them.
#ifndef BATON_TESTS_E2E_CLUSTER_H_
#define BATON_TESTS_E2E_CLUSTER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/status/statusor.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/inference.grpc.pb.h"
#include "proto/worker.grpc.pb.h"
#include "tests/e2e/process.h"

namespace baton::e2e {

// Where a process runs: its network namespace (-1: the test's) and the address that it listens at.
struct Place {
  int netns = -1;
  std::string host = "127.0.0.1";
};

struct ClusterOptions {
  std::string model;
  int prefill = 1;
  int decode = 1;
  std::vector<std::string> flags;         // for every process
  std::vector<std::string> router_flags;
  std::vector<std::string> prefill_flags;
  std::vector<std::string> decode_flags;
  std::string mode = "disaggregated";  // most tests are about the hand-over
  std::string worker_suffix = {};  // of the workers' programs: "_emulated"
  std::string tls_dir = {};  // not empty: mutual TLS everywhere, with certificates from there; the test is the admin
  std::function<absl::StatusOr<Place>(const std::string& name)> place = {};  // by worker's name, or "router"
};

// A channel to a server of role `peer`, showing the certificate of `own` from `tls_dir` (none when empty); plain text
// without a tls_dir.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, const std::string& tls_dir,
                                           const std::string& peer, const std::string& own);

struct WorkerProcess {
  std::string name;
  std::string role;
  std::vector<std::string> flags;
  std::string address;  // gRPC
  std::string http;
  std::unique_ptr<Process> process;
  std::unique_ptr<v1::Worker::Stub> stub;
};

// Everything one Generate call said.
struct Generation {
  grpc::Status status;
  v1::Started started;
  struct Choice {
    std::vector<int32_t> token_ids;
    std::vector<float> logprobs;  // 0 where none were asked for
    std::string text;
    v1::ChoiceFinished finished;
  };
  std::vector<Choice> choices;
  v1::Summary summary;
  std::string violation;  // of the stream's own rules: indices without gap, one ChoiceFinished each; empty when none
};

class Cluster {
 public:
  // Returns once the router reports every worker ready.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const ClusterOptions& options);
  ~Cluster();

  // Starts one more worker; `role` is "prefill" or "decode".
  absl::StatusOr<WorkerProcess*> AddWorker(const std::string& role, std::vector<std::string> flags = {});

  // A new process in place of one that ended or is being killed: the same name, a new incarnation. Returns once it says
  // that it is ready.
  absl::Status Restart(WorkerProcess& worker);
  // The same process in the other role; returns once the router has it ready there, under its new address.
  absl::Status ChangeRole(WorkerProcess& worker, const std::string& role, absl::Duration timeout);
  // Where workers are that changed their role by themselves.
  absl::Status FollowRoles();
  // Until the router has every worker ready that is in workers().
  absl::Status WaitReady(absl::Duration timeout);
  // The sum over all labels of a metric at an HTTP address; 0 when there is none.
  double Metric(const std::string& http, const std::string& name);

  using OnEvent = std::function<void(grpc::ClientContext*, const v1::GenerateResponse&)>;
  using OnDone = std::function<void(Generation)>;
  // `on_event` may cancel the context, which lives until `at_end` has returned.
  Generation Generate(const v1::GenerateRequest& request, absl::Duration timeout = absl::Seconds(60),
                      const OnEvent& on_event = {}, const std::function<void()>& at_end = {});
  // The same without a thread that waits: `on_event` and then `done`, once, run on gRPC's threads.
  void StartGenerate(const v1::GenerateRequest& request, absl::Duration timeout, OnEvent on_event, OnDone done);

  absl::StatusOr<v1::ClusterStatus> Status();
  absl::StatusOr<v1::WorkerStatus> WorkerStatusOf(WorkerProcess& worker);
  // OK once no worker has a running request, a lease, a ticket or a quarantined block, and every ledger adds up; else what
  // is still held after `timeout`.
  absl::Status WaitQuiet(absl::Duration timeout);

  Process& router() { return *router_; }
  std::vector<std::unique_ptr<WorkerProcess>>& workers() { return workers_; }
  const std::string& router_address() const { return router_address_; }
  const std::string& router_http() const { return router_http_; }
  std::string key_path() const { return dir_ + "/key"; }
  v1::Inference::Stub& inference() { return *inference_; }

 private:
  Cluster() = default;
  absl::Status StartProcess(WorkerProcess* worker);
  absl::StatusOr<Place> PlaceOf(const std::string& name) const {
    return options_.place ? options_.place(name) : Place();
  }
  ClusterOptions options_;
  int next_worker_ = 0;
  std::string dir_;
  std::string router_address_, router_http_;
  std::unique_ptr<Process> router_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Cluster::Stub> cluster_;
};

// Path of a packaged model; the test fails with a hint when it is not there.
std::string ModelPath(const std::string& file);
inline std::string SmolLm2() { return ModelPath("SmolLM2-135M-Instruct.Q4_1.gguf"); }

// The model of tests that need no sense in the answers: the packaged one, or, with BATON_E2E_TINY set, a tiny random one
// (what the thread sanitizer's run uses: there the packaged model takes minutes a request).
struct ModelUnderTest {
  std::string path;
  int vocab_size;
  bool tiny;
};
ModelUnderTest ChooseModel();

}  // namespace baton::e2e

#endif  // BATON_TESTS_E2E_CLUSTER_H_
