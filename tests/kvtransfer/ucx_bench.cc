// Speed of the hand-over over UCX between two processes, with blocks of SmolLM2-135M (368,640 bytes), beside memcpy.
// Both pools are as large as the transfer, so that all pages are touched after the first round.
//
//   bazel run //tests/kvtransfer:ucx_bench
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "kvtransfer/ucx_transport.h"
#include "tests/kvtransfer/peer_process.h"
#include "tests/kvtransfer/testing.h"

namespace baton::kvtransfer {
namespace {

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}
double Best(const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); }

template <typename F>
double Seconds(F f) {
  const auto t = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

int Main() {
  constexpr int kRounds = 31;
  const std::string key(32, 'k');
  const size_t block_bytes = testing::SmolLayout().block_bytes();
  std::printf("%6s %10s %10s %22s %22s %22s  %s\n", "blocks", "bytes", "fetch ms", "fetch GB/s (best)",
              "memcpy GB/s (best)", "xxh3 GB/s (best)", "via");
  for (int blocks : {1, 4, 28, 64}) {
    auto pool = testing::MakePool(testing::SmolLayout(), blocks);
    testing::PeerProcess peer("p0", key, blocks);
    auto client = UcxClient::Start({.key = *ClusterKey::FromBytes(key), .layout = testing::SmolLayout(),
                                    .fingerprint = testing::Fingerprint()});
    if (!client.ok()) return 1;
    std::vector<double> fetch;
    std::string detail;
    for (int i = 0; i < kRounds; ++i) {
      testing::Outcome outcome;
      v1::Ticket ticket;
      // The blocks of the previous round come back a moment after its fetch ended.
      if (!testing::Eventually([&] { return peer.GetState().AllFree(); })) return 1;
      ticket = peer.Export("r" + std::to_string(i), 1, blocks, i);
      (*client)->Fetch({.ticket = ticket, .destination = *pool->AllocateLease(blocks), .deadline = testing::Soon()}, outcome.Callback());
      auto stats = outcome.Wait();
      if (!stats.ok()) {
        std::fprintf(stderr, "%s\n", stats.status().ToString().c_str());
        return 1;
      }
      fetch.push_back(absl::ToDoubleSeconds(stats->duration));
      detail = stats->detail;
    }
    std::vector<std::byte> copy(blocks * block_bytes);
    std::vector<double> memcpy_s;
    std::vector<double> hash_s;
    uint64_t sum = 0;
    for (int i = 0; i < kRounds; ++i) {
      memcpy_s.push_back(Seconds([&] { std::memcpy(copy.data(), pool->view().base, copy.size()); }));
      hash_s.push_back(Seconds([&] {
        for (int b = 0; b < blocks; ++b) sum += BlockChecksum({copy.data() + b * block_bytes, block_bytes});
      }));
    }
    const double gb = static_cast<double>(copy.size()) / 1e9;
    std::printf("%6d %10zu %10.2f %13.2f (%6.2f) %13.2f (%6.2f) %13.2f (%6.2f)  %s%s\n", blocks, copy.size(),
                Median(fetch) * 1e3, gb / Median(fetch), gb / Best(fetch), gb / Median(memcpy_s), gb / Best(memcpy_s),
                gb / Median(hash_s), gb / Best(hash_s), detail.c_str(), sum == 0 ? " " : "");
  }
  return 0;
}

}  // namespace
}  // namespace baton::kvtransfer

int main() { return baton::kvtransfer::Main(); }
