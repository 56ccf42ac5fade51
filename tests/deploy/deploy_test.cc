// deploy/ against the product: no setting, flag or metric in it that does not exist, and each file passes its own tool.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <yaml-cpp/yaml.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/config.h"
#include "tests/deploy/tools.h"
#include "tests/e2e/cluster.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::deploy {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> FilesUnder(const std::string& folder, const std::string& extension) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == extension) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  EXPECT_FALSE(found.empty()) << folder << " *" << extension;
  return found;
}

std::set<std::string> KnownEnvironment() {
  std::set<std::string> known = {"BATON_CONFIG"};
  for (const ConfigFieldInfo& field : ConfigFields()) known.insert(field.env);
  return known;
}

TEST(DeploySettingsTest, EveryVariableAndFlagIsInTheSchema) {
  const std::set<std::string> env = KnownEnvironment();
  std::set<std::string> flags = {"--config"};
  for (const ConfigFieldInfo& field : ConfigFields()) flags.insert(field.flag);
  int seen = 0;
  const std::regex env_name("BATON_[A-Z0-9_]+"), flag_name("--[a-z][a-z0-9-]+");
  std::vector<fs::path> files = FilesUnder("deploy/kubernetes", ".yaml");
  for (const fs::path& unit : FilesUnder("deploy/systemd", ".service")) files.push_back(unit);
  for (const fs::path& file : files) {
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(ReadFile(file), '\n'))) {
      if (absl::StartsWith(line, "#")) continue;
      for (std::sregex_iterator it(line.begin(), line.end(), env_name), end; it != end; ++it, ++seen) {
        EXPECT_TRUE(env.count(it->str())) << file << ": " << line;
      }
      if (!absl::StrContains(line, "/usr/lib/baton/")) continue;
      for (std::sregex_iterator it(line.begin(), line.end(), flag_name), end; it != end; ++it, ++seen) {
        EXPECT_TRUE(flags.count(it->str())) << file << ": " << line;
      }
    }
  }
  EXPECT_GE(seen, 15);
}

TEST(DeploySettingsTest, SettingsFilesLoad) {
  LoadedConfig loaded;
  const absl::Status local = ApplyYaml(ReadFile("deploy/local/baton.yaml"), "baton.yaml", &loaded);
  EXPECT_TRUE(local.ok()) << local;
  const std::string map = YAML::LoadFile("deploy/kubernetes/config.yaml")["data"]["baton.yaml"].as<std::string>();
  LoadedConfig cluster;
  const absl::Status kubernetes = ApplyYaml(map, "config.yaml", &cluster);
  EXPECT_TRUE(kubernetes.ok()) << kubernetes;
  // The kubelet must not kill what still drains.
  for (const std::string role : {"router", "prefill", "decode"}) {
    const YAML::Node pod = YAML::LoadAllFromFile("deploy/kubernetes/" + role + ".yaml")[0]["spec"]["template"]["spec"];
    EXPECT_GT(pod["terminationGracePeriodSeconds"].as<int>() * 1000, cluster.config.drain_timeout_ms() + 5000) << role;
  }
}

// Metric names in a PromQL expression: words that are ours, outside of string literals.
std::set<std::string> MetricsOf(const std::string& expression) {
  const std::string bare = std::regex_replace(expression, std::regex("\"[^\"]*\""), "\"\"");
  std::set<std::string> names;
  const std::regex word("[a-zA-Z_:][a-zA-Z0-9_:]*");
  for (std::sregex_iterator it(bare.begin(), bare.end(), word), end; it != end; ++it) {
    if (absl::StrContains(it->str(), "baton_")) names.insert(it->str());
  }
  return names;
}

void CollectExpressions(const nlohmann::json& node, std::vector<std::string>* expressions) {
  if (node.is_object()) {
    for (const auto& [key, value] : node.items()) {
      if (key == "expr") expressions->push_back(value.get<std::string>());
      CollectExpressions(value, expressions);
    }
  } else if (node.is_array()) {
    for (const auto& value : node) CollectExpressions(value, expressions);
  }
}

TEST(DeployMetricsTest, EveryMetricIsOneThatARunningClusterExports) {
  const std::string model = testing::TempDir() + "/deploy-tiny.gguf";
  ASSERT_TRUE(fakes::WriteTinyGguf({}, model).ok());
  auto cluster = e2e::Cluster::Start({.model = model, .flags = {"--kv-memory-mib=8"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  v1::GenerateRequest request;
  request.set_prompt("forty bytes of a prompt, three KV blocks");
  request.mutable_sampling()->set_max_tokens(8);
  request.mutable_sampling()->set_ignore_eos(true);
  const e2e::Generation generation = (*cluster)->Generate(request);
  ASSERT_TRUE(generation.status.ok()) << generation.status.error_message();

  std::set<std::string> exported;
  std::vector<std::string> addresses = {(*cluster)->router_http()};
  for (auto& worker : (*cluster)->workers()) addresses.push_back(worker->http);
  for (const std::string& address : addresses) {
    const std::string text = HttpGet(address, "/metrics");
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
      if (line.empty() || line[0] == '#') continue;
      exported.insert(line.substr(0, line.find_first_of("{ ")));
    }
    const std::string file = testing::TempDir() + "/metrics.txt";
    std::ofstream(file) << text;
    // The vllm: names are spelled as dashboards of others expect them, colon and all.
    ExpectPasses(absl::StrCat("grep -v vllm: ", file, " | ", Tool("usr/bin/promtool"), " check metrics"));
  }
  const YAML::Node rules = YAML::LoadFile("deploy/prometheus/baton.rules.yml");
  std::vector<std::string> expressions;
  for (const YAML::Node& group : rules["groups"]) {
    for (const YAML::Node& rule : group["rules"]) {
      if (rule["record"]) exported.insert(rule["record"].as<std::string>());
      expressions.push_back(rule["expr"].as<std::string>());
    }
  }
  CollectExpressions(nlohmann::json::parse(ReadFile("deploy/grafana/baton.json")), &expressions);
  for (const YAML::Node& rule : YAML::LoadFile("deploy/prometheus/adapter-rules.yaml")["rules"]) {
    expressions.push_back(rule["seriesQuery"].as<std::string>());
    exported.insert(rule["name"]["as"].as<std::string>());
    std::string query = rule["metricsQuery"].as<std::string>();
    expressions.push_back(query);
  }
  for (const YAML::Node& object : YAML::LoadAllFromFile("deploy/kubernetes/keda.yaml")) {
    for (const YAML::Node& trigger : object["spec"]["triggers"]) {
      expressions.push_back(trigger["metadata"]["query"].as<std::string>());
    }
  }
  for (const YAML::Node& object : YAML::LoadAllFromFile("deploy/kubernetes/hpa.yaml")) {
    for (const YAML::Node& metric : object["spec"]["metrics"]) {
      expressions.push_back(metric["pods"]["metric"]["name"].as<std::string>());
    }
  }
  EXPECT_GT(expressions.size(), 40u);
  for (const std::string& expression : expressions) {
    const std::set<std::string> names = MetricsOf(expression);
    EXPECT_FALSE(names.empty()) << expression;
    for (const std::string& name : names) EXPECT_TRUE(exported.count(name)) << name << " in: " << expression;
  }
}

// A target that a full worker's queue never exceeds scales nothing: both once were prefill_backlog_tokens itself.
TEST(DeployScalingTest, PrefillScalesBeforeAdmissionHoldsPromptsBack) {
  const auto settings = LoadConfig(ProcessRole::kRouter, {"--model=m.gguf"}, {});
  ASSERT_TRUE(settings.ok()) << settings.status();
  const double backlog = static_cast<double>(settings->config.prefill_backlog_tokens());
  ASSERT_GT(backlog, 0);

  const YAML::Node metric = YAML::LoadAllFromFile("deploy/kubernetes/hpa.yaml")[0]["spec"]["metrics"][0]["pods"];
  EXPECT_EQ(metric["metric"]["name"].as<std::string>(), "baton_waiting_tokens");
  EXPECT_LE(metric["target"]["averageValue"].as<double>(), backlog / 2);

  const YAML::Node trigger = YAML::LoadAllFromFile("deploy/kubernetes/keda.yaml")[0]["spec"]["triggers"][0]["metadata"];
  EXPECT_LE(trigger["threshold"].as<double>(), backlog / 2);
  const std::string query = trigger["query"].as<std::string>();
  EXPECT_THAT(MetricsOf(query), testing::IsSupersetOf({"baton_waiting_tokens", "baton_router_queued_tokens"}));
  // promtool computes that very expression in baton.rules.test.yml.
  int computed = 0;
  for (const YAML::Node& test : YAML::LoadFile("deploy/prometheus/baton.rules.test.yml")["tests"]) {
    for (const YAML::Node& expression : test["promql_expr_test"]) {
      if (expression["expr"]) computed += expression["expr"].as<std::string>() == query;
    }
  }
  EXPECT_GT(computed, 0) << query;

  bool alerts = false;
  for (const YAML::Node& group : YAML::LoadFile("deploy/prometheus/baton.rules.yml")["groups"]) {
    for (const YAML::Node& rule : group["rules"]) {
      alerts |= rule["alert"] && MetricsOf(rule["expr"].as<std::string>()).count("baton_router_queued_tokens") > 0;
    }
  }
  EXPECT_TRUE(alerts) << "no alert looks at the routers' queue";
}

TEST(DeployToolsTest, PromtoolAcceptsRulesAndTheirTestsPass) {
  const std::string promtool = Tool("usr/bin/promtool");
  ExpectPasses(absl::StrCat("cd deploy/prometheus && ", promtool, " check config prometheus.yml"));
  ExpectPasses(absl::StrCat("cd deploy/prometheus && ", promtool, " check rules baton.rules.yml"));
  ExpectPasses(absl::StrCat("cd deploy/prometheus && ", promtool, " test rules baton.rules.test.yml"));
}

TEST(DeployToolsTest, KubernetesSchemasAcceptEveryObject) {
  const std::string python = (CacheFolder() / "python/kubernetes-validate").string();
  for (const fs::path& file : FilesUnder("deploy/kubernetes", ".yaml")) {
    // No schema of these is part of Kubernetes: the kustomization is a client's file, KEDA's objects are extensions.
    if (file.filename() == "kustomization.yaml" || file.filename() == "keda.yaml") continue;
    ExpectPasses(absl::StrCat("PYTHONPATH=", python, " python3 -m kubernetes_validate -k 1.33 --strict ", file.string()));
  }
  // What kustomize would read exists.
  for (const YAML::Node& file : YAML::LoadFile("deploy/kubernetes/kustomization.yaml")["resources"]) {
    EXPECT_TRUE(fs::exists("deploy/kubernetes/" + file.as<std::string>())) << file;
  }
}

TEST(DeployToolsTest, SystemdAcceptsItsUnits) {
  if (Shell("command -v systemd-analyze").exit_code != 0) GTEST_SKIP() << "no systemd here";
  const std::string dir = testing::TempDir() + "/units";
  fs::create_directories(dir);
  std::string files;
  for (const fs::path& unit : FilesUnder("deploy/systemd", ".service")) {
    // The programs are not installed where the test runs.
    const std::string text = std::regex_replace(ReadFile(unit), std::regex("/usr/lib/baton/[a-z_]+"), "/bin/true");
    const std::string file = dir + "/" + std::regex_replace(unit.filename().string(), std::regex("@"), "@x");
    std::ofstream(file) << text;
    absl::StrAppend(&files, " ", file);
  }
  const ShellResult run = Shell("systemd-analyze verify" + files);
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_FALSE(absl::StrContains(run.output, dir)) << run.output;  // warnings name the file
}

}  // namespace
}  // namespace baton::deploy
