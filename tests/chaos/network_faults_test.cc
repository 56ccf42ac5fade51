// Every process of a cluster in a network namespace of its own, with its settings' defaults: workers are killed, frozen and
// cut off from the router or from one another, in both directions or one; their connections are reset; etcd, by which they
// find the router, is lost. Every stream must equal the undisturbed one, and nothing may be left behind. How long streams
// stood still is printed.
#include <signal.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/chaos/clients.h"
#include "tests/chaos/compare.h"
#include "tests/chaos/network.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

// A real etcd on a host of its own.
class EtcdHost {
 public:
  explicit EtcdHost(const Host& host) : host_(host) {
    const char* tmp = getenv("TEST_TMPDIR");
    data_ = absl::StrCat(tmp != nullptr ? tmp : "/tmp", "/etcd-", getpid(), "-", host.name);
    Start();
  }
  ~EtcdHost() {
    process_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(data_, ignored);
  }
  std::string endpoint() const { return host_.address + ":2379"; }
  Process& process() { return *process_; }
  void Start() {
    process_.reset();
    const char* cache = getenv("BATON_CACHE");
    const std::string folder = cache != nullptr ? std::string(cache) : absl::StrCat(getenv("HOME"), "/.cache/baton");
    const std::string program = folder + "/tools/usr/bin/etcd";
    ASSERT_EQ(access(program.c_str(), X_OK), 0) << program << " is missing; run scripts/setup --tests";
    const std::string client = absl::StrCat("http://", endpoint()), peer = absl::StrCat("http://", host_.address, ":2380");
    auto process = Process::Start({program, "--data-dir", data_, "--listen-client-urls", client, "--advertise-client-urls",
                                   client, "--listen-peer-urls", peer, "--initial-cluster", absl::StrCat("default=", peer),
                                   "--initial-advertise-peer-urls", peer, "--unsafe-no-fsync", "--log-level", "error"},
                                  host_.netns);
    ASSERT_TRUE(process.ok()) << process.status();
    process_ = *std::move(process);
  }

 private:
  const Host host_;
  std::string data_;
  std::unique_ptr<Process> process_;
};

class NetworkFaultsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto network = Network::Create();
    if (network.ok()) {
      network_ = network->release();
    } else {
      why_not_ = std::string(network.status().message());
    }
  }
  void SetUp() override {
    if (network_ == nullptr) GTEST_SKIP() << "needs network namespaces: " << why_not_;
  }

  absl::StatusOr<const Host*> HostOf(const std::string& name) { return network_->AddHost(absl::StrCat(prefix_, name)); }

  void StartCluster(const std::string& mode, const std::string& prefix) {
    seed_ = static_cast<uint64_t>(FromEnvironment("BATON_CHAOS_SEED", 1));
    printf("BATON_CHAOS_SEED=%d\n", static_cast<int>(seed_));
    prefix_ = prefix;
    const auto etcd = HostOf("etcd");
    ASSERT_TRUE(etcd.ok()) << etcd.status();
    etcd_ = std::make_unique<EtcdHost>(**etcd);
    ASSERT_FALSE(HasFailure());
    auto cluster = Cluster::Start({.model = TinyModel(),
                                   .prefill = 2,
                                   .decode = 2,
                                   .flags = {"--kv-memory-mib=16", "--allow-plaintext", "--membership=etcd",
                                             absl::StrCat("--etcd-endpoints=", etcd_->endpoint())},
                                   .mode = mode,
                                   .place = [this](const std::string& name) -> absl::StatusOr<Place> {
                                     const auto host = HostOf(name);
                                     if (!host.ok()) return host.status();
                                     return Place{(*host)->netns, (*host)->address};
                                   }});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    load_ = MakeWorkload(cluster_.get(), seed_, 24);
    ASSERT_FALSE(HasFailure());
  }

  // One fault, from its beginning to when it is mended; says which.
  std::string Inject(std::mt19937_64& random);
  std::string LoseEtcd(absl::Duration length, uint64_t how);
  std::string CutOff(WorkerProcess& victim, absl::Duration length, uint64_t how);
  void Disturb(int faults);

  static inline Network* network_ = nullptr;
  static inline std::string why_not_;
  uint64_t seed_ = 0;
  std::string prefix_;
  std::unique_ptr<EtcdHost> etcd_;
  std::unique_ptr<Cluster> cluster_;
  Workload load_;
};

std::string NetworkFaultsTest::LoseEtcd(absl::Duration length, uint64_t how) {
  if (how == 0) {
    etcd_->process().Signal(SIGKILL);
    absl::SleepFor(length);
    etcd_->Start();
    return "etcd killed";
  }
  if (how == 1) {
    etcd_->process().Signal(SIGSTOP);
    absl::SleepFor(length);
    etcd_->process().Signal(SIGCONT);
    return "etcd frozen";
  }
  EXPECT_TRUE(network_->Isolate(**HostOf("etcd")).ok());
  absl::SleepFor(length);
  return "etcd cut off";
}

std::string NetworkFaultsTest::CutOff(WorkerProcess& victim, absl::Duration length, uint64_t how) {
  const Host& worker = **HostOf(victim.name);
  const Host& router = **HostOf("router");
  absl::Status cut;
  std::string kind;
  switch (how) {
    case 0:
      kind = "router and worker parted";
      cut = network_->CutBoth(router, worker);
      break;
    case 1:
      kind = "router does not reach worker";
      cut = network_->Cut(router, worker);
      break;
    case 2:
      kind = "worker does not reach router";
      cut = network_->Cut(worker, router);
      break;
    case 3:
      kind = "worker alone";
      cut = network_->Isolate(worker);
      break;
    default:
      kind = "worker parted from the other pool";
      for (const auto& other : cluster_->workers()) {
        if (other->role != victim.role) cut.Update(network_->CutBoth(worker, **HostOf(other->name)));
      }
  }
  EXPECT_TRUE(cut.ok()) << cut;
  absl::SleepFor(length);
  return kind;
}

std::string NetworkFaultsTest::Inject(std::mt19937_64& random) {
  WorkerProcess& victim = *cluster_->workers()[random() % cluster_->workers().size()];
  const absl::Duration length = absl::Milliseconds(200 + static_cast<int64_t>(random() % 2300));
  const uint64_t kind = random() % 12;
  if (kind < 2) {
    victim.process->Signal(SIGKILL);
    const absl::Status again = cluster_->Restart(victim);
    EXPECT_TRUE(again.ok()) << again;
    return "worker killed";
  }
  if (kind < 4) {
    victim.process->Signal(SIGSTOP);
    absl::SleepFor(length);
    victim.process->Signal(SIGCONT);
    return "worker frozen";
  }
  if (kind < 6) {
    const absl::Status reset = network_->ResetConnections(**HostOf(victim.name));
    EXPECT_TRUE(reset.ok()) << reset;
    return "connections reset";
  }
  return kind == 6 ? LoseEtcd(length, random() % 3) : CutOff(victim, length, kind - 7);
}

void NetworkFaultsTest::Disturb(int faults) {
  std::mt19937_64 random(seed_);
  std::map<std::string, std::vector<absl::Duration>> stalls;
  Clients clients(cluster_.get(), &load_, 4);
  for (int fault = 0; fault < faults && !HasFailure(); ++fault) {
    clients.WaitForTokens(100 + static_cast<int64_t>(random() % 400));
    clients.TakeWorstStall();
    const std::string kind = Inject(random);
    const absl::Status healed = network_->HealAll();
    ASSERT_TRUE(healed.ok()) << healed;
    const absl::Status ready = cluster_->WaitReady(absl::Seconds(60));
    ASSERT_TRUE(ready.ok()) << ready << " after fault " << fault << ", " << kind;
    clients.WaitForTokens(1);
    const absl::Duration stall = clients.TakeWorstStall();
    stalls[kind].push_back(stall);
    stalls["all"].push_back(stall);
  }
  clients.Stop();
  const double moves = cluster_->Metric(cluster_->router_http(), "baton_request_retries_total");
  printf("%d faults, %d streams equal, %.0f moves; longest stall of each fault:\n", faults, clients.completed(), moves);
  for (const auto& [kind, of_kind] : stalls) printf("  %s: %s\n", kind.c_str(), Percentiles(of_kind).c_str());
  EXPECT_GT(clients.completed(), faults / 2);
  EXPECT_GT(moves, faults / 10) << "the faults hit nothing";
  ExpectNothingHeld(cluster_.get());
}

TEST_F(NetworkFaultsTest, EveryStreamEqualsTheUndisturbedOne) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("disaggregated", "remote-"));
  Disturb(FromEnvironment("BATON_NETWORK_FAULTS", 50) * 3 / 5);
}

// Until its keepalive or its lease a hand-over waited for a silent peer; the stall is printed.
TEST_F(NetworkFaultsTest, APoolThatIsCutOffCostsOneSilence) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("disaggregated", "pool-"));
  Clients clients(cluster_.get(), &load_, 4);
  for (auto& victim : cluster_->workers()) {
    clients.WaitForTokens(200);
    clients.TakeWorstStall();
    CutOff(*victim, absl::Seconds(5), 4);
    printf("%s cut off from the other pool for 5 s: longest stall %.0f ms\n", victim->name.c_str(),
           absl::ToDoubleMilliseconds(clients.TakeWorstStall()));
    ASSERT_TRUE(network_->HealAll().ok());
  }
  clients.Stop();
  ExpectNothingHeld(cluster_.get());
}

TEST_F(NetworkFaultsTest, EveryStreamEqualsTheUndisturbedOneInAutoMode) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("auto", "auto-"));
  Disturb(FromEnvironment("BATON_NETWORK_FAULTS", 50) * 2 / 5);
}

}  // namespace
}  // namespace baton::e2e
