// One client over several transports: takes the best that reaches the ticket's worker, and goes on with the next one when
// a link dies, in the middle of a request too. The ticket stays the same; the exporter lets a later attempt of the same
// receiver replace an earlier one.
#ifndef BATON_KVTRANSFER_FAILOVER_CLIENT_H_
#define BATON_KVTRANSFER_FAILOVER_CLIENT_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "kvtransfer/transport.h"

namespace baton::kvtransfer {

struct FailoverOptions {
  // A transport whose link to a worker broke is tried last for so long; it doubles with each failure in a row. Never a ban:
  // without another way it is taken at once.
  absl::Duration min_rest = absl::Seconds(1);
  absl::Duration max_rest = absl::Seconds(30);
  // Not OK: this transport must not be used to that worker (too slow, say); thread-safe, called for each fetch.
  std::function<absl::Status(const v1::Endpoint& endpoint)> allowed;
  // Told of each link that broke and was left for another transport.
  std::function<void(const v1::Endpoint& endpoint, absl::string_view next, const absl::Status& why)> on_failover;
};

// Thread-safe.
class FailoverClient : public TransportClient {
 public:
  explicit FailoverClient(std::vector<std::unique_ptr<TransportClient>> transports, FailoverOptions options = {});
  ~FailoverClient() override { Shutdown(); }

  absl::string_view name() const override { return "auto"; }
  // Beside a transport's errors: FAILED_PRECONDITION when no transport of ours reaches the worker, with each one's reason.
  FetchId Fetch(FetchRequest request, FetchCallback done) override;
  void Cancel(FetchId id) override;
  void Shutdown() override;

  // The transport that Fetch would take first; empty: none.
  std::string Preferred(const v1::Ticket& ticket) const;
  TransportClient* transport(absl::string_view name) const;

 private:
  struct Call;
  using LinkId = std::tuple<std::string, std::string, std::string>;  // worker, incarnation, transport
  struct Link {
    absl::Time rest_until = absl::InfinitePast();
    absl::Duration rest;
  };

  std::vector<v1::Endpoint> Ways(const v1::Ticket& ticket, absl::Status* why_not) const;
  void Try(std::shared_ptr<Call> call, kvcache::BlockLease destination);
  void OnResult(std::shared_ptr<Call> call, absl::StatusOr<FetchResult> result, kvcache::BlockLease destination);
  void End(const std::shared_ptr<Call>& call, absl::StatusOr<FetchResult> result, kvcache::BlockLease destination);
  void NoteLink(const v1::Endpoint& endpoint, bool ok);

  const std::vector<std::unique_ptr<TransportClient>> transports_;
  const FailoverOptions options_;
  mutable Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  FetchId last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<FetchId, std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mu_);
  std::map<LinkId, Link> links_ ABSL_GUARDED_BY(mu_);  // those that broke lately
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_FAILOVER_CLIENT_H_
