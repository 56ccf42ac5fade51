// Routers in a real etcd that stops, dies, forgets and compacts.
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "common/membership/etcd_announcement.h"
#include "common/membership/etcd_directory.h"
#include "tests/common/membership/etcd_process.h"

namespace baton::membership {
namespace {

using testing::EtcdProcess;

// What a directory has told, last.
class Told {
 public:
  OnRouters Callback() {
    return [this](const std::vector<std::string>& routers) {
      MutexLock lock(&mu_);
      last_ = absl::StrJoin(routers, ",");
      ++calls_;
      cv_.SignalAll();
    };
  }
  ::testing::AssertionResult Becomes(const std::string& routers) {
    MutexLock lock(&mu_);
    const absl::Time until = absl::Now() + absl::Seconds(30);
    while (last_ != routers && absl::Now() < until) cv_.WaitWithTimeout(&mu_, absl::Milliseconds(100));
    if (last_ == routers) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "told \"" << last_ << "\", not \"" << routers << "\"";
  }
  std::string last() {
    MutexLock lock(&mu_);
    return last_;
  }

 private:
  Mutex mu_;
  CondVar cv_;
  std::string last_ ABSL_GUARDED_BY(mu_);
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
};

class EtcdTest : public ::testing::Test {
 protected:
  std::unique_ptr<RouterDirectory> Open(Told* told) {
    auto directory = OpenRouterDirectory(etcd_.Config(), told->Callback());
    EXPECT_TRUE(directory.ok()) << directory.status();
    return directory.ok() ? *std::move(directory) : nullptr;
  }
  std::unique_ptr<Announcement> AnnounceAt(const std::string& address) {
    auto announcement = Announce(etcd_.Config(), address);
    EXPECT_TRUE(announcement.ok()) << announcement.status();
    return announcement.ok() ? *std::move(announcement) : nullptr;
  }
  // Addresses that etcd holds now.
  std::string Held() {
    auto client = EtcdClient::Create(etcd_.Config());
    auto listing = (*client)->List(RoutersPrefix(etcd_.Config()));
    if (!listing.ok()) return listing.status().ToString();
    return absl::StrJoin(listing->kvs, ",", [](std::string* out, const etcdserverpb::KeyValue& kv) {
      absl::StrAppend(out, kv.key().substr(std::string("/baton/routers/").size()));
    });
  }
  ::testing::AssertionResult HeldBecomes(const std::string& routers) {
    std::string held;
    for (int i = 0; i < 300; ++i) {
      held = Held();
      if (held == routers) return ::testing::AssertionSuccess();
      absl::SleepFor(absl::Milliseconds(100));
    }
    return ::testing::AssertionFailure() << "etcd holds \"" << held << "\", not \"" << routers << "\"";
  }

  EtcdProcess etcd_;
};

TEST_F(EtcdTest, RoutersComeAndGo) {
  Told told;
  auto directory = Open(&told);
  auto a = AnnounceAt("127.0.0.1:5001");
  EXPECT_TRUE(told.Becomes("127.0.0.1:5001"));
  auto b = AnnounceAt("127.0.0.1:5002");
  EXPECT_TRUE(told.Becomes("127.0.0.1:5001,127.0.0.1:5002"));
  a.reset();  // takes its key back at once
  EXPECT_TRUE(told.Becomes("127.0.0.1:5002"));
  b.reset();
  EXPECT_TRUE(HeldBecomes(""));
  EXPECT_EQ(told.last(), "127.0.0.1:5002") << "an empty registry is taken to have lost its data";
}

TEST_F(EtcdTest, AnAnnouncementOutlivesItsLeaseByRenewingIt) {
  auto a = AnnounceAt("127.0.0.1:5001");
  EXPECT_TRUE(HeldBecomes("127.0.0.1:5001"));
  absl::SleepFor(absl::Seconds(5));  // the lease lasts 2 s
  EXPECT_EQ(Held(), "127.0.0.1:5001");
}

TEST_F(EtcdTest, AFrozenEtcdChangesNothingAndIsUsedAgain) {
  Told told;
  auto directory = Open(&told);
  auto a = AnnounceAt("127.0.0.1:5001");
  EXPECT_TRUE(told.Becomes("127.0.0.1:5001"));
  etcd_.Signal(SIGSTOP);
  absl::SleepFor(absl::Seconds(6));
  EXPECT_EQ(told.last(), "127.0.0.1:5001");
  etcd_.Signal(SIGCONT);
  auto b = AnnounceAt("127.0.0.1:5002");
  EXPECT_TRUE(told.Becomes("127.0.0.1:5001,127.0.0.1:5002"));
  EXPECT_TRUE(HeldBecomes("127.0.0.1:5001,127.0.0.1:5002"));
}

TEST_F(EtcdTest, ARestartWithoutItsDataIsFilledAgain) {
  Told told;
  auto directory = Open(&told);
  auto a = AnnounceAt("127.0.0.1:5001");
  EXPECT_TRUE(told.Becomes("127.0.0.1:5001"));
  etcd_.Restart(/*empty=*/true);
  EXPECT_TRUE(HeldBecomes("127.0.0.1:5001"));
  // Revisions begin anew there: a watch from the old one would never say anything.
  auto b = AnnounceAt("127.0.0.1:5002");
  EXPECT_TRUE(told.Becomes("127.0.0.1:5001,127.0.0.1:5002"));
}

TEST_F(EtcdTest, AWatchFromACompactedRevisionEndsInsteadOfWaiting) {
  auto client = EtcdClient::Create(etcd_.Config());
  ASSERT_TRUE(client.ok());
  auto lease = (*client)->GrantLease(absl::Seconds(60));
  ASSERT_TRUE(lease.ok()) << lease.status();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE((*client)->Put("/baton/routers/127.0.0.1:1", "", *lease).ok());
  auto listing = (*client)->List("/baton/routers/");
  ASSERT_TRUE(listing.ok());
  EXPECT_EQ(listing->kvs.size(), 1u);
  EXPECT_TRUE((*client)->AwaitChange("/baton/routers/", listing->revision - 2).ok()) << "what was missed is told";
  auto kv = etcdserverpb::KV::NewStub(grpc::CreateChannel(etcd_.endpoint(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  etcdserverpb::CompactionRequest request;
  request.set_revision(listing->revision);
  etcdserverpb::CompactionResponse response;
  ASSERT_TRUE(kv->Compact(&context, request, &response).ok());
  EXPECT_TRUE(absl::IsAborted((*client)->AwaitChange("/baton/routers/", listing->revision - 3)));
}

TEST_F(EtcdTest, OneOfSeveralEndpointsIsEnough) {
  v1::Config config = etcd_.Config();
  config.set_etcd_endpoints(absl::StrCat("127.0.0.1:1,", etcd_.endpoint(), ",127.0.0.1:2"));
  Told told;
  auto directory = OpenRouterDirectory(config, told.Callback());
  ASSERT_TRUE(directory.ok());
  auto a = Announce(config, "127.0.0.1:5001");
  ASSERT_TRUE(a.ok());
  EXPECT_TRUE(told.Becomes("127.0.0.1:5001"));
}

TEST(EtcdSettingsTest, WrongOnesSayWhatToDo) {
  v1::Config config;
  config.set_membership("etcd");
  config.set_etcd_prefix("/baton");
  config.set_etcd_lease_s(10);
  config.set_etcd_endpoints("etcd");
  EXPECT_TRUE(absl::IsInvalidArgument(Announce(config, "127.0.0.1:1").status()));
  config.set_etcd_endpoints("127.0.0.1:1");
  const absl::Status unreachable = Announce(config, "0.0.0.0:50051").status();
  EXPECT_TRUE(absl::IsInvalidArgument(unreachable));
  EXPECT_NE(unreachable.message().find("advertise"), absl::string_view::npos) << unreachable;
  config.set_etcd_tls_ca("/nonexistent/ca.pem");
  EXPECT_TRUE(absl::IsNotFound(Announce(config, "127.0.0.1:1").status()));
  config.clear_etcd_tls_ca();
  config.set_etcd_tls_cert("cert.pem");
  EXPECT_TRUE(absl::IsInvalidArgument(Announce(config, "127.0.0.1:1").status()));
}

}  // namespace
}  // namespace baton::membership
