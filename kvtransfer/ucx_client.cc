#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kvtransfer/ucx_client_impl.h"

namespace baton::kvtransfer {

absl::Status UcxClientImpl::OnStart() {
  if (absl::Status s = SetHandlerOfAll(&OnUnknownMessage, this); !s.ok()) return s;
  if (absl::Status s = SetHandler(static_cast<unsigned>(UcxMessage::kBlock), &OnBlockMessage, this); !s.ok()) return s;
  if (absl::Status s = SetHandler(static_cast<unsigned>(UcxMessage::kBeat), &OnBeatMessage, this); !s.ok()) return s;
  return SetHandler(static_cast<unsigned>(UcxMessage::kEnd), &OnEndMessage, this);
}

FetchId UcxClientImpl::Fetch(FetchRequest request, FetchCallback done) {
  const FetchId id = ++last_id_;
  auto held = std::make_shared<Job>(
      Job{.id = id, .reception = Reception(&receiver_, kTransportName, std::move(request)), .done = std::move(done)});
  if (!Post([this, held] { Begin(std::move(*held)); })) {
    held->done(absl::CancelledError("the transport is shut down"), std::move(held->reception.destination()));
  }
  return id;
}

void UcxClientImpl::Cancel(FetchId id) {
  Post([this, id] { Fail(id, absl::CancelledError("the fetch was cancelled")); });
}

void UcxClientImpl::Begin(Job job) {
  Count(&UcxClientCounters::fetches);
  absl::Status s = job.reception.Check();
  if (s.ok()) s = Reachable(job.reception.endpoint()).status();
  const TransferId transfer = TransferId::Of(job.reception.ticket());
  if (s.ok() && by_transfer_.count(transfer) > 0) {
    s = absl::AbortedError("the ticket is already being fetched; one ticket is good for one fetch");
  }
  if (s.ok() && absl::Now() >= job.reception.deadline()) {
    s = absl::DeadlineExceededError("the deadline passed before the KV fetch");
  }
  if (!s.ok()) {
    Count(&UcxClientCounters::failed);
    job.done(std::move(s), std::move(job.reception.destination()));
    return;
  }
  by_transfer_[transfer] = job.id;
  const FetchId id = job.id;
  Connect(&jobs_.emplace(id, std::move(job)).first->second);
}

void UcxClientImpl::PieceArrived(FetchId id, size_t block_idx, uint64_t offset, ucs_status_t status) {
  auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  Job& job = it->second;
  --job.arriving;
  if (job.over) {
    if (job.arriving == 0) EndQuarantine(it);
    return;
  }
  if (!job.lost.ok()) return;  // the end of the connection ends it
  if (status != UCS_OK) {
    const absl::Status why = UcxError(
        absl::StrCat("block ", block_idx, " did not arrive from worker ", job.reception.endpoint().worker_name()), status);
    Conn* conn = FindConn(job.conn);
    return conn != nullptr && !conn->closing ? LoseConn(conn, why) : Fail(id, why);
  }
  if (absl::Status s = job.reception.PieceArrived(block_idx, offset); !s.ok()) {
    Fail(id, s);
    return;
  }
  MaybeSucceed(id);
}

void UcxClientImpl::EndArrived(FetchId id, const std::string& bytes) {
  auto it = jobs_.find(id);
  if (it == jobs_.end() || it->second.over) return;
  it->second.server_done = true;
  v1::TransferEnd end;
  if (!end.ParseFromString(bytes)) return Fail(id, absl::DataLossError("the transfer's last message is not one"));
  if (absl::Status s = it->second.reception.TakeEnd(end); !s.ok()) return Fail(id, s);
  MaybeSucceed(id);
}

void UcxClientImpl::MaybeSucceed(FetchId id) {
  auto it = jobs_.find(id);
  // A request that finished early may still have blocks on their way: the memory is not the caller's before they landed.
  if (!it->second.reception.complete() || it->second.arriving > 0) return;
  Job job = std::move(it->second);
  jobs_.erase(it);
  by_transfer_.erase(TransferId::Of(job.reception.ticket()));
  std::string detail;
  if (Conn* conn = FindConn(job.conn); conn != nullptr) {
    if (conn->detail.empty() && !conn->closing) conn->detail = DescribeEndpoint(conn->ep);
    detail = conn->detail;
  }
  Count(&UcxClientCounters::completed);
  FetchResult result = job.reception.Result(std::move(detail));
  job.done(std::move(result), std::move(job.reception.destination()));
}

void UcxClientImpl::Fail(FetchId id, const absl::Status& why) {
  auto it = jobs_.find(id);
  if (it == jobs_.end() || it->second.over) return;
  Job& job = it->second;
  const TransferId transfer = TransferId::Of(job.reception.ticket());
  by_transfer_.erase(transfer);
  Count(&UcxClientCounters::failed);
  if (Conn* conn = FindConn(job.conn); conn != nullptr && !conn->closing) {
    // Sent even if the server has ended already: it ignores what it does not know. An unanswered connection that the
    // server refused is closed by it.
    if (conn->established && !job.server_done) {
      Send(conn->ep, static_cast<unsigned>(UcxMessage::kStop), EncodeStop(transfer), "", nullptr, 0,
           UCP_AM_SEND_FLAG_EAGER, [](ucs_status_t) {});
    }
  }
  FetchCallback done = std::move(job.done);
  // A copy that shares nothing with ours: the reference count of a shared one is handled inside libabsl, where thread
  // sanitizer does not see it.
  absl::Status reason(why.code(), why.message());
  if (job.arriving == 0) {
    kvcache::BlockLease destination = std::move(job.reception.destination());
    jobs_.erase(it);
    done(std::move(reason), std::move(destination));
    return;
  }
  job.over = true;
  job.cut_at = absl::Now() + options_.quiet_timeout;
  job.pool = job.reception.destination().pool()->shared_from_this();
  job.quarantine = job.reception.destination().Quarantine();
  Count(&UcxClientCounters::quarantines);
  Count(&UcxClientCounters::quarantines_open);
  done(std::move(reason), kvcache::BlockLease());
}

void UcxClientImpl::EndQuarantine(Jobs::iterator it) {
  it->second.pool->EndQuarantine(it->second.quarantine).IgnoreError();  // the token is ours: it is known
  jobs_.erase(it);
  Count(&UcxClientCounters::quarantines_open, -1);
}

absl::Time UcxClientImpl::OnTick(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  std::vector<FetchId> late;
  std::vector<FetchId> retry;
  std::vector<FetchId> silent;
  for (auto& [id, job] : jobs_) {
    if (job.over) {
      Conn* conn = FindConn(job.conn);
      if (now >= job.cut_at && conn != nullptr && !conn->closing) {
        LoseConn(conn, absl::UnavailableError("the connection was cut because a stopped transfer did not end"));
        return now;  // the maps have changed
      }
      next = std::min(next, std::max(job.cut_at, now + absl::Milliseconds(1)));
      continue;
    }
    if (now >= job.reception.deadline()) {
      late.push_back(id);
    } else if (now >= job.silent_at) {
      silent.push_back(id);
    } else if (now >= job.retry_at) {
      retry.push_back(id);
    } else if (Conn* conn = FindConn(job.conn); now >= job.beat_at && conn != nullptr && !conn->closing) {
      job.beat_at = now + HeartbeatInterval(job.reception.ticket());
      Send(conn->ep, static_cast<unsigned>(UcxMessage::kBeat), EncodeBeat(TransferId::Of(job.reception.ticket())), "",
           nullptr, 0, UCP_AM_SEND_FLAG_EAGER, [](ucs_status_t) {});
    }
    next = std::min({next, job.reception.deadline(), job.retry_at, job.silent_at, job.beat_at});
  }
  for (FetchId id : late) Fail(id, absl::DeadlineExceededError("the deadline passed during the KV fetch"));
  for (FetchId id : silent) {
    auto it = jobs_.find(id);
    if (it == jobs_.end() || !it->second.lost.ok()) continue;
    const absl::Status why = absl::UnavailableError("the exporting worker fell silent during the KV fetch");
    // Closed, so that nothing of it can arrive any more: the destination is free for another way at once.
    Conn* conn = FindConn(it->second.conn);
    if (conn != nullptr && !conn->closing) {
      LoseConn(conn, why);
    } else {
      Fail(id, why);
    }
  }
  for (FetchId id : retry) {
    if (auto it = jobs_.find(id); it != jobs_.end()) Connect(&it->second);
  }
  return next;
}

void UcxClientImpl::OnStop() {
  std::vector<FetchId> ids;
  for (const auto& [id, job] : jobs_) ids.push_back(id);
  for (FetchId id : ids) Fail(id, absl::CancelledError("the transport is shut down"));
  for (auto& [id, conn] : conns_) CloseConn(conn.get());
}

void UcxClientImpl::OnRecycle(const absl::Status& why) {
  Count(&UcxClientCounters::restarts);
  std::vector<ConnId> open;
  for (const auto& [id, conn] : conns_) {
    if (!conn->closing) open.push_back(id);
  }
  for (const ConnId id : open) LoseConn(FindConn(id), why);
}

// What UCX did not complete when its worker ended never will be.
void UcxClientImpl::ForgetReceives() {
  for (ReceiveOp* op : receives_) delete op;
  receives_.clear();
}

// The worker is gone and nothing can arrive.
void UcxClientImpl::OnStopped() {
  ForgetReceives();
  while (!jobs_.empty()) {
    auto it = jobs_.begin();
    if (it->second.over) {
      EndQuarantine(it);
    } else {
      it->second.arriving = 0;
      Fail(it->first, absl::CancelledError("the transport is shut down"));
    }
  }
  conns_.clear();
}

absl::StatusOr<std::unique_ptr<UcxClient>> UcxClient::Start(ReceiverOptions receiver, UcxOptions options) {
  auto client = std::make_unique<UcxClientImpl>(std::move(receiver), std::move(options));
  if (absl::Status s = client->Start(); !s.ok()) return s;
  return std::unique_ptr<UcxClient>(std::move(client));
}

}  // namespace baton::kvtransfer
