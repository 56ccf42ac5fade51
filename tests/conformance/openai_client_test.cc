// Starts a cluster of the packaged model and runs the real openai client against its HTTP door.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

void RunClient(const std::string& script) {
  const char* cache = getenv("BATON_CACHE");
  const std::string packages = absl::StrCat(
      cache != nullptr ? std::string(cache) : absl::StrCat(getenv("HOME"), "/.cache/baton"), "/python/openai");
  struct stat info;
  ASSERT_EQ(stat((packages + "/openai").c_str(), &info), 0) << packages << " is missing; run scripts/setup --tests";
  setenv("PYTHONPATH", packages.c_str(), 1);
  for (const char* proxy : {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) {
    unsetenv(proxy);
  }
  auto client = Process::Start({"/usr/bin/python3", "-sB", absl::StrCat("tests/conformance/", script)});
  ASSERT_TRUE(client.ok()) << client.status();
  const auto exit_code = (*client)->WaitExit(absl::Minutes(10));
  ASSERT_TRUE(exit_code.ok()) << exit_code.status() << (*client)->stderr_text();
  EXPECT_EQ(*exit_code, 0) << (*client)->stdout_text() << (*client)->stderr_text();
}

TEST(ConformanceTest, OpenAiClient) {
  auto cluster = Cluster::Start({.model = SmolLm2(), .flags = {"--kv-memory-mib=256"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  auto empty =
      Cluster::Start({.model = SmolLm2(), .prefill = 0, .decode = 0, .router_flags = {"--queue-timeout-ms=0"}});
  ASSERT_TRUE(empty.ok()) << empty.status();
  setenv("BATON_URL", absl::StrCat("http://", (*cluster)->router_http()).c_str(), 1);
  setenv("BATON_EMPTY_URL", absl::StrCat("http://", (*empty)->router_http()).c_str(), 1);
  setenv("BATON_README", "README.md", 1);
  RunClient("openai_client.py");
  const absl::Status quiet = (*cluster)->WaitQuiet(absl::Seconds(20));
  EXPECT_TRUE(quiet.ok()) << quiet;
}

TEST(ConformanceTest, OpenAiClientOverHttps) {
  const std::string certs = ::testing::TempDir() + "/certs";
  ASSERT_EQ(std::system(absl::StrCat("deploy/certs/make_certs.sh ", certs, " >/dev/null").c_str()), 0);
  auto cluster = Cluster::Start({.model = SmolLm2(),
                                 .flags = {"--kv-memory-mib=256"},
                                 .router_flags = {absl::StrCat("--http-tls-cert=", certs, "/router.crt"),
                                                  absl::StrCat("--http-tls-key=", certs, "/router.key")}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::string http = (*cluster)->router_http();
  setenv("BATON_URL", absl::StrCat("https://localhost", http.substr(http.rfind(':'))).c_str(), 1);
  setenv("BATON_CA", (certs + "/ca.crt").c_str(), 1);
  RunClient("openai_https_client.py");
  const absl::Status quiet = (*cluster)->WaitQuiet(absl::Seconds(20));
  EXPECT_TRUE(quiet.ok()) << quiet;
}

}  // namespace
}  // namespace baton::e2e
