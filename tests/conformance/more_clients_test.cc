// Starts a cluster of the packaged model and runs more clients that people already have against it, unchanged, each
// with the packages of its own folder. No network: what wants a tokenizer gets the folder that `baton tokenizer export`
// makes.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

class MoreClientsTest : public ::testing::Test {
 protected:
  // `script` of this folder passes, with the packages that scripts/setup --full put into the folder `name`.
  void Run(const std::string& name, const std::string& script, std::vector<std::string> flags = {}) {
    const char* cache = getenv("BATON_CACHE");
    const std::string packages = absl::StrCat(
        cache != nullptr ? std::string(cache) : absl::StrCat(getenv("HOME"), "/.cache/baton"), "/python/", name);
    struct stat info;
    ASSERT_EQ(stat(packages.c_str(), &info), 0) << packages << " is missing; run scripts/setup --tests, or --full";
    const std::string tokenizer = absl::StrCat(getenv("TEST_TMPDIR"), "/tokenizer");
    auto exported = Process::Start({"cli/baton", "tokenizer", "export", tokenizer, "--force", "--model=" + SmolLm2()});
    ASSERT_TRUE(exported.ok()) << exported.status();
    ASSERT_EQ(*(*exported)->WaitExit(absl::Minutes(1)), 0) << (*exported)->stderr_text();
    flags.push_back("--kv-memory-mib=256");
    auto cluster = Cluster::Start({.model = SmolLm2(), .flags = std::move(flags)});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    setenv("BATON_URL", absl::StrCat("http://", (*cluster)->router_http()).c_str(), 1);
    setenv("BATON_GRPC", (*cluster)->router_address().c_str(), 1);
    setenv("BATON_TOKENIZER", tokenizer.c_str(), 1);
    setenv("BATON_PACKAGES", packages.c_str(), 1);
    setenv("PYTHONPATH", packages.c_str(), 1);
    for (const char* proxy : {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) {
      unsetenv(proxy);
    }
    auto client = Process::Start({"/usr/bin/python3", "-sB", absl::StrCat("tests/conformance/", script)});
    ASSERT_TRUE(client.ok()) << client.status();
    const auto exit_code = (*client)->WaitExit(absl::Minutes(14));
    ASSERT_TRUE(exit_code.ok()) << exit_code.status() << (*client)->stdout_text() << (*client)->stderr_text();
    EXPECT_EQ(*exit_code, 0) << (*client)->stdout_text() << (*client)->stderr_text();
    printf("%s\n", (*client)->stdout_text().c_str());
    const absl::Status quiet = (*cluster)->WaitQuiet(absl::Seconds(20));
    EXPECT_TRUE(quiet.ok()) << quiet;
  }
};

TEST_F(MoreClientsTest, Grpcio) { Run("grpcio", "grpcio_client.py"); }

TEST_F(MoreClientsTest, LangchainOpenAi) { Run("langchain", "langchain_client.py"); }

TEST_F(MoreClientsTest, Kserve) { Run("kserve", "kserve_client.py"); }

TEST_F(MoreClientsTest, Aiperf) { Run("aiperf", "aiperf_client.py"); }

TEST_F(MoreClientsTest, Guidellm) { Run("guidellm", "guidellm_client.py"); }

TEST_F(MoreClientsTest, GenaiBench) { Run("genai", "genai_bench_client.py"); }

// Chats that name no max_tokens go on to the end of the context: a short one.
TEST_F(MoreClientsTest, SchemathesisFindsNoServerError) {
  Run("schemathesis", "schemathesis_run.py", {"--max-context=256", "--console=admin"});
}

}  // namespace
}  // namespace baton::e2e
