// Starts a cluster of the packaged model and runs the real tritonclient against its gRPC port.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

TEST(ConformanceTest, TritonClient) {
  const char* cache = getenv("BATON_CACHE");
  const std::string packages = absl::StrCat(
      cache != nullptr ? std::string(cache) : absl::StrCat(getenv("HOME"), "/.cache/baton"), "/python/triton");
  struct stat info;
  ASSERT_EQ(stat((packages + "/tritonclient").c_str(), &info), 0) << packages << " is missing; run scripts/setup --tests";
  auto cluster = Cluster::Start({.model = SmolLm2(), .flags = {"--kv-memory-mib=256"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  setenv("BATON_URL", absl::StrCat("http://", (*cluster)->router_http()).c_str(), 1);
  setenv("BATON_GRPC", (*cluster)->router_address().c_str(), 1);
  setenv("PYTHONPATH", packages.c_str(), 1);
  for (const char* proxy : {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) {
    unsetenv(proxy);
  }
  auto client = Process::Start({"/usr/bin/python3", "-sB", "tests/conformance/triton_client.py"});
  ASSERT_TRUE(client.ok()) << client.status();
  const auto exit_code = (*client)->WaitExit(absl::Minutes(4));
  ASSERT_TRUE(exit_code.ok()) << exit_code.status() << (*client)->stderr_text();
  EXPECT_EQ(*exit_code, 0) << (*client)->stdout_text() << (*client)->stderr_text();
  const absl::Status quiet = (*cluster)->WaitQuiet(absl::Seconds(20));
  EXPECT_TRUE(quiet.ok()) << quiet;
}

}  // namespace
}  // namespace baton::e2e
