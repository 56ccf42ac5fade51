// The real HAProxy with deploy/haproxy/haproxy.cfg in front of a real cluster.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/status.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/inference.grpc.pb.h"
#include "tests/deploy/tools.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/process.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::deploy {
namespace {

// A port that was free a moment ago.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

std::string PortOf(const std::string& address) { return address.substr(address.rfind(':') + 1); }

std::vector<std::string> Haproxy(const std::string& config) {
  return {"/usr/bin/env", "LD_LIBRARY_PATH=" + Tool("usr/lib/x86_64-linux-gnu"), Tool("usr/sbin/haproxy"), "-db", "-f", config};
}

// The files of deploy/, with the addresses of a cluster that runs here, and a page that shows what HAProxy thinks of it.
class Frontend {
 public:
  static std::unique_ptr<Frontend> Start(const std::string& router_grpc, const std::string& router_http) {
    auto frontend = std::make_unique<Frontend>();
    const std::string dir = testing::TempDir();
    ExpectPasses(absl::StrCat("openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=baton -addext subjectAltName=DNS:baton",
                              " -days 1 -keyout ", dir, "/k.pem -out ", dir, "/c.pem && cat ", dir, "/c.pem ", dir,
                              "/k.pem > ", dir, "/baton.pem"));
    frontend->certificate_ = ReadFile(dir + "/c.pem");
    std::string text = ReadFile("deploy/haproxy/haproxy.cfg");
    const std::vector<std::pair<std::string, std::string>> changes = {
        {"/etc/haproxy/baton.pem", dir + "/baton.pem"},
        {"maxconn 20000", "maxconn 100"},  // what a test's limit of descriptors allows
        {"bind :443 ", absl::StrCat("bind 127.0.0.1:", frontend->grpc_port_, " ")},
        {"bind :8443 ", absl::StrCat("bind 127.0.0.1:", frontend->https_port_, " ")},
        {"127.0.0.1:50051", router_grpc},
        {"127.0.0.1:8000", router_http},
        {"check port 8000", "check port " + PortOf(router_http)}};
    for (const auto& [from, to] : changes) {
      EXPECT_NE(text.find(from), std::string::npos) << from << " is not in haproxy.cfg any more";
      text = absl::StrReplaceAll(text, {{from, to}});
    }
    absl::StrAppend(&text, "\nlisten stats\n    bind 127.0.0.1:", frontend->stats_port_, "\n    stats enable\n    stats uri /stats\n");
    std::ofstream(dir + "/haproxy.cfg") << text;
    auto process = e2e::Process::Start(Haproxy(dir + "/haproxy.cfg"));
    EXPECT_TRUE(process.ok()) << process.status();
    if (!process.ok()) return nullptr;
    frontend->process_ = *std::move(process);
    return frontend;
  }

  // Of a server's last check, "L7OK" when it passed; empty when none ended within a minute.
  std::string CheckOf(const std::string& backend) {
    for (const absl::Time until = absl::Now() + absl::Minutes(1); absl::Now() < until; absl::SleepFor(absl::Milliseconds(200))) {
      const ShellResult page = Shell(absl::StrCat("curl -s --max-time 10 'http://127.0.0.1:", stats_port_, "/stats;csv'"));
      const std::vector<std::string> lines = absl::StrSplit(page.output, '\n');
      const std::vector<std::string> names = absl::StrSplit(lines[0], ',');
      for (const std::string& line : lines) {
        const std::vector<std::string> fields = absl::StrSplit(line, ',');
        if (fields.size() < names.size() || fields[0] != backend || fields[1] != "router1") continue;
        for (size_t i = 0; i < names.size(); ++i) {
          // INI: not yet; a star: one is under way, and this is the one before.
          if (names[i] == "check_status" && !fields[i].empty() && fields[i] != "INI") {
            return absl::StrReplaceAll(fields[i], {{"* ", ""}});
          }
        }
      }
    }
    return "";
  }

  std::shared_ptr<grpc::Channel> Channel() const {
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = certificate_;
    grpc::ChannelArguments args;
    args.SetSslTargetNameOverride("baton");
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", grpc_port_), grpc::SslCredentials(ssl), args);
  }

  // The HTTP status that the public HTTPS port answers.
  std::string HttpsStatus(const std::string& method, const std::string& path) const {
    return Shell(absl::StrCat("curl -sk --max-time 10 -o /dev/null -w '%{http_code}' -X ", method, " https://127.0.0.1:",
                              https_port_, path))
        .output;
  }

  std::string log() { return process_->stderr_text() + process_->stdout_text(); }

 private:
  const int grpc_port_ = FreePort(), https_port_ = FreePort(), stats_port_ = FreePort();
  std::string certificate_;
  std::unique_ptr<e2e::Process> process_;
};

class HaproxyTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string model = testing::TempDir() + "/haproxy-tiny.gguf";
    ASSERT_TRUE(fakes::WriteTinyGguf({}, model).ok());
    auto cluster = e2e::Cluster::Start({.model = model, .flags = {"--kv-memory-mib=8"}, .router_flags = {"--console=admin"}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    frontend_ = Frontend::Start(cluster_->router_address(), cluster_->router_http());
    ASSERT_NE(frontend_, nullptr);
  }

  std::unique_ptr<e2e::Cluster> cluster_;
  std::unique_ptr<Frontend> frontend_;
};

// The check of the gRPC backend spoke HTTP/2 to the port that speaks HTTP/1.1: every router was DOWN.
TEST_F(HaproxyTest, RoutersPassTheirChecksAndUsersReachThemAndNothingElse) {
  ASSERT_EQ(frontend_->CheckOf("routers_grpc"), "L7OK") << frontend_->log();
  ASSERT_EQ(frontend_->CheckOf("routers_http"), "L7OK") << frontend_->log();

  v1::GenerateRequest request;
  request.set_prompt("through the public port");
  request.mutable_sampling()->set_max_tokens(8);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_ignore_eos(true);
  const e2e::Generation direct = cluster_->Generate(request);
  ASSERT_TRUE(direct.status.ok()) << direct.status.error_message();

  const auto channel = frontend_->Channel();
  const auto inference = v1::Inference::NewStub(channel);
  std::vector<int32_t> tokens;
  {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
    const auto stream = inference->Generate(&context, request);
    for (v1::GenerateResponse response; stream->Read(&response);) {
      if (response.has_token()) tokens.push_back(response.token().token_id());
    }
    const grpc::Status status = stream->Finish();
    ASSERT_TRUE(status.ok()) << status.error_code() << " " << status.error_message() << frontend_->log();
  }
  EXPECT_EQ(tokens, direct.choices[0].token_ids);

  // Who reaches the public port is no operator, and no worker.
  const auto admin = v1::Cluster::NewStub(channel);
  {
    grpc::ClientContext context;
    v1::ClusterStatus status;
    EXPECT_EQ(admin->GetClusterStatus(&context, {}, &status).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  }
  {
    grpc::ClientContext context;
    v1::RegisterRequest intruder;
    *intruder.mutable_worker() = cluster_->Status()->workers(0).info();
    intruder.mutable_worker()->set_name("intruder");
    v1::RegisterResponse response;
    EXPECT_EQ(admin->Register(&context, intruder, &response).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  }
  const auto status = cluster_->Status();  // at the router's own port it is there
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->workers_size(), 2);

  EXPECT_EQ(frontend_->HttpsStatus("GET", "/v1/models"), "200");
  for (const char* path : {"/metrics", "/metrics/", "/baton/drain", "/baton/role", "/baton/scale"}) {
    EXPECT_EQ(frontend_->HttpsStatus("POST", path), "404") << path;
  }
  EXPECT_EQ(frontend_->HttpsStatus("GET", "/metrics"), "404");
}

// A router that could not answer is asked no more.
TEST_F(HaproxyTest, ARouterThatIsNotReadyIsTakenOut) {
  ASSERT_EQ(frontend_->CheckOf("routers_grpc"), "L7OK") << frontend_->log();
  for (auto& worker : cluster_->workers()) worker->process->Signal(SIGKILL);  // not ready without workers: 503
  std::string check;
  for (const absl::Time until = absl::Now() + absl::Minutes(1); check != "L7STS" && absl::Now() < until;) {
    absl::SleepFor(absl::Milliseconds(200));
    check = frontend_->CheckOf("routers_grpc");
  }
  EXPECT_EQ(check, "L7STS");
}

}  // namespace
}  // namespace baton::deploy
