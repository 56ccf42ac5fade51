// Starts a cluster of the packaged model and looks at its console with a real browser.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {
namespace {

TEST(ConsoleTest, AllPagesInChromium) {
  std::string chromium;
  for (const char* path : {"/usr/bin/chromium-headless-shell", "/usr/bin/chromium", "/usr/bin/google-chrome"}) {
    if (chromium.empty() && access(path, X_OK) == 0) chromium = path;
  }
  ASSERT_FALSE(chromium.empty()) << "there is no Chromium; run scripts/setup --tests";
  auto cluster = Cluster::Start({.model = SmolLm2(), .flags = {"--kv-memory-mib=128"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  setenv("BATON_URL", absl::StrCat("http://", (*cluster)->router_http()).c_str(), 1);
  setenv("CHROMIUM", chromium.c_str(), 1);
  for (const char* proxy : {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) {
    unsetenv(proxy);
  }
  auto browser = Process::Start({"/usr/bin/python3", "-sB", "tests/console/drive_console.py"});
  ASSERT_TRUE(browser.ok()) << browser.status();
  const auto exit_code = (*browser)->WaitExit(absl::Minutes(4));
  ASSERT_TRUE(exit_code.ok()) << exit_code.status() << (*browser)->stderr_text();
  EXPECT_EQ(*exit_code, 0) << (*browser)->stdout_text() << (*browser)->stderr_text();
  const absl::Status quiet = (*cluster)->WaitQuiet(absl::Seconds(20));
  EXPECT_TRUE(quiet.ok()) << quiet;
}

}  // namespace
}  // namespace baton::e2e
