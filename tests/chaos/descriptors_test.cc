// A process that has run out of file descriptors: it goes on with the connections it has, takes no new ones, and takes them again
// when there are descriptors again. (gRPC 1.51's own listener never did: common/rpc/acceptor.h.)
#include <dirent.h>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "tests/chaos/clients.h"
#include "tests/chaos/compare.h"
#include "tests/common/rpc/raw_http.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

// A limit under which the process may open `free` descriptors more.
rlim_t LimitFor(pid_t process, int free) {
  std::set<int> open;
  DIR* folder = opendir(absl::StrCat("/proc/", process, "/fd").c_str());
  for (dirent* entry; folder != nullptr && (entry = readdir(folder)) != nullptr;) {
    int fd = 0;
    if (absl::SimpleAtoi(entry->d_name, &fd)) open.insert(fd);
  }
  if (folder != nullptr) closedir(folder);
  int limit = 0;
  for (; free > 0; ++limit) free -= open.count(limit) == 0;
  return static_cast<rlim_t>(limit);
}

int PortOf(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  return port;
}

// Over a connection of its own.
grpc::Status AskAnew(const std::string& address, absl::Duration timeout) {
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::Worker::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), own));
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + timeout);
  v1::WorkerStatus status;
  // A router has no such service, and says so.
  return stub->GetWorkerStatus(&context, v1::GetWorkerStatusRequest(), &status);
}

bool Answered(const grpc::Status& status) { return status.ok() || status.error_code() == grpc::StatusCode::UNIMPLEMENTED; }

TEST(DescriptorsTest, AProcessWithoutDescriptorsServesWhoIsConnectedAndTakesOthersLater) {
  auto started = Cluster::Start({.model = TinyModel(), .flags = {"--kv-memory-mib=16"}});
  ASSERT_TRUE(started.ok()) << started.status();
  Cluster* const cluster = started->get();
  const Workload load = MakeWorkload(cluster, 1, 4);
  struct Target {
    std::string name, address, http;
    Process* process;
  };
  std::vector<Target> targets = {{"router", cluster->router_address(), cluster->router_http(), &cluster->router()}};
  for (auto& worker : cluster->workers()) {
    targets.push_back({worker->name, worker->address, worker->http, worker->process.get()});
  }
  for (const Target& target : targets) {
    SCOPED_TRACE(target.name);
    rlimit before{};
    ASSERT_EQ(prlimit(target.process->pid(), RLIMIT_NOFILE, nullptr, &before), 0);
    rlimit few = before;
    few.rlim_cur = LimitFor(target.process->pid(), 20);
    ASSERT_EQ(prlimit(target.process->pid(), RLIMIT_NOFILE, &few, nullptr), 0);
    {
      std::vector<std::unique_ptr<testing::RawHttp>> silent;
      for (int i = 0; i < 40; ++i) {
        for (const std::string& address : {target.address, target.http}) {
          silent.push_back(std::make_unique<testing::RawHttp>(PortOf(address)));
        }
      }
      EXPECT_FALSE(Answered(AskAnew(target.address, absl::Milliseconds(500))));
      for (size_t i = 0; i < load.requests.size(); ++i) {
        EXPECT_EQ(Difference(cluster->Generate(load.requests[i]), load.want[i]), "") << "request " << i;
      }
    }
    ASSERT_EQ(prlimit(target.process->pid(), RLIMIT_NOFILE, &before, nullptr), 0);
    const absl::Time late = absl::Now() + absl::Seconds(30);
    grpc::Status status;
    do {
      status = AskAnew(target.address, absl::Seconds(5));
    } while (!Answered(status) && absl::Now() < late);
    EXPECT_TRUE(Answered(status)) << status.error_message();
    testing::RawHttp http(PortOf(target.http));
    http.Send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(http.ReadReply().status, 200);
  }
  const absl::Status ready = cluster->WaitReady(absl::Seconds(20));
  EXPECT_TRUE(ready.ok()) << ready;
  EXPECT_EQ(Difference(cluster->Generate(load.requests[0]), load.want[0]), "");
  ExpectNothingHeld(cluster);
}

}  // namespace
}  // namespace baton::e2e
