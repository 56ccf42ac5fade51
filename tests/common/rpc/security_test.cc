// Mutual TLS between a real server and real clients, with certificates that deploy/certs/make_certs.sh makes.
#include "common/rpc/security.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "proto/worker.grpc.pb.h"

namespace baton::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class StatusService : public v1::Worker::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetWorkerStatus(grpc::CallbackServerContext* context, const v1::GetWorkerStatusRequest*,
                                            v1::WorkerStatus* response) override {
    ++calls;
    const std::optional<PeerRole> role = RoleOf(*context->auth_context());
    response->set_name(std::string(role.has_value() ? Name(*role) : "nobody"));
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  std::atomic<int> calls{0};
};

int MakeCerts(const std::string& arguments) {
  return std::system(absl::StrCat("deploy/certs/make_certs.sh ", arguments, " >/dev/null").c_str());
}

class SecurityTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = absl::StrCat(::testing::TempDir(), "/certs");
    other_ = absl::StrCat(::testing::TempDir(), "/other_certs");
    ASSERT_EQ(MakeCerts(dir_), 0);
    ASSERT_EQ(MakeCerts(other_), 0);
  }
  static v1::Config Config(const std::string& dir = dir_) {
    v1::Config config;
    config.set_tls_dir(dir);
    config.set_tls_reload_s(1);
    return config;
  }
  static Security For(PeerRole role, const std::string& dir = dir_) {
    absl::StatusOr<Security> security = Security::FromConfig(Config(dir), {role});
    EXPECT_TRUE(security.ok()) << security.status();
    return *security;
  }
  std::unique_ptr<Server> Serve(PeerRole role, PeerRoles callers, bool anonymous_ok = false,
                                const std::string& dir = dir_) {
    ServerOptions options;
    options.security = For(role, dir);
    options.anonymous_ok = anonymous_ok;
    auto server = Server::Start(options, {{"baton.v1.Worker", &service_, std::move(callers)}});
    EXPECT_TRUE(server.ok()) << server.status();
    return *std::move(server);
  }
  static grpc::Status Call(const std::string& address, const Security& security, PeerRole peer,
                           std::string* role = nullptr) {
    ChannelOptions options;
    options.security = security;
    options.peer = peer;
    options.own_connection = true;
    options.retry_unavailable = false;
    auto stub = v1::Worker::NewStub(CreateChannel(address, options));
    grpc::ClientContext context;
    SetDeadline(&context, absl::Now() + absl::Seconds(20));
    v1::WorkerStatus response;
    const grpc::Status status = stub->GetWorkerStatus(&context, {}, &response);
    if (role != nullptr) *role = response.name();
    return status;
  }

  StatusService service_;
  static std::string dir_, other_;
};
std::string SecurityTest::dir_, SecurityTest::other_;

TEST_F(SecurityTest, EachRoleIsKnownByItsCertificateAndCallsOnlyWhatIsForIt) {
  auto server = Serve(PeerRole::kPrefill, kInternalRoles);
  for (const PeerRole role : kInternalRoles) {
    std::string name;
    const grpc::Status status = Call(server->address(), For(role), PeerRole::kPrefill, &name);
    EXPECT_TRUE(status.ok()) << Name(role) << ": " << status.error_message();
    EXPECT_EQ(name, Name(role));
  }
  const int calls = service_.calls;
  const grpc::Status refused = Call(server->address(), For(PeerRole::kClient), PeerRole::kPrefill);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED) << refused.error_message();
  EXPECT_THAT(refused.error_message(), AllOf(HasSubstr("router, prefill, decode, admin"), HasSubstr("of client")));
  EXPECT_EQ(service_.calls, calls) << "refused before the service sees anything";
}

TEST_F(SecurityTest, NoCertificateForeignCertificateAndPlainTextDoNotConnect) {
  auto server = Serve(PeerRole::kRouter, kEveryRole);
  EXPECT_EQ(Call(server->address(), Security(), PeerRole::kRouter).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(server->address(), For(PeerRole::kAdmin, other_), PeerRole::kRouter).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  // TLS with the right authority, but without a certificate of its own.
  grpc::ChannelArguments args;
  args.SetSslTargetNameOverride("router.baton.internal");
  grpc::SslCredentialsOptions ssl;
  std::ifstream in(dir_ + "/ca.crt");
  ssl.pem_root_certs.assign(std::istreambuf_iterator<char>(in), {});
  auto stub = v1::Worker::NewStub(grpc::CreateCustomChannel(server->address(), grpc::SslCredentials(ssl), args));
  const auto call = [&](v1::Worker::Stub* s) {
    grpc::ClientContext context;
    SetDeadline(&context, absl::Now() + absl::Seconds(20));
    v1::WorkerStatus response;
    return s->GetWorkerStatus(&context, {}, &response).error_code();
  };
  EXPECT_EQ(call(stub.get()), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_.calls, 0);

  // Where the server asks for none, it may call what every role may, and nothing else.
  auto open = Serve(PeerRole::kRouter, kEveryRole, /*anonymous_ok=*/true);
  stub = v1::Worker::NewStub(grpc::CreateCustomChannel(open->address(), grpc::SslCredentials(ssl), args));
  EXPECT_EQ(call(stub.get()), grpc::StatusCode::OK);
  auto internal = Serve(PeerRole::kRouter, kInternalRoles, /*anonymous_ok=*/true);
  stub = v1::Worker::NewStub(grpc::CreateCustomChannel(internal->address(), grpc::SslCredentials(ssl), args));
  EXPECT_EQ(call(stub.get()), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(SecurityTest, AWorkerCannotPoseAsTheRouter) {
  auto server = Serve(PeerRole::kDecode, kInternalRoles);
  EXPECT_EQ(Call(server->address(), For(PeerRole::kPrefill), PeerRole::kRouter).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_.calls, 0);
}

TEST_F(SecurityTest, ChangedFilesAreReadAgainWithoutARestart) {
  const std::string dir = absl::StrCat(::testing::TempDir(), "/rotated");
  fs::remove_all(dir);
  fs::copy(dir_, dir);
  auto server = Serve(PeerRole::kPrefill, kInternalRoles, false, dir);
  const Security old_client = For(PeerRole::kRouter);
  const Security new_client = For(PeerRole::kRouter, other_);
  EXPECT_TRUE(Call(server->address(), old_client, PeerRole::kPrefill).ok());
  EXPECT_FALSE(Call(server->address(), new_client, PeerRole::kPrefill).ok());
  // The whole authority changes, so that success can only mean that all three files were read again.
  for (const char* file : {"ca.crt", "prefill.key", "prefill.crt"}) {
    fs::copy_file(other_ + "/" + file, dir + "/" + file, fs::copy_options::overwrite_existing);
  }
  bool changed = false;
  for (int i = 0; i < 200 && !changed; ++i) {
    changed = Call(server->address(), new_client, PeerRole::kPrefill).ok();
    if (!changed) absl::SleepFor(absl::Milliseconds(100));
  }
  EXPECT_TRUE(changed);
  EXPECT_FALSE(Call(server->address(), old_client, PeerRole::kPrefill).ok());
}

TEST_F(SecurityTest, RenewedCertificatesPassUnderTheSameAuthority) {
  const std::string dir = absl::StrCat(::testing::TempDir(), "/renewed");
  fs::remove_all(dir);
  fs::copy(dir_, dir);
  ASSERT_EQ(MakeCerts(absl::StrCat(dir, " --renew prefill --days 3 --san prefill=DNS:p.example,IP:10.0.0.7")), 0);
  auto server = Serve(PeerRole::kPrefill, kInternalRoles, false, dir);
  EXPECT_TRUE(Call(server->address(), For(PeerRole::kRouter), PeerRole::kPrefill).ok());
}

TEST_F(SecurityTest, StartErrorsSayWhatIsWrongAndWhatToDo) {
  const auto error = [](v1::Config config, PeerRoles roles = {PeerRole::kPrefill}) {
    return Security::FromConfig(config, roles).status();
  };
  v1::Config config;
  config.set_tls_cert(dir_ + "/prefill.crt");
  EXPECT_EQ(error(config).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(error(config).message()), HasSubstr("tls_cert, tls_key and tls_ca"));
  EXPECT_EQ(error(Config("/nowhere")).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(error(Config("/nowhere")).message()), HasSubstr("/nowhere/prefill.crt"));

  config = Config();
  config.set_tls_key(dir_ + "/decode.key");
  EXPECT_EQ(error(config).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(error(config).message()), HasSubstr("does not belong"));
  config = Config();
  config.set_tls_ca(other_ + "/ca.crt");
  EXPECT_THAT(std::string(error(config).message()), AllOf(HasSubstr("does not pass"), HasSubstr(other_)));
  config = Config();
  config.set_tls_ca(dir_ + "/prefill.key");
  EXPECT_THAT(std::string(error(config).message()), HasSubstr("PEM"));
  config = Config();
  config.set_tls_cert(dir_ + "/decode.crt");
  config.set_tls_key(dir_ + "/decode.key");
  EXPECT_EQ(error(config).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(error(config).message()),
              AllOf(HasSubstr("decode.baton.internal"), HasSubstr("one for prefill.baton.internal")));
}

TEST_F(SecurityTest, ACommandTakesTheAdminsCertificateWhereItMay) {
  const std::string dir = absl::StrCat(::testing::TempDir(), "/for_clients");
  fs::remove_all(dir);
  fs::create_directory(dir);
  for (const char* file : {"ca.crt", "client.key", "client.crt"}) fs::copy_file(dir_ + "/" + file, dir + "/" + file);
  const PeerRoles roles = {PeerRole::kAdmin, PeerRole::kClient};
  auto server = Serve(PeerRole::kRouter, kEveryRole);
  std::string name;
  EXPECT_TRUE(Call(server->address(), *Security::FromConfig(Config(), roles), PeerRole::kRouter, &name).ok());
  EXPECT_EQ(name, "admin");
  EXPECT_TRUE(Call(server->address(), *Security::FromConfig(Config(dir), roles), PeerRole::kRouter, &name).ok());
  EXPECT_EQ(name, "client");
}

TEST(PlaintextTest, StaysOnLoopbackUnlessToldOtherwise) {
  ServerOptions options;
  options.listen = "0.0.0.0:0";
  StatusService service;
  const absl::Status refused = Server::Start(options, {{"baton.v1.Worker", &service}}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("0.0.0.0:0"), HasSubstr("tls_dir"), HasSubstr("allow_plaintext")));
  EXPECT_FALSE(Security().CheckAddress("the router's address", "10.0.0.1:50051").ok());
  EXPECT_FALSE(Security().CheckAddress("the router's address", "router.example:50051").ok());
  EXPECT_TRUE(Security().CheckAddress("the router's address", "127.0.0.1:50051").ok());

  v1::Config config;
  config.set_allow_plaintext(true);
  options.security = *Security::FromConfig(config, {PeerRole::kRouter});
  EXPECT_TRUE(Server::Start(options, {{"baton.v1.Worker", &service}}).ok());
}

}  // namespace
}  // namespace baton::rpc
