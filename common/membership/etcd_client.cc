#include "common/membership/etcd_client.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/membership/router_directory.h"
#include "common/rpc/channel.h"
#include "common/status.h"

namespace baton::membership {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(3);

absl::StatusOr<std::string> ReadPem(absl::string_view setting, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return absl::NotFoundError(absl::StrCat(setting, ": cannot read ", path));
  return text.str();
}

// The first key after all that begin with `prefix`.
std::string EndOfPrefix(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (!prefix.empty()) ++prefix.back();
  return prefix.empty() ? std::string(1, '\0') : prefix;  // a single zero byte means "to the end"
}

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Create(const v1::Config& config) {
  absl::StatusOr<std::vector<std::string>> addresses = ParseAddresses("etcd_endpoints", config.etcd_endpoints());
  if (!addresses.ok()) return addresses.status();
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (config.has_etcd_tls_ca()) {
    const std::pair<const char*, const std::string*> files[] = {{"etcd_tls_ca", &config.etcd_tls_ca()},
                                                                {"etcd_tls_key", &config.etcd_tls_key()},
                                                                {"etcd_tls_cert", &config.etcd_tls_cert()}};
    std::string pem[3];
    for (int i = 0; i < 3; ++i) {
      absl::StatusOr<std::string> text = ReadPem(files[i].first, *files[i].second);
      if (!text.ok()) return text.status();
      pem[i] = *std::move(text);
    }
    credentials = grpc::SslCredentials({.pem_root_certs = pem[0], .pem_private_key = pem[1], .pem_cert_chain = pem[2]});
  } else if (config.has_etcd_tls_cert() || config.has_etcd_tls_key()) {
    return absl::InvalidArgumentError("etcd_tls_cert and etcd_tls_key are of use only with etcd_tls_ca");
  }
  auto client = std::make_unique<EtcdClient>();
  for (const std::string& address : *addresses) {
    grpc::ChannelArguments args;
    // A watch is silent for as long as nothing changes: pings tell a dead member from a quiet one.
    args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
    args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
    args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    client->endpoints_.push_back({address, grpc::CreateCustomChannel(address, credentials, args)});
  }
  return client;
}

absl::Status EtcdClient::Run(absl::Duration timeout, const std::function<grpc::Status(grpc::ClientContext*)>& call) {
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + timeout);
  {
    MutexLock lock(&mu_);
    if (stop_) return absl::CancelledError("stopping");
    call_ = &context;
  }
  const grpc::Status status = call(&context);
  MutexLock lock(&mu_);
  call_ = nullptr;
  return FromGrpcStatus(status);
}

void EtcdClient::Stop() {
  MutexLock lock(&mu_);
  stop_ = true;
  if (call_ != nullptr) call_->TryCancel();
}

void EtcdClient::TryNextEndpoint() { current_ = (current_ + 1) % endpoints_.size(); }

absl::StatusOr<EtcdClient::Listing> EtcdClient::List(const std::string& prefix) {
  etcdserverpb::RangeRequest request;
  request.set_key(prefix);
  request.set_range_end(EndOfPrefix(prefix));
  etcdserverpb::RangeResponse response;
  const absl::Status s = Run(kCallTimeout, [&](grpc::ClientContext* context) {
    return etcdserverpb::KV::NewStub(channel())->Range(context, request, &response);
  });
  if (!s.ok()) return s;
  return Listing{{response.kvs().begin(), response.kvs().end()}, response.header().revision()};
}

absl::Status EtcdClient::AwaitChange(const std::string& prefix, int64_t revision) {
  bool changed = false;
  std::string why = "the watch ended";
  const absl::Status s = Run(absl::InfiniteDuration(), [&](grpc::ClientContext* context) {
    auto stub = etcdserverpb::Watch::NewStub(channel());
    auto stream = stub->Watch(context);
    etcdserverpb::WatchRequest request;
    request.mutable_create_request()->set_key(prefix);
    request.mutable_create_request()->set_range_end(EndOfPrefix(prefix));
    request.mutable_create_request()->set_start_revision(revision + 1);
    etcdserverpb::WatchResponse response;
    if (stream->Write(request)) {
      while (!changed && stream->Read(&response)) {
        changed = response.events_size() > 0;
        if (!response.canceled()) continue;
        why = response.compact_revision() > 0 ? absl::StrCat("revision ", revision, " was compacted")
                                              : absl::StrCat("etcd ended the watch: ", response.cancel_reason());
        break;
      }
    }
    context->TryCancel();  // the stream has no other end
    const grpc::Status finished = stream->Finish();
    return finished.error_code() == grpc::StatusCode::CANCELLED ? grpc::Status::OK : finished;
  });
  if (changed || !s.ok()) return changed ? absl::OkStatus() : s;
  return absl::AbortedError(why);
}

absl::StatusOr<int64_t> EtcdClient::GrantLease(absl::Duration ttl) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(absl::ToInt64Seconds(ttl));
  etcdserverpb::LeaseGrantResponse response;
  const absl::Status s = Run(kCallTimeout, [&](grpc::ClientContext* context) {
    return etcdserverpb::Lease::NewStub(channel())->LeaseGrant(context, request, &response);
  });
  if (!s.ok()) return s;
  if (!response.error().empty()) return absl::UnavailableError(absl::StrCat("no lease: ", response.error()));
  return response.id();
}

absl::Status EtcdClient::RenewLease(int64_t lease) {
  etcdserverpb::LeaseKeepAliveResponse response;
  bool answered = false;
  const absl::Status s = Run(kCallTimeout, [&](grpc::ClientContext* context) {
    auto stub = etcdserverpb::Lease::NewStub(channel());
    auto stream = stub->LeaseKeepAlive(context);
    etcdserverpb::LeaseKeepAliveRequest request;
    request.set_id(lease);
    answered = stream->Write(request) && stream->Read(&response);
    stream->WritesDone();
    const grpc::Status finished = stream->Finish();
    return answered ? grpc::Status::OK : finished;
  });
  if (!s.ok()) return s;
  if (!answered) return absl::UnavailableError("etcd did not answer");
  return response.ttl() > 0 ? absl::OkStatus() : absl::NotFoundError("the lease is gone");
}

void EtcdClient::RevokeLease(int64_t lease) {
  grpc::ClientContext context;
  rpc::SetDeadline(&context, absl::Now() + absl::Seconds(1));
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse response;
  etcdserverpb::Lease::NewStub(channel())->LeaseRevoke(&context, request, &response);
}

absl::Status EtcdClient::Put(const std::string& key, const std::string& value, int64_t lease) {
  etcdserverpb::PutRequest request;
  request.set_key(key);
  request.set_value(value);
  request.set_lease(lease);
  etcdserverpb::PutResponse response;
  return Run(kCallTimeout, [&](grpc::ClientContext* context) {
    return etcdserverpb::KV::NewStub(channel())->Put(context, request, &response);
  });
}

}  // namespace baton::membership
