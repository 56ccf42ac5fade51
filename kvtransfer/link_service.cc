#include "kvtransfer/link_service.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace baton::kvtransfer {
namespace {

constexpr size_t kMaxRunning = 4;
constexpr absl::Duration kLease = absl::Seconds(5);

}  // namespace

absl::Status LinkService::Open(const v1::OpenLinkRequest& request, v1::OpenLinkResponse* response) {
  const Exporter::Options& options = exporter_->options();
  if (request.worker_name() != options.worker_name || request.incarnation() != options.incarnation) {
    return absl::FailedPreconditionError(absl::StrCat("this is worker ", options.worker_name, ", incarnation ",
                                                      options.incarnation, ", not the one that was meant"));
  }
  const uint64_t block_bytes = options.layout.block_bytes();
  const int64_t num_blocks =
      static_cast<int64_t>(std::max<uint64_t>(1, std::min(request.max_bytes(), kMaxLinkTestBytes) / block_bytes));
  absl::StatusOr<std::shared_ptr<kvcache::BlockPool>> pool = kvcache::BlockPool::Create(options.layout, num_blocks);
  if (!pool.ok()) return pool.status();
  {
    MutexLock lock(&mu_);
    std::erase_if(running_, [](const std::weak_ptr<kvcache::BlockPool>& p) { return p.expired(); });
    if (running_.size() >= kMaxRunning) {
      return absl::ResourceExhaustedError("other workers are trying their links just now; try again");
    }
    running_.push_back(*pool);
  }
  std::optional<kvcache::BlockLease> lease = (*pool)->AllocateLease(num_blocks);
  if (!lease.has_value()) return absl::InternalError("a new pool has no room");
  // Written, so that real pages are read and not the one page of zeros.
  for (size_t i = 0; i < lease->blocks().size(); ++i) std::memset(lease->bytes(i).data(), 0, lease->bytes(i).size());
  ExportSpec spec;
  spec.request_id = absl::StrCat(kLinkRequestPrefix, TransferId::Random().ToString());
  spec.num_tokens = static_cast<uint32_t>(num_blocks * options.layout.block_size);
  spec.lease = kLease;
  absl::StatusOr<v1::Ticket> ticket = exporter_->ExportSealed(spec, *std::move(lease));
  if (!ticket.ok()) return ticket.status();
  *response->mutable_ticket() = *std::move(ticket);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* LinkService::OpenLink(grpc::CallbackServerContext* context,
                                                const v1::OpenLinkRequest* request, v1::OpenLinkResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(Open(*request, response)));
  return reactor;
}

}  // namespace baton::kvtransfer
