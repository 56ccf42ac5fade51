// The exporting worker's half of meeting a peer: OpenLink gives out a ticket for zeros. Memory of its own, so that neither
// the engine's pool nor its ledger notices.
#ifndef BATON_KVTRANSFER_LINK_SERVICE_H_
#define BATON_KVTRANSFER_LINK_SERVICE_H_

#include <memory>
#include <vector>

#include "common/mutex.h"
#include "kvcache/block_pool.h"
#include "kvtransfer/exporter.h"
#include "proto/kv_transport.grpc.pb.h"

namespace baton::kvtransfer {

inline constexpr uint64_t kMaxLinkTestBytes = 16 << 20;  // but at least one block
inline constexpr absl::string_view kLinkRequestPrefix = "link-test-";

// Thread-safe. The exporter is not owned; at most a few tests run at once.
class LinkService final : public v1::KvTransport::CallbackService {
 public:
  explicit LinkService(Exporter* exporter) : exporter_(exporter) {}
  grpc::ServerUnaryReactor* OpenLink(grpc::CallbackServerContext* context, const v1::OpenLinkRequest* request,
                                     v1::OpenLinkResponse* response) override;

 private:
  absl::Status Open(const v1::OpenLinkRequest& request, v1::OpenLinkResponse* response);

  Exporter* const exporter_;
  Mutex mu_;
  std::vector<std::weak_ptr<kvcache::BlockPool>> running_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_LINK_SERVICE_H_
