#include "router/worker_channels.h"

#include <vector>

#include "common/rpc/channel.h"

namespace baton::router {

std::shared_ptr<WorkerStubs> WorkerChannels::Get(const WorkerRef& worker) {
  MutexLock lock(&mu_);
  std::shared_ptr<WorkerStubs>& stubs = stubs_[worker.id];
  if (stubs == nullptr) {
    rpc::ChannelOptions options;
    options.own_connection = true;
    const std::shared_ptr<grpc::Channel> channel = rpc::CreateChannel(worker.address, options);
    stubs = std::make_shared<WorkerStubs>();
    stubs->prefill = v1::PrefillWorker::NewStub(channel);
    stubs->decode = v1::DecodeWorker::NewStub(channel);
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
