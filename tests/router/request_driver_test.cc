// The driver alone, with a client that takes whatever comes; and what its metrics say.
#include "router/request_driver.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/metrics.h"

namespace baton::router {
namespace {

class AnyClient final : public ClientStream {
  void Push(v1::GenerateResponse) override {}
  void Finish(absl::Status) override {}
};

// Such a request stayed in the table for ever: it held its id and a place in the queue. A short deadline on a busy router
// was enough.
TEST(RequestDriverTest, ADeadlineThatPassesBeforeTheTableHasTheRequestLeavesNothingInIt) {
  Metrics metrics;
  RouterMetrics router_metrics(&metrics, "tiny", "fingerprint");
  RequestTable table(10);
  ClusterView view({}, Clock::Real(), [](const WorkerId&, const std::string&) {});
  Placement placement(&view, Clock::Real(), PlacementOptions{});
  DriverContext context;
  context.table = &table;
  context.placement = &placement;
  context.metrics = &router_metrics;
  context.clock = Clock::Real();
  std::shared_ptr<RequestDriver> driver =
      RequestDriver::Create(&context, "a", absl::Now() - absl::Seconds(1),
                            [](const std::shared_ptr<RequestDriver>&) { return std::make_unique<AnyClient>(); });
  absl::SleepFor(absl::Milliseconds(300));  // whatever waits for the deadline runs
  ASSERT_TRUE(table.Add("a", driver).ok());
  driver->Reject(absl::InvalidArgumentError("anything that ends the request"));
  EXPECT_TRUE(table.WaitUntilNoneRuns(absl::Seconds(5)));
  driver.reset();
  table.WaitUntilGone();
}

// KV that moved by gRPC was counted as "other".
TEST(RouterMetricsTest, TransportsHaveTheirOwnNamesAndWorkersCannotMakeUpMore) {
  Metrics metrics;
  RouterMetrics router_metrics(&metrics, "tiny", "fingerprint");
  for (const char* transport : {"ucx", "grpc", "made up by a worker"}) {
    router_metrics.Started();
    RequestStats stats;
    stats.kv.set_transport(transport);
    stats.kv.set_bytes(7);
    router_metrics.Ended(absl::OkStatus(), stats, absl::ZeroDuration());
  }
  const std::string text = metrics.Expose();
  for (const char* transport : {"ucx", "grpc", "other"}) {
    EXPECT_NE(text.find(absl::StrCat("baton_kv_bytes_total{transport=\"", transport, "\"} 7")), std::string::npos) << text;
  }
  EXPECT_EQ(text.find("made up"), std::string::npos);
}

}  // namespace
}  // namespace baton::router
