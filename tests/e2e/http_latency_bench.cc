// What the HTTP door costs a token more than gRPC: the same streams through both, in turns, on a model so small that
// the doors show. No assertion: http_latency_bench [ROUNDS [TOKENS]].
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/common/rpc/raw_http.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

int Main(int rounds, int tokens) {
  setenv("BATON_E2E_TINY", "1", 1);
  auto cluster = Cluster::Start({.model = ChooseModel().path});
  if (!cluster.ok()) {
    std::fprintf(stderr, "%s\n", cluster.status().ToString().c_str());
    return 1;
  }
  v1::GenerateRequest request;
  request.set_prompt("hello");
  request.mutable_sampling()->set_max_tokens(tokens);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_seed(1);
  const nlohmann::json body = {{"prompt", "hello"}, {"max_tokens", tokens}, {"ignore_eos", true},
                               {"seed", 1},         {"stream", true},       {"return_token_ids", true}};
  const std::string& address = (*cluster)->router_http();
  testing::RawHttp client(std::atoi(address.c_str() + address.rfind(':') + 1));
  std::vector<double> grpc_ms, http_ms, difference_ms;
  for (int i = 0; i < rounds + 2; ++i) {
    const absl::Time a = absl::Now();
    const Generation native = (*cluster)->Generate(request);
    const absl::Time b = absl::Now();
    const testing::HttpReply reply = client.Ask("POST", "/v1/completions", body.dump());
    const absl::Time c = absl::Now();
    if (!native.status.ok() || !reply.complete || reply.chunks.size() < static_cast<size_t>(tokens)) {
      std::fprintf(stderr, "a stream failed: %s %d\n", native.status.error_message().c_str(), reply.status);
      return 1;
    }
    if (i < 2) continue;  // warm-up
    grpc_ms.push_back(absl::ToDoubleMilliseconds(b - a) / tokens);
    http_ms.push_back(absl::ToDoubleMilliseconds(c - b) / tokens);
    difference_ms.push_back(http_ms.back() - grpc_ms.back());
  }
  std::printf("ms per token of a stream of %d, median of %d rounds: gRPC %.4f, HTTP %.4f, added %.4f\n", tokens, rounds,
              Median(grpc_ms), Median(http_ms), Median(difference_ms));
  return 0;
}

}  // namespace
}  // namespace baton::e2e

int main(int argc, char** argv) {
  return baton::e2e::Main(argc > 1 ? std::atoi(argv[1]) : 21, argc > 2 ? std::atoi(argv[2]) : 400);
}
