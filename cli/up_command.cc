// `baton up`: a local cluster in the foreground.
#include <fcntl.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/settings.h"
#include "cli/supervisor.h"
#include "common/rpc/server.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

struct UpFlags {
  std::string bin_dir;
};

// The secret that signs tickets, in a folder only this user can enter; both are removed at the end.
class ClusterKey {
 public:
  static absl::StatusOr<std::unique_ptr<ClusterKey>> Create() {
    const char* base = std::getenv("XDG_RUNTIME_DIR");
    std::error_code ignored;
    if (base == nullptr || !fs::is_directory(base, ignored)) base = std::getenv("TMPDIR");
    if (base == nullptr || !fs::is_directory(base, ignored)) base = "/tmp";
    std::string dir = absl::StrCat(base, "/baton-XXXXXX");
    if (::mkdtemp(dir.data()) == nullptr) return Error("make a private folder", dir);  // mode 0700
    std::unique_ptr<ClusterKey> key(new ClusterKey(dir));
    unsigned char random[32];
    if (::getrandom(random, sizeof(random), 0) != sizeof(random)) return Error("get random bytes for", dir);
    const std::string text = absl::StrCat(
        absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(random), sizeof(random))), "\n");
    const int fd = ::open(key->path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return Error("make", key->path_);
    const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::close(fd);
    if (!written) return Error("write", key->path_);
    return key;
  }
  ~ClusterKey() {
    ::unlink(path_.c_str());
    ::rmdir(dir_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  explicit ClusterKey(std::string dir) : dir_(std::move(dir)), path_(dir_ + "/cluster.key") {}
  static absl::Status Error(absl::string_view what, absl::string_view path) {
    return absl::UnavailableError(absl::StrCat("Cannot ", what, " ", path, ": ", std::strerror(errno), "."));
  }
  std::string dir_;
  std::string path_;
};

// Where Bazel puts the programs (bazel-bin/cli/baton, bazel-bin/router/router), or all of them in one folder.
absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& bin_dir, const std::string& argv0) {
  std::vector<fs::path> roots;
  std::error_code error;
  if (!bin_dir.empty()) {
    roots.push_back(bin_dir);
  } else {
    for (const fs::path& self : {fs::read_symlink("/proc/self/exe", error), fs::absolute(argv0, error)}) {
      if (!self.has_parent_path()) continue;
      roots.push_back(self.parent_path().parent_path());
      roots.push_back(self.parent_path());
    }
  }
  std::string tried;
  for (const fs::path& root : roots) {
    for (const fs::path& candidate : {root / name / name, root / name}) {
      if (fs::is_regular_file(candidate, error) && ::access(candidate.c_str(), X_OK) == 0) return candidate.string();
      absl::StrAppend(&tried, tried.empty() ? "" : ", ", candidate.string());
    }
  }
  return absl::NotFoundError(absl::StrCat("The program \"", name, "\" is not there; looked at ", tried, "."));
}

struct Programs {
  std::string router, prefill, decode;
};

absl::StatusOr<Programs> FindPrograms(const std::string& bin_dir, const std::string& argv0) {
  Programs programs;
  for (const auto& [name, path] :
       {std::pair{"router", &programs.router}, std::pair{"prefill_worker", &programs.prefill},
        std::pair{"decode_worker", &programs.decode}}) {
    absl::StatusOr<std::string> found = FindProgram(name, bin_dir, argv0);
    if (!found.ok()) return found.status();
    *path = *std::move(found);
  }
  return programs;
}

// Where decode workers compute the prompts, a prefill worker is started only if somebody asked for it.
uint32_t NumPrefill(const LoadedConfig& loaded) {
  const auto origin = loaded.origins.find("prefill");
  const bool asked = origin != loaded.origins.end() && origin->second != "default";
  return loaded.config.mode() == "aggregated" && !asked ? 0 : loaded.config.prefill();
}

struct Specs {
  std::vector<ProcessSpec> first;  // the router, then the workers
  std::function<ProcessSpec(const std::string& role, const std::string& name)> make_worker;
};

// Command lines of all processes. `key` is the cluster key's path.
Specs MakeSpecs(const LoadedConfig& loaded, const Programs& programs, const std::string& key) {
  const v1::Config& config = loaded.config;
  const uint32_t num_prefill = NumPrefill(loaded);
  // Said for each process by itself, or about `up` alone.
  std::vector<std::string> common = FlagsFor(loaded, {"listen", "http", "name", "router", "threads", "prefill",
                                                      "decode", "kv_listen", "exit_with_parent", "cluster_key_file", "log_level"});
  common.push_back(absl::StrCat("--cluster-key-file=", key));
  const bool level_set = loaded.origins.count("log_level") > 0 && loaded.origins.at("log_level") != "default";
  common.push_back(absl::StrCat("--log-level=", level_set ? config.log_level() : "warn"));
  Specs specs;
  specs.first.push_back({"router", "router", [=](const std::string& listened, const std::string& http) {
                     std::vector<std::string> argv = {programs.router};
                     argv.insert(argv.end(), common.begin(), common.end());
                     argv.push_back(absl::StrCat("--listen=", listened.empty() ? config.listen() : listened));
                     argv.push_back(absl::StrCat("--http=", http.empty() ? config.http() : http));
                     return argv;
                   }});
  const int workers = static_cast<int>(num_prefill + config.decode());
  const uint32_t threads = config.has_threads() ? config.threads() : std::max(1, AvailableCores() / workers);
  specs.make_worker = [=](const std::string& role, const std::string& name) {
    return ProcessSpec{name, role, [=](const std::string& router, const std::string&) {
                         std::vector<std::string> argv = {role == "prefill" ? programs.prefill : programs.decode};
                         argv.insert(argv.end(), common.begin(), common.end());
                         argv.push_back(absl::StrCat("--name=", name));
                         argv.push_back(absl::StrCat("--router=", router));
                         argv.push_back("--listen=127.0.0.1:0");
                         argv.push_back("--http=127.0.0.1:0");
                         argv.push_back(absl::StrCat("--threads=", threads));
                         return argv;
                       }};
  };
  for (uint32_t i = 0; i < num_prefill; ++i) specs.first.push_back(specs.make_worker("prefill", absl::StrCat("prefill-", i)));
  for (uint32_t i = 0; i < config.decode(); ++i) specs.first.push_back(specs.make_worker("decode", absl::StrCat("decode-", i)));
  return specs;
}

int RunUp(const UpFlags& flags, const Invocation& invocation) {
  const Output out(invocation.json);
  const absl::StatusOr<LoadedConfig> loaded =
      LoadConfig(ProcessRole::kCommand, invocation.setting_args, BatonEnvironment());
  if (!loaded.ok()) return out.Fail(loaded.status(), "baton up --help", kExitUsage);
  const v1::Config& config = loaded->config;
  for (const std::string& warning : loaded->warnings) out.Note(absl::StrCat("warning: ", warning));
  if (!config.has_model()) {
    return out.Fail(absl::InvalidArgumentError("No model was given."),
                    "baton up --model FILE.gguf  (scripts/setup gets a small one)", kExitUsage);
  }
  if (::access(config.model().c_str(), R_OK) != 0) {
    return out.Fail(
        absl::NotFoundError(absl::StrCat("Cannot read the model ", config.model(), ": ", std::strerror(errno), ".")),
        "check --model (scripts/setup gets a small one)", kExitFailure);
  }
  if (config.has_tls_cert() || config.has_tls_key()) {
    return out.Fail(absl::InvalidArgumentError("tls_cert and tls_key are one process's, and each role has its own."),
                    "baton up --tls-dir DIR  (deploy/certs/make_certs.sh DIR fills it)", kExitUsage);
  }
  if (config.mode() != "aggregated" && config.prefill() == 0) {
    return out.Fail(absl::InvalidArgumentError(absl::StrCat("Mode ", config.mode(), " needs a prefill worker.")),
                    "baton up --mode aggregated, or --prefill 1", kExitUsage);
  }
  // Before anything is loaded: these two are the addresses people choose.
  for (const auto& [flag, address] : {std::pair{"--listen", config.listen()}, std::pair{"--http", config.http()}}) {
    if (absl::Status status = rpc::ExplainBindFailure(address); !status.ok()) {
      return out.Fail(status, absl::StrCat("stop what uses it, or choose another: baton up ", flag, " 127.0.0.1:0"),
                      status.code() == absl::StatusCode::kInvalidArgument ? kExitUsage : kExitFailure);
    }
  }
  const absl::StatusOr<Programs> programs = FindPrograms(flags.bin_dir, invocation.argv0);
  if (!programs.ok()) {
    return out.Fail(programs.status(),
                    "bazel build //router:router //prefill_worker:prefill_worker "
                    "//decode_worker:decode_worker  (or give --bin-dir)",
                    kExitFailure);
  }
  std::unique_ptr<ClusterKey> key;
  std::string key_path = config.cluster_key_file();
  if (key_path.empty()) {
    absl::StatusOr<std::unique_ptr<ClusterKey>> made = ClusterKey::Create();
    if (!made.ok()) return out.Fail(made.status(), "set TMPDIR to a folder you can write", kExitFailure);
    key = *std::move(made);
    key_path = key->path();
  }
  ::signal(SIGPIPE, SIG_IGN);  // nobody listens any more: the cluster serves on
  SupervisorOptions options;
  options.model = fs::path(config.model()).filename().string();
  if (config.has_http_tls_cert()) options.http_scheme = "https";
  options.drain_timeout = absl::Milliseconds(config.drain_timeout_ms());
  Specs specs = MakeSpecs(*loaded, *programs, key_path);
  options.make_worker = std::move(specs.make_worker);
  Supervisor supervisor(std::move(specs.first), options, out);
  return supervisor.Run();
}

}  // namespace

void AddUp(CLI::App* app, Invocation* invocation) {
  auto flags = std::make_shared<UpFlags>();
  CLI::App* sub =
      app->add_subcommand("up", "Run a local cluster: a router, prefill and decode workers; Ctrl-C stops it");
  sub->add_option("--bin-dir", flags->bin_dir, "Folder of the other programs; default: beside this one");
  sub->add_flag("--json", invocation->json, "Print one JSON line on stdout when ready");
  sub->footer(absl::StrCat(
      HelpFooter(
          {"baton up --model FILE.gguf", "baton up --model FILE.gguf --prefill 2 --decode 3 --listen 127.0.0.1:0",
           "baton up --model FILE.gguf --mode aggregated --decode 2"}, {}),
      "\n", SettingsHelp({})));
  sub->callback([flags, invocation] { invocation->run = [flags, invocation] { return RunUp(*flags, *invocation); }; });
}

}  // namespace baton::cli
