// An exporter on a simulated clock with a pool of tiny blocks, all of which must be free at the end.
#ifndef BATON_TESTS_KVTRANSFER_EXPORTER_FIXTURE_H_
#define BATON_TESTS_KVTRANSFER_EXPORTER_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kvtransfer/exporter.h"
#include "tests/kvtransfer/testing.h"

namespace baton::kvtransfer::testing {

class ExporterFixture : public ::testing::Test {
 protected:
  ExporterFixture() { exporter_.AddEndpoint(Endpoint(exporter_)); }
  ~ExporterFixture() override {
    EXPECT_EQ(exporter_.counters().impossible, 0u);
    exporter_.ReleaseAll();
    ExpectAllFree(*pool_);
  }
  static v1::Endpoint Endpoint(const Exporter& e) {
    v1::Endpoint endpoint;
    endpoint.set_worker_name(e.options().worker_name);
    endpoint.set_incarnation(e.options().incarnation);
    endpoint.set_transport("loopback");
    return endpoint;
  }
  Exporter::Options Options(size_t max_outstanding = 8) {
    return {.worker_name = "p0",
            .incarnation = RandomIncarnation(),
            .key = TestKey(),
            .layout = TinyLayout(),
            .fingerprint = kvtransfer::testing::Fingerprint(),
            .clock = &clock_,
            .max_outstanding = max_outstanding};
  }
  absl::StatusOr<v1::Ticket> Export(const std::string& request = "r", uint32_t epoch = 1, int64_t blocks = 2) {
    return exporter_.ExportSealed(Spec(request, epoch, blocks), FilledLease(pool_.get(), blocks, 5));
  }
  static ExportSpec Spec(const std::string& request = "r", uint32_t epoch = 1, int64_t blocks = 2) {
    return {.request_id = request,
            .epoch = epoch,
            .num_tokens = static_cast<uint32_t>(blocks * 16),
            .lease = absl::Seconds(30)};
  }
  // An export of three blocks, none of which is sealed.
  v1::Ticket OpenExport(uint32_t num_consumers = 1) {
    ExportSpec spec = Spec("open", 1, 3);
    spec.num_consumers = num_consumers;
    return *exporter_.Export(spec, FilledLease(pool_.get(), 3, 5));
  }
  static v1::FetchOpen Open(const v1::Ticket& ticket, const std::string& consumer = "", uint32_t attempt = 1,
                            uint32_t first_block = 0) {
    v1::FetchOpen open;
    *open.mutable_ticket() = ticket;
    open.set_consumer(consumer);
    open.set_attempt(attempt);
    open.set_first_block(first_block);
    return open;
  }
  uint64_t refusals(Refusal why) { return exporter_.counters().refusals[static_cast<int>(why)]; }

  SimulatedClock clock_;
  std::shared_ptr<kvcache::BlockPool> pool_ = MakePool(TinyLayout(), 64);
  Exporter exporter_{Options()};
};

}  // namespace baton::kvtransfer::testing

#endif  // BATON_TESTS_KVTRANSFER_EXPORTER_FIXTURE_H_
