// Requests through a real router over real gRPC, with scripted workers.
#include <grpcpp/impl/client_unary_call.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>
#include <tuple>
#include <utility>

#include "tests/router/router_fixture.h"

namespace baton::router {
namespace {

using fakes::Pause;
using fakes::Script;
using fakes::ScriptedWorker;
using ::testing::HasSubstr;

class GenerateTest : public RouterFixture {
 protected:
  void SetUp() override {
    RouterFixture::SetUp();
    StartRouter();
  }
};

TEST_F(GenerateTest, TheWholeWay) {
  ScriptedWorker* p0 = AddWorker("p0", "prefill");
  ScriptedWorker* d0 = AddWorker("d0", "decode");
  v1::GenerateRequest request = Prompt("hello", 5);
  request.set_request_id("mine");
  request.mutable_sampling()->add_stop("never");
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.request_id(), "mine");
  EXPECT_EQ(answer.started.seed(), 7u);
  EXPECT_EQ(answer.started.model(), "tiny");
  EXPECT_GT(answer.started.prompt_tokens(), 0u);
  EXPECT_EQ(answer.text.at(0), "abcde");
  EXPECT_EQ(answer.Ids(0), (std::vector<int32_t>{'a', 'b', 'c', 'd', 'e'}));
  EXPECT_EQ(answer.finished.at(0).reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.finished.at(0).completion_tokens(), 5u);
  const v1::Summary& s = answer.summary;
  EXPECT_EQ(s.usage().prompt_tokens(), answer.started.prompt_tokens());
  EXPECT_EQ(s.usage().completion_tokens(), 5u);
  EXPECT_EQ(s.usage().cached_tokens(), 1u);
  EXPECT_EQ(s.prefill_worker(), "p0");
  EXPECT_EQ(s.decode_worker(), "d0");
  EXPECT_EQ(s.kv().bytes(), 4096u);
  EXPECT_EQ(s.kv().transport(), "loopback");
  EXPECT_EQ(s.kv().detail(), "scripted");
  EXPECT_EQ(s.timings().prefill_ms(), 2);
  EXPECT_EQ(s.timings().queue_ms(), 1);
  EXPECT_EQ(s.timings().transfer_ms(), 0.5);
  EXPECT_EQ(s.timings().decode_queue_ms(), 0.25);
  EXPECT_GT(s.timings().first_token_ms(), 0);
  EXPECT_GE(s.timings().total_ms(), s.timings().first_token_ms());
  EXPECT_EQ(s.seed(), 7u);
  ASSERT_EQ(p0->prefills().size(), 1u);
  EXPECT_EQ(p0->prefills()[0].sampling().stop_size(), 0);
  EXPECT_EQ(p0->prefills()[0].epoch(), 1u);
  EXPECT_EQ(d0->decodes()[0].prompt_token_ids_size(), p0->prefills()[0].prompt_token_ids_size());
  EXPECT_EQ(d0->decodes()[0].sampling().seed(), 7u);
}

TEST_F(GenerateTest, ASeedIsChosenAndReported) {
  ScriptedWorker* p0 = AddWorker("p0", "prefill");
  AddWorker("d0", "decode");
  v1::GenerateRequest request = Prompt();
  request.mutable_sampling()->clear_seed();
  const Answer a = Generate(request);
  const Answer b = Generate(request);
  EXPECT_NE(a.started.seed(), b.started.seed());
  EXPECT_LT(a.started.seed(), uint64_t{1} << 63);
  EXPECT_EQ(a.summary.seed(), a.started.seed());
  EXPECT_EQ(p0->prefills()[0].sampling().seed(), a.started.seed());
  EXPECT_THAT(a.started.request_id(), HasSubstr("req-"));
}

TEST_F(GenerateTest, OneTokenNeedsNoDecodeWorker) {
  AddWorker("p0", "prefill");
  const Answer answer = Generate(Prompt("hello", 1));
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.text.at(0), "a");
  EXPECT_EQ(answer.summary.kv().transport(), "none");
  EXPECT_EQ(book_.issued(), 0);
}

TEST_F(GenerateTest, ChoicesEndAtTheirOwnStopStrings) {
  Script script;
  script.texts = {"one END rest", "second END more", "no stop here"};
  AddWorker("p0", "prefill", script);
  AddWorker("d0", "decode", script);
  v1::GenerateRequest request = Prompt("hello", 12);
  request.mutable_sampling()->set_n(3);
  request.mutable_sampling()->add_stop(" END");
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.text.at(0), "one");
  EXPECT_EQ(answer.text.at(1), "second");
  EXPECT_EQ(answer.text.at(2), "no stop here");
  EXPECT_EQ(answer.finished.at(0).stop_string(), " END");
  EXPECT_EQ(answer.finished.at(0).completion_tokens(), 7u);
  EXPECT_EQ(answer.finished.at(1).completion_tokens(), 10u);
  EXPECT_EQ(answer.finished.at(2).reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.summary.usage().completion_tokens(), 7u + 10u + 12u);
  EXPECT_EQ(answer.Ids(0).size(), 7u) << "events after the match are dropped";
}

TEST_F(GenerateTest, WhenAllChoicesMatchedDecodeIsCancelled) {
  Script script;
  script.texts = {"abcEND"};
  script.pause = Pause::kInDecode;  // it would never end by itself
  script.pause_after = 7;
  AddWorker("p0", "prefill", script);
  script.texts = {"abcENDxxxxxxxxxxxxxxxxxxxx"};
  ScriptedWorker* d0 = AddWorker("d0", "decode", script);
  v1::GenerateRequest request = Prompt("hello", 20);
  request.mutable_sampling()->add_stop("END");
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.text.at(0), "abc");
  EXPECT_EQ(answer.summary.usage().completion_tokens(), 6u);
  EXPECT_TRUE(Eventually([&] { return d0->open() == 0; }));
}

TEST_F(GenerateTest, AStopStringInTheFirstTokenCostsNoDecode) {
  AddWorker("p0", "prefill");
  ScriptedWorker* d0 = AddWorker("d0", "decode");
  v1::GenerateRequest request = Prompt("hello", 20);
  request.mutable_sampling()->add_stop("a");
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.text.at(0), "");
  EXPECT_EQ(answer.summary.usage().completion_tokens(), 1u);
  EXPECT_TRUE(Eventually([&] { return d0->open() == 0; }));
  for (const v1::UpdateDecodeRequest& update : d0->updates()) EXPECT_FALSE(update.go()) << "decode must not start";
}

TEST_F(GenerateTest, ADecodeWorkerKilledMidStreamIsNotNoticedByTheClient) {
  AddWorker("p0", "prefill");
  v1::GenerateRequest request = Prompt("hello", 20);
  request.mutable_sampling()->set_n(2);
  Script script;
  script.pause = Pause::kInDecode;
  script.pause_after = 4;
  ScriptedWorker* d0 = AddWorker("d0", "decode", script);
  std::thread killer([&] {
    Eventually([&] { return d0->paused() == 1; });
    AddWorker("d1", "decode");
    d0->Kill();
  });
  const Answer answer = Generate(request);
  killer.join();
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.text.at(0), "abcdefghijklmnopqrst");
  EXPECT_EQ(answer.text.at(1), "abcdefghijklmnopqrst");
  EXPECT_EQ(answer.Ids(0).size(), 20u);
  EXPECT_EQ(answer.Ids(1).size(), 20u);
  EXPECT_EQ(answer.summary.decode_worker(), "d1");
  EXPECT_EQ(answer.summary.usage().completion_tokens(), 40u);
  ASSERT_EQ(workers_[0]->prefills().size(), 2u);
  EXPECT_EQ(workers_[0]->prefills()[1].epoch(), 2u);
  EXPECT_THAT(metrics_.Expose(), HasSubstr("baton_request_retries_total"));
}

TEST_F(GenerateTest, APrefillWorkerKilledBeforeItsFirstTokenIsReplaced) {
  Script script;
  script.pause = Pause::kBeforeFirstToken;
  ScriptedWorker* p0 = AddWorker("p0", "prefill", script);
  AddWorker("d0", "decode");
  std::thread killer([&] {
    Eventually([&] { return p0->paused() == 1; });
    AddWorker("p1", "prefill");
    p0->Kill();
  });
  const Answer answer = Generate(Prompt());
  killer.join();
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.text.at(0), "abcdefgh");
  EXPECT_EQ(answer.summary.prefill_worker(), "p1");
}

TEST_F(GenerateTest, LostKvIsComputedAgain) {
  AddWorker("p0", "prefill");
  Script script;
  script.decode_error = absl::DataLossError("block 3: checksum differs");
  AddWorker("d0", "decode", script);
  AddWorker("d1", "decode");
  for (int i = 0; i < 4; ++i) {  // whichever is asked first
    const Answer answer = Generate(Prompt());
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.summary.decode_worker(), "d1");
  }
}

// Bad requests, a full pool and a broken hand-over are no reason to keep other requests away from the worker that said so.
TEST_F(GenerateTest, OnlyAnUnreachableWorkerIsLeftAlone) {
  AddWorker("p0", "prefill");
  const auto suspects = [&] {
    int number = 0;
    for (const WorkerSnapshot& worker : router_->view()->Snapshot()) number += worker.suspect;
    return number;
  };
  Script script;
  ScriptedWorker* d0 = AddWorker("d0", "decode");
  for (const absl::StatusCode code :
       {absl::StatusCode::kInvalidArgument, absl::StatusCode::kResourceExhausted, absl::StatusCode::kAborted,
        absl::StatusCode::kDataLoss, absl::StatusCode::kInternal, absl::StatusCode::kFailedPrecondition}) {
    script.decode_error = absl::Status(code, "said in words");
    d0->set_script(script);
    EXPECT_FALSE(Generate(Prompt()).status.ok()) << static_cast<int>(code);
    EXPECT_EQ(suspects(), 0) << static_cast<int>(code);
  }
  script.decode_error = absl::UnavailableError("gone");
  d0->set_script(script);
  grpc::ClientContext context;
  std::thread client([&] { EXPECT_FALSE(Generate(Prompt(), absl::Seconds(30), nullptr, &context).status.ok()); });
  EXPECT_TRUE(Eventually([&] { return suspects() == 1; }));
  context.TryCancel();
  client.join();
}

TEST_F(GenerateTest, ThreeMovesAndEachTokenOnce) {
  AddWorker("p0", "prefill");
  Script script;
  script.pause = Pause::kInDecode;
  script.pause_after = 4;
  script.after_pause = absl::UnavailableError("dying");
  AddWorker("d0", "decode", script);
  const Answer answer = Generate(Prompt());
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("after 4 attempts: decode worker d0: dying"));
  EXPECT_EQ(answer.Ids(0).size(), 5u);
  EXPECT_EQ(workers_[0]->calls(), 4);
}

TEST_F(GenerateTest, AWorkerWithOtherArithmeticNeverJoinsTheStream) {
  AddWorker("p0", "prefill");
  Script script;
  script.pause = Pause::kInDecode;
  script.pause_after = 4;
  ScriptedWorker* d0 = AddWorker("d0", "decode", script);
  std::atomic<int> arrived{0};
  std::thread killer([&] {
    Eventually([&] { return d0->paused() == 1 && arrived == 5; });  // a kill takes along what is still under way
    Script other;
    other.texts = {"abXdefgh"};
    AddWorker("d1", "decode", other);
    d0->Kill();
  });
  const Answer answer = Generate(Prompt(), absl::Seconds(30), [&](const v1::GenerateResponse& response) {
    if (response.has_token()) ++arrived;
  });
  killer.join();
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInternal) << answer.status;
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("at index 2"));
  EXPECT_EQ(answer.text.at(0), "abcde");
}

TEST_F(GenerateTest, AClientThatLeavesFreesBothSidesAtEveryPhase) {
  for (const Pause pause : {Pause::kBeforeFirstToken, Pause::kBeforePrefilled, Pause::kBeforeFetch, Pause::kInDecode}) {
    Script script;
    script.pause = pause;
    ScriptedWorker* p = AddWorker("p0", "prefill", script);
    ScriptedWorker* d = AddWorker("d0", "decode", script);
    grpc::ClientContext context;
    std::atomic<bool> has_token{pause == Pause::kBeforeFirstToken};
    std::thread leaver([&] {
      Eventually([&] { return p->paused() + d->paused() == 1 && has_token; });
      context.TryCancel();
    });
    const Answer answer = Generate(
        Prompt(), absl::Seconds(30), [&](const v1::GenerateResponse& r) { has_token = has_token || r.has_token(); },
        &context);
    leaver.join();
    EXPECT_EQ(answer.status.code(), absl::StatusCode::kCancelled);
    EXPECT_TRUE(Eventually([&] { return router_->requests_in_flight() == 0; }));
    EXPECT_TRUE(Eventually([&] { return p->open() == 0 && d->open() == 0; })) << static_cast<int>(pause);
    EXPECT_TRUE(Eventually([&] { return book_.outstanding() == 0; })) << static_cast<int>(pause);
    // A new pair for the next phase.
    for (const WorkerSnapshot& worker : router_->view()->Snapshot()) {
      ASSERT_TRUE(router_->view()->Deregister(worker.id).ok());
    }
  }
  EXPECT_EQ(book_.released(), 1) << "before the fetch: these decode workers fetch at once";
}

TEST_F(GenerateTest, TheClientsDeadlineEndsEverything) {
  for (const Pause pause : {Pause::kBeforeFirstToken, Pause::kBeforeFetch, Pause::kInDecode}) {
    Script script;
    script.pause = pause;
    ScriptedWorker* p = AddWorker("p0", "prefill", script);
    ScriptedWorker* d = AddWorker("d0", "decode", script);
    const Answer answer = Generate(Prompt(), absl::Milliseconds(300));
    EXPECT_EQ(answer.status.code(), absl::StatusCode::kDeadlineExceeded) << answer.status;
    EXPECT_TRUE(Eventually([&] { return p->open() == 0 && d->open() == 0; }));
    EXPECT_TRUE(Eventually([&] { return book_.outstanding() == 0; }));
    for (const WorkerSnapshot& worker : router_->view()->Snapshot()) {
      ASSERT_TRUE(router_->view()->Deregister(worker.id).ok());
    }
  }
}

TEST_F(GenerateTest, BadRequestsGetTypedErrorsAndReachNoWorker) {
  ScriptedWorker* p0 = AddWorker("p0", "prefill");
  AddWorker("d0", "decode");
  const auto with = [](const std::function<void(v1::GenerateRequest*)>& change) {
    v1::GenerateRequest request = Prompt();
    change(&request);
    return request;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::tuple<const char*, v1::GenerateRequest, absl::StatusCode> cases[] = {
      {"prompt", with([](auto* r) { r->set_prompt(""); }), absl::StatusCode::kInvalidArgument},
      {"input", with([](auto* r) { r->clear_input(); }), absl::StatusCode::kInvalidArgument},
      {"511", with([](auto* r) { r->set_prompt(std::string(600, 'x')); }), absl::StatusCode::kInvalidArgument},
      {"context holds 512", with([](auto* r) { r->set_prompt(std::string(1 << 20, 'x')); }),
       absl::StatusCode::kInvalidArgument},
      {"token_ids", with([](auto* r) { r->mutable_token_ids()->add_ids(1 << 20); }),
       absl::StatusCode::kInvalidArgument},
      {"token_ids", with([](auto* r) { r->mutable_token_ids()->add_ids(-1); }), absl::StatusCode::kInvalidArgument},
      {"token_ids", with([](auto* r) { r->mutable_token_ids(); }), absl::StatusCode::kInvalidArgument},
      {"not served", with([](auto* r) { r->set_model("other"); }), absl::StatusCode::kNotFound},
      {"temperature", with([&](auto* r) { r->mutable_sampling()->set_temperature(nan); }),
       absl::StatusCode::kInvalidArgument},
      {"temperature", with([](auto* r) { r->mutable_sampling()->set_temperature(-1); }),
       absl::StatusCode::kInvalidArgument},
      {"max_tokens", with([](auto* r) { r->mutable_sampling()->set_max_tokens(0); }),
       absl::StatusCode::kInvalidArgument},
      {"sampling.n", with([](auto* r) { r->mutable_sampling()->set_n(17); }), absl::StatusCode::kInvalidArgument},
      {"min_tokens", with([](auto* r) { r->mutable_sampling()->set_min_tokens(9); }),
       absl::StatusCode::kInvalidArgument},
      {"stop", with([](auto* r) { r->mutable_sampling()->add_stop(""); }), absl::StatusCode::kInvalidArgument},
      {"role", with([](auto* r) { r->mutable_chat()->add_messages()->set_role("x"); }),
       absl::StatusCode::kInvalidArgument},
      {"request_id", with([](auto* r) { r->set_request_id(std::string(129, 'x')); }),
       absl::StatusCode::kInvalidArgument},
      {"request_id", with([](auto* r) { r->set_request_id("a\nb"); }), absl::StatusCode::kInvalidArgument},
  };
  for (const auto& [what, request, code] : cases) {
    const Answer answer = Generate(request);
    EXPECT_EQ(answer.status.code(), code) << what << ": " << answer.status;
    EXPECT_THAT(std::string(answer.status.message()), HasSubstr(what));
    EXPECT_TRUE(answer.tokens.empty());
  }
  EXPECT_EQ(p0->calls(), 0);
  EXPECT_TRUE(Generate(Prompt()).status.ok()) << "the router lives";
}

// gRPC by itself answers such bytes with UNIMPLEMENTED and an empty message.
TEST_F(GenerateTest, TextThatIsNotUtf8IsToldSoByName) {
  const std::pair<const char*, std::string> calls[] = {
      {"/baton.v1.Inference/Generate",
       "\x1a\x03\xff\xfe"
       "A"},  // field 3, prompt
      {"/baton.v1.Inference/Tokenize",
       "\x12\x03\xff\xfe"
       "A"},                                         // field 2, text
      {"/baton.v1.Inference/Generate", "\xff\xff"},  // no message at all
  };
  for (const auto& [method, bytes] : calls) {
    grpc::Slice slice(bytes);
    grpc::ByteBuffer in(&slice, 1), out;
    grpc::ClientContext context;
    // All are made as unary calls: a status is all that comes.
    const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::NORMAL_RPC);
    grpc::internal::BlockingUnaryCallImpl<grpc::ByteBuffer, grpc::ByteBuffer> call(channel_.get(), rpc, &context, in,
                                                                                   &out);
    EXPECT_EQ(call.status().error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(call.status().error_message(), HasSubstr("not valid UTF-8")) << method;
  }
}

TEST_F(GenerateTest, WithoutWorkersTheAnswerSaysWhichAreMissing) {
  Answer answer = Generate(Prompt());
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("no prefill worker is ready"));
  AddWorker("p0", "prefill");
  answer = Generate(Prompt());
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("no decode worker is ready"));
  EXPECT_EQ(workers_[0]->calls(), 0) << "no prefill is spent without a place to decode";
}

TEST_F(GenerateTest, ChatsAreRenderedAndTokenized) {
  ScriptedWorker* p0 = AddWorker("p0", "prefill");
  AddWorker("d0", "decode");
  v1::GenerateRequest request = Prompt();
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("hi");
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  const auto ids = p0->prefills()[0].prompt_token_ids();
  EXPECT_NE(std::find(ids.begin(), ids.end(), 257), ids.end()) << "<|im_start|> is one token";
}

TEST_F(GenerateTest, TheSameIdTwiceAtATimeIsRefused) {
  Script script;
  script.pause = Pause::kInDecode;
  AddWorker("p0", "prefill");
  ScriptedWorker* d0 = AddWorker("d0", "decode", script);
  v1::GenerateRequest request = Prompt();
  request.set_request_id("twin");
  Answer first;
  std::thread other([&] { first = Generate(request); });
  Eventually([&] { return d0->paused() == 1; });
  EXPECT_EQ(Generate(request).status.code(), absl::StatusCode::kAlreadyExists);
  d0->Resume();
  other.join();
  EXPECT_TRUE(first.status.ok()) << first.status;
  EXPECT_EQ(first.text.at(0), "abcdefgh") << "the refusal did not touch the one that runs";
  d0->set_script({});
  EXPECT_TRUE(Generate(request).status.ok()) << "afterwards the id is free";
}

}  // namespace
}  // namespace baton::router
