#include "common/rpc/channel.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_interceptor.h>

#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton::rpc {
namespace {

// gRPC retries only calls that are not committed: nothing of the answer was read.
constexpr char kRetryConfig[] = R"({
  "methodConfig": [{
    "name": [{}],
    "retryPolicy": {
      "maxAttempts": 4, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 2,
      "retryableStatusCodes": ["UNAVAILABLE"]
    }
  }, {
    "name": [{"service": "baton.v1.Inference", "method": "Generate"},
             {"service": "baton.v1.PrefillWorker", "method": "Prefill"},
             {"service": "baton.v1.DecodeWorker", "method": "Decode"},
             {"service": "baton.v1.DecodeWorker", "method": "Feed"}]
  }],
  "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}
})";

// gRPC 1.51 runs callbacks on threads that live as long as some channel or server has made use of them. When the last
// is let go by a callback, that thread frees the queue it is itself waiting on, and the process dies of it. So one call
// that fails at once, on a channel that leads nowhere, keeps the threads for the life of the process.
void KeepCallbackThreads() {
  struct Call {
    grpc::GenericStub stub{grpc::CreateChannel("", nullptr)};
    grpc::ClientContext context;
    grpc::Slice nothing;
    grpc::ByteBuffer request{&nothing, 1}, response;
  };
  // Volatile, so that the compiler keeps what nobody reads: a leak detector looks for who holds the call.
  [[maybe_unused]] static Call* volatile const call = [] {
    Call* made = new Call;
    made->stub.UnaryCall(&made->context, "/baton.v1.None/None", {}, &made->request, &made->response, [](grpc::Status) {});
    return made;
  }();
}

// Adds the credential to each call. gRPC's own call credentials are refused on connections in plain text, and loopback is
// one.
class AddAuthorization final : public grpc::experimental::Interceptor {
 public:
  explicit AddAuthorization(const std::string* value) : value_(value) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->insert({"authorization", *value_});
    }
    methods->Proceed();
  }

 private:
  const std::string* const value_;
};

class AddAuthorizationFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit AddAuthorizationFactory(std::string value) : value_(std::move(value)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo*) override {
    return new AddAuthorization(&value_);  // the channel, which outlives its calls, owns this factory
  }

 private:
  const std::string value_;
};

}  // namespace

std::shared_ptr<grpc::Channel> CreateChannel(const std::string& address, const ChannelOptions& options) {
  KeepCallbackThreads();
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Not a pause, whatever its name: how long one attempt to connect may take. A busy host needs more than a moment.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // cluster traffic never goes through the user's web proxy
  args.SetMaxReceiveMessageSize(options.max_message_bytes);
  args.SetMaxSendMessageSize(options.max_message_bytes);
  if (options.retry_unavailable) args.SetServiceConfigJSON(kRetryConfig);
  if (options.bulk) {
    args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 << 20);
    args.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  }
  if (options.own_connection) {
    static std::atomic<int64_t> next_id{0};
    args.SetString("baton.channel_id", absl::StrCat(next_id.fetch_add(1)));
  }
  const std::shared_ptr<grpc::ChannelCredentials> credentials = options.security.ChannelCredentials(options.peer, &args);
  if (options.authorization.empty()) return grpc::CreateCustomChannel(address, credentials, args);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<AddAuthorizationFactory>(options.authorization));
  return grpc::experimental::CreateCustomChannelWithInterceptors(address, credentials, args, std::move(interceptors));
}

void SetDeadline(grpc::ClientContext* context, absl::Time deadline) {
  if (deadline != absl::InfiniteFuture()) context->set_deadline(absl::ToChronoTime(deadline));
}

absl::Time DeadlineOf(const grpc::ServerContextBase& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

}  // namespace baton::rpc
