// The few calls of etcd v3 that membership makes, on one of several endpoints.
#ifndef BATON_COMMON_MEMBERSHIP_ETCD_CLIENT_H_
#define BATON_COMMON_MEMBERSHIP_ETCD_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "proto/compat/etcd.grpc.pb.h"
#include "proto/config.pb.h"

namespace baton::membership {

// Thread contract: one thread calls; Stop from any thread breaks a call off, and every later one.
class EtcdClient {
 public:
  // Settings etcd_endpoints and etcd_tls_*. INVALID_ARGUMENT, or NOT_FOUND for a file.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Create(const v1::Config& config);

  struct Listing {
    std::vector<etcdserverpb::KeyValue> kvs;
    int64_t revision = 0;  // as of which
  };
  // All keys that begin with `prefix`, which is not empty.
  absl::StatusOr<Listing> List(const std::string& prefix);
  // Returns OK when a key that begins with `prefix` was written or deleted after `revision`, an error when the watch
  // ended otherwise (the revision was compacted, etcd went away): list again in either case.
  absl::Status AwaitChange(const std::string& prefix, int64_t revision);
  // A lease that ends `ttl` after its last renewal.
  absl::StatusOr<int64_t> GrantLease(absl::Duration ttl);
  // NOT_FOUND when the lease is gone.
  absl::Status RenewLease(int64_t lease);
  // Within a second, also after Stop; errors are of no interest: the lease ends by itself.
  void RevokeLease(int64_t lease);
  absl::Status Put(const std::string& key, const std::string& value, int64_t lease);

  // The next call goes to the next endpoint. Call it after an error.
  void TryNextEndpoint();
  const std::string& endpoint() const { return endpoints_[current_].address; }
  void Stop();

 private:
  struct Endpoint {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
  };

  // Runs `call` with a context that Stop can cancel.
  absl::Status Run(absl::Duration timeout, const std::function<grpc::Status(grpc::ClientContext*)>& call);
  std::shared_ptr<grpc::Channel> channel() const { return endpoints_[current_].channel; }

  std::vector<Endpoint> endpoints_;
  size_t current_ = 0;
  Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace baton::membership

#endif  // BATON_COMMON_MEMBERSHIP_ETCD_CLIENT_H_
