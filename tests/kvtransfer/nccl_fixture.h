// The serving half of the NCCL transport over the NCCL of tests, for fixtures: an exporter and the gRPC port it is asked at.
#ifndef BATON_TESTS_KVTRANSFER_NCCL_FIXTURE_H_
#define BATON_TESTS_KVTRANSFER_NCCL_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "kvtransfer/exporter.h"
#include "kvtransfer/grpc_transport.h"
#include "kvtransfer/nccl_loopback.h"
#include "kvtransfer/nccl_transport.h"

namespace baton::kvtransfer::testing {

class NcclFixture : public ::testing::Test {
 protected:
  void StartServer(const NcclOptions& options) {
    service_ = *NcclKvService::Create(exporter_.get(), options);
    GrpcKvOptions grpc;
    grpc.services.push_back({"baton.v1.KvNccl", {service_, service_->service()}});
    auto port = GrpcKvServer::Start(exporter_.get(), grpc, /*advertise=*/false);
    ASSERT_TRUE(port.ok()) << port.status();
    port_ = *std::move(port);
    server_ = MakeNcclKvServer(exporter_.get(), service_, port_->endpoint());
    exporter_->AddEndpoint(port_->endpoint());
  }
  // When the clients are shut down: nothing may be left of what they did. The next test begins without faults.
  void StopServer() {
    if (server_ != nullptr) server_->Shutdown();
    if (port_ != nullptr) port_->Shutdown();
    EXPECT_EQ(NumLoopbackComms(), 0);
    if (exporter_ != nullptr) {
      EXPECT_EQ(exporter_->counters().in_flight, 0u);
      EXPECT_EQ(exporter_->counters().impossible, 0u);
      exporter_->ReleaseAll();
    }
    port_.reset();
    server_.reset();
    service_.reset();
    exporter_.reset();
    NcclLoopbackFaults& faults = LoopbackFaults();
    faults.init_hangs = faults.reports_death = false;
    faults.break_at_group = faults.hang_at_group = faults.corrupt_at_group = 0;
    faults.abort_ms = faults.slow_rank_1_ms = 0;
  }

  std::shared_ptr<kvcache::BlockPool> from_, to_;
  std::unique_ptr<Exporter> exporter_;
  std::shared_ptr<NcclKvService> service_;
  std::unique_ptr<TransportServer> server_;
  std::unique_ptr<GrpcKvServer> port_;
};

}  // namespace baton::kvtransfer::testing

#endif  // BATON_TESTS_KVTRANSFER_NCCL_FIXTURE_H_
