#include "router/worker_channels.h"

#include <vector>

#include "common/rpc/channel.h"

namespace baton::router {

std::shared_ptr<WorkerStubs> WorkerChannels::Get(const WorkerRef& worker) {
  MutexLock lock(&mu_);
  std::shared_ptr<WorkerStubs>& stubs = stubs_[worker.id];
  if (stubs == nullptr) {
    // Two channels, for each asks for a server of its role; only the one that is used connects.
    rpc::ChannelOptions options;
    options.own_connection = true;
    options.security = security_;
    options.peer = rpc::PeerRole::kPrefill;
    stubs = std::make_shared<WorkerStubs>();
    const auto prefill = rpc::CreateChannel(worker.address, options);
    stubs->prefill = v1::PrefillWorker::NewStub(prefill);
    stubs->prefill_host = v1::Worker::NewStub(prefill);
    options.peer = rpc::PeerRole::kDecode;
    const auto decode = rpc::CreateChannel(worker.address, options);
    stubs->decode = v1::DecodeWorker::NewStub(decode);
    stubs->decode_host = v1::Worker::NewStub(decode);
  }
  return stubs;
}

void WorkerChannels::KeepOnly(const std::set<WorkerId>& ids) {
  std::vector<std::shared_ptr<WorkerStubs>> dropped;  // declared before the lock, so that channels close after it
  MutexLock lock(&mu_);
  for (auto it = stubs_.begin(); it != stubs_.end();) {
    if (ids.count(it->first) > 0) {
      ++it;
    } else {
      dropped.push_back(std::move(it->second));
      it = stubs_.erase(it);
    }
  }
}

}  // namespace baton::router
