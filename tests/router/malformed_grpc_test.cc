// Malformed calls at the two gRPC doors, the same ones in every run: messages that are noise or damaged, and
// connections whose HTTP/2 or gRPC framing is. Whatever they are, the server ends the call or hangs up, and lives.
// BATON_MALFORMED=100000 for the long count.
#include <grpcpp/generic/generic_stub.h>

#include <map>

#include "proto/compat/kserve.grpc.pb.h"
#include "tests/common/rpc/malformed.h"
#include "tests/common/rpc/raw_http.h"
#include "tests/router/router_fixture.h"

namespace baton::router {
namespace {

using testing::Below;
using testing::Damage;
using testing::RawHttp;

struct Call {
  std::string path;
  std::string message;  // a valid one
};

std::string BigEndian(uint32_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i));
  return out;
}

enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kWindow = 8,
  kContinuation = 9
};
constexpr uint8_t kEndStream = 1, kEndHeaders = 4;
constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return absl::StrCat(BigEndian(static_cast<uint32_t>(payload.size()), 3), BigEndian(type, 1), BigEndian(flags, 1),
                      BigEndian(stream, 4), payload);
}

// HPACK: a literal with a literal name, not indexed, not Huffman coded.
std::string Header(const std::string& name, const std::string& value) {
  return absl::StrCat(BigEndian(0, 1), BigEndian(static_cast<uint32_t>(name.size() & 127), 1), name.substr(0, 127),
                      BigEndian(static_cast<uint32_t>(std::min<size_t>(value.size(), 126)), 1), value.substr(0, 126));
}

class MalformedGrpcTest : public RouterFixture {
 protected:
  int port() const { return std::atoi(router_->address().substr(router_->address().rfind(':') + 1).c_str()); }

  // A message of the wire format with damage, or noise.
  std::string BadMessage(const std::string& valid) {
    if (Below(4, &random_) != 0) return Damage(valid, kPieces, &random_);
    std::string noise(Below(200, &random_), '\0');
    for (char& c : noise) c = static_cast<char>(random_());
    return noise;
  }

  // Through a real client, which frames it well.
  void CallWithBadMessage(const Call& call) {
    const std::string path = Below(20, &random_) == 0 ? Damage(call.path, kPieces, &random_) : call.path;
    const grpc::Slice slice(BadMessage(call.message));
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ClientContext context;
    rpc::SetDeadline(&context, absl::Now() + absl::Seconds(60));
    grpc::CompletionQueue queue;
    grpc::GenericStub stub(channel_);
    // As a stream of both directions, whatever the method is; gRPC's servers see no difference.
    auto stream = stub.PrepareCall(&context, path, &queue);
    const auto wait = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    grpc::Status status;
    stream->StartCall(nullptr);
    if (wait()) {
      stream->WriteLast(request, grpc::WriteOptions(), nullptr);
      wait();
      grpc::ByteBuffer response;
      do {
        stream->Read(&response, nullptr);
      } while (wait());
    }
    stream->Finish(&status, nullptr);
    wait();
    queue.Shutdown();
    ++codes_[status.error_code()];
  }

  // A whole connection, byte for byte, with one thing that HTTP/2 or gRPC do not allow, or with damage anywhere.
  std::string BadConnection(const Call& call) {
    const std::string message = Below(2, &random_) == 0 ? call.message : BadMessage(call.message);
    std::string path = call.path, type = "application/grpc", timeout = "20S", prefix = BigEndian(0, 1);
    std::string more, before, after;
    uint32_t length = static_cast<uint32_t>(message.size()), stream = 1;
    uint8_t data_flags = kEndStream, header_flags = kEndHeaders;
    bool damage = false;
    switch (Below(18, &random_)) {
      case 0: prefix = BigEndian(1, 1); break;                       // "compressed", without a coding
      case 1: prefix = BigEndian(1, 1), more = Header("grpc-encoding", "gzip"); break;  // which it is not
      case 2: more = Header("grpc-encoding", "no-such"), prefix = BigEndian(1, 1); break;
      case 3: prefix = BigEndian(static_cast<uint32_t>(Below(256, &random_)), 1); break;
      case 4: length += 1 + static_cast<uint32_t>(Below(100, &random_)); break;  // more than comes
      case 5: length = UINT32_MAX - static_cast<uint32_t>(Below(2, &random_)); break;
      case 6: length -= std::min<uint32_t>(length, 3); break;          // bytes are left over
      case 7: path = Damage(path, kPieces, &random_); break;
      case 8: type = "text/html"; break;
      case 9: timeout = Damage("100m", kPieces, &random_); break;
      case 10: more = Header("a-bin", "!not base64!") + Header("Upper-Case", "x") + Header(":path", "/twice"); break;
      case 11: stream = static_cast<uint32_t>(Below(4, &random_)) * 2; break;
      case 12: data_flags = 0, header_flags = 0; break;               // neither headers nor stream end
      case 13: header_flags = 0, after = Frame(kContinuation, 0, 3, "x"); break;
      case 14: before = Frame(kData, 0, 1, "early") + Frame(kContinuation, 0, 1, ""); break;
      case 15: after = Frame(kReset, 0, 1, BigEndian(8, 4)) + Frame(kData, 0, 1, "late"); break;
      case 16: before = Frame(kWindow, 0, 0, BigEndian(0x7fffffff, 4)) + Frame(kPing, 0, 1, "short"); break;
      default: damage = true;
    }
    const std::string headers = Header(":method", "POST") + Header(":scheme", "http") + Header(":path", path) +
                                Header(":authority", "test") + Header("content-type", type) + Header("te", "trailers") +
                                Header("grpc-timeout", timeout) + more;
    std::string frames = Frame(kSettings, 0, 0, "") + before + Frame(kHeaders, header_flags, stream, headers) +
                         Frame(kData, data_flags, stream, prefix + BigEndian(length, 4) + message) + after;
    if (damage) frames = Damage(frames, kPieces, &random_);
    return Below(50, &random_) == 0 ? Damage(kPreface + frames, kPieces, &random_) : kPreface + frames;
  }

  // `good`: a call that must succeed, now and then and at the end.
  void SendAll(const std::vector<Call>& calls, const std::function<bool()>& good) {
    const int requests = testing::MalformedCount();
    int64_t early = 0;
    int answered = 0;
    for (int i = 0; i < requests; ++i) {
      const Call& call = calls[Below(calls.size(), &random_)];
      if (i % 2 == 0) {
        CallWithBadMessage(call);
      } else {
        RawHttp client(port());
        client.Send(BadConnection(call));
        client.ShutdownSend();
        answered += !client.ReadAll().empty();
      }
      if (i % (requests / 20 + 1) == 0) {
        ASSERT_TRUE(good()) << "after " << i;
      }
      if (i == requests / 2) early = testing::ResidentKib();
    }
    EXPECT_TRUE(good());
    const int64_t grown = testing::ResidentKib() - early;
    printf("%d calls; of %d broken connections %d were answered; memory grew by %lld KiB in the second half; codes:",
           requests, requests / 2, answered, static_cast<long long>(grown));
    for (const auto& [code, count] : codes_) printf(" %d: %d", code, count);
    printf("\n");
    EXPECT_LT(grown, testing::kMayGrowKib) << "memory grows";
    EXPECT_GT(answered, requests / 4);
    // Some damage leaves a good request; most does not. gRPC answers a message that protobuf cannot read UNIMPLEMENTED.
    EXPECT_GT(codes_[grpc::StatusCode::OK], 0);
    EXPECT_GT(codes_[grpc::StatusCode::INVALID_ARGUMENT], 0);
    EXPECT_LT(codes_[grpc::StatusCode::OK], requests / 4);
    EXPECT_EQ(codes_[grpc::StatusCode::DEADLINE_EXCEEDED], 0) << "a call was left open";
    EXPECT_EQ(codes_[grpc::StatusCode::UNKNOWN], 0) << "a handler threw";
    EXPECT_EQ(codes_[grpc::StatusCode::UNAVAILABLE], 0) << "a bad message broke its connection";
  }

  // Those that protobuf's and HTTP/2's readers look at: varints that are long or endless, tags and lengths.
  const std::vector<std::string> kPieces = {std::string(1, '\0'),
                                            "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                                            "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
                                            "\x0a\xff\xff\xff\x7f",
                                            "\x0b\x0b\x0b\x0b",
                                            "\xc3\x28",
                                            "\x0a\x02\x0a\x00",
                                            "\x7f\xff\xff\xff",
                                            "/",
                                            "gzip"};
  std::mt19937_64 random_{11};
  std::map<int, int> codes_;
};

TEST_F(MalformedGrpcTest, NativeDoorLives) {
  StartRouter();
  AddWorker("p0", "prefill");
  AddWorker("d0", "decode");
  v1::GenerateRequest text = Prompt("hello", 2), ids, chat;
  text.set_request_id("id");
  text.mutable_sampling()->add_stop("x");
  text.mutable_sampling()->mutable_constraint()->set_regex("[a-z]*");
  for (int i = 1; i < 9; ++i) ids.mutable_token_ids()->add_ids(i);
  ids.mutable_sampling()->set_max_tokens(3);
  ids.mutable_sampling()->set_n(2);
  ids.mutable_sampling()->set_temperature(0.5f);
  (*ids.mutable_sampling()->mutable_logit_bias())[5] = -1;
  v1::ChatMessage* message = chat.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("hi");
  chat.mutable_chat()->set_template_arguments(R"({"enable_thinking":true})");
  chat.mutable_sampling()->set_max_tokens(2);
  v1::TokenizeRequest tokenize;
  tokenize.set_text("hello");
  v1::DetokenizeRequest detokenize;
  for (int i = 1; i < 9; ++i) detokenize.add_token_ids(i);
  // A worker of another model: a change of one byte does not make a worker of it.
  v1::RegisterRequest add;
  *add.mutable_worker() = Info(*workers_[0]);
  add.mutable_worker()->set_model_name("another model");
  v1::HeartbeatRequest beat;
  beat.set_name("nobody");
  beat.mutable_load()->set_context_tokens(5);
  v1::ExplainPlacementRequest explain;
  explain.set_request_id("id");
  SendAll({{"/baton.v1.Inference/Generate", text.SerializeAsString()},
           {"/baton.v1.Inference/Generate", ids.SerializeAsString()},
           {"/baton.v1.Inference/Generate", chat.SerializeAsString()},
           {"/baton.v1.Inference/Tokenize", tokenize.SerializeAsString()},
           {"/baton.v1.Inference/Detokenize", detokenize.SerializeAsString()},
           {"/baton.v1.Inference/ListModels", ""},
           {"/baton.v1.Cluster/Register", add.SerializeAsString()},
           {"/baton.v1.Cluster/Heartbeat", beat.SerializeAsString()},
           {"/baton.v1.Cluster/ExplainPlacement", explain.SerializeAsString()}},
          [this] { return Generate(Prompt()).status.ok(); });
}

TEST_F(MalformedGrpcTest, KServeDoorLives) {
  StartRouter();
  AddWorker("p0", "prefill");
  AddWorker("d0", "decode");
  const auto input = [](inference::ModelInferRequest* request, const std::string& name, const std::string& datatype) {
    auto* tensor = request->add_inputs();
    tensor->set_name(name);
    tensor->set_datatype(datatype);
    tensor->add_shape(1);
    return tensor;
  };
  inference::ModelInferRequest typed, raw;
  typed.set_model_name("tiny");
  typed.set_id("id");
  input(&typed, "text_input", "BYTES")->mutable_contents()->add_bytes_contents("hello");
  input(&typed, "sampling_parameters", "BYTES")
      ->mutable_contents()
      ->add_bytes_contents(R"({"max_tokens":2,"temperature":0.5,"stop":["x"]})");
  (*typed.mutable_parameters())["sequence_id"].set_int64_param(5);
  inference::ModelInferRequest stream = typed;
  input(&stream, "stream", "BOOL")->mutable_contents()->add_bool_contents(true);
  raw.set_model_name("tiny");
  input(&raw, "text_input", "BYTES");
  raw.add_raw_input_contents(std::string("\5\0\0\0hello", 9));
  input(&raw, "max_tokens", "INT32");
  raw.add_raw_input_contents(std::string("\2\0\0\0", 4));
  inference::ModelMetadataRequest metadata;
  metadata.set_name("tiny");
  const std::string service = "/inference.GRPCInferenceService/";
  const auto good = [&] {
    grpc::ClientContext context;
    rpc::SetDeadline(&context, absl::Now() + absl::Seconds(60));
    inference::ModelInferResponse response;
    return inference::GRPCInferenceService::NewStub(channel_)->ModelInfer(&context, raw, &response).ok();
  };
  SendAll({{service + "ModelInfer", typed.SerializeAsString()},
           {service + "ModelInfer", raw.SerializeAsString()},
           {service + "ModelStreamInfer", stream.SerializeAsString()},
           {service + "ModelStreamInfer", raw.SerializeAsString()},
           {service + "ModelMetadata", metadata.SerializeAsString()},
           {service + "ModelConfig", metadata.SerializeAsString()},
           {service + "ModelReady", metadata.SerializeAsString()},
           {service + "RepositoryIndex", ""},
           {service + "ServerLive", ""}},
          good);
}

}  // namespace
}  // namespace baton::router
