// Constrained answers of a real cluster: they satisfy what was asked, are those of one process token for token, and stay so
// when the decode worker dies in the middle.
#include <signal.h>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/common/rpc/raw_http.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/one_process.h"

namespace baton::e2e {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kPerson[] = R"({"type":"object","properties":{"name":{"type":"string","minLength":2,"maxLength":12},
  "age":{"type":"integer","minimum":18,"maximum":99},"colour":{"enum":["red","green"]},
  "pets":{"type":"array","items":{"$ref":"#/$defs/pet"},"minItems":1,"maxItems":2}},
  "required":["name","age","pets"],"additionalProperties":false,
  "$defs":{"pet":{"type":"object","properties":{"kind":{"enum":["cat","dog"]},"nick":{"type":"string","maxLength":6}},"required":["kind"]}}})";

bool IsPerson(const Json& p) {
  if (!p.is_object() || !p["name"].is_string() || !p["age"].is_number_integer() || p["age"] < 18 || p["age"] > 99) return false;
  for (auto it = p.begin(); it != p.end(); ++it) {
    if (it.key() != "name" && it.key() != "age" && it.key() != "colour" && it.key() != "pets") return false;
  }
  if (p.contains("colour") && p["colour"] != "red" && p["colour"] != "green") return false;
  if (!p["pets"].is_array() || p["pets"].empty() || p["pets"].size() > 2) return false;
  for (const Json& pet : p["pets"]) {
    if (!pet.is_object() || (pet.value("kind", "") != "cat" && pet.value("kind", "") != "dog")) return false;
  }
  return true;
}

// Cycles through the kinds of constraint.
v1::GenerateRequest ConstrainedRequest(int i) {
  v1::GenerateRequest request;
  request.set_request_id(absl::StrCat("constrained-", i));
  for (int t = 0; t < 20 + 13 * i; ++t) request.mutable_token_ids()->add_ids((t * 37 + i) % 250);
  v1::SamplingParams* s = request.mutable_sampling();
  s->set_seed(40 + i);
  s->set_temperature(i % 3 == 0 ? 0.0f : 0.75f);
  s->set_n(1 + i % 2);
  s->set_max_tokens(160);
  if (i % 5 == 0) s->set_logprobs(2);
  v1::Constraint* c = s->mutable_constraint();
  if (i % 4 == 0 || i % 4 == 1) c->set_json_schema(kPerson);
  if (i % 4 == 2) c->set_regex("(north|south) [0-9]{3}-[a-f]{4,8}\\.");
  if (i % 4 == 3) {
    for (const char* text : {"absolutely", "absolutely not", "\xc3\xa7\x61 d\xc3\xa9pend"}) c->mutable_choice()->add_texts(text);
  }
  return request;
}

void ExpectSatisfied(const v1::GenerateRequest& request, const Generation::Choice& choice) {
  // A random model wanders where the constraint lets it.
  if (ChooseModel().tiny && choice.finished.reason() == v1::FINISH_REASON_LENGTH) return;
  ASSERT_EQ(choice.finished.reason(), v1::FINISH_REASON_STOP) << choice.text;
  const v1::Constraint& c = request.sampling().constraint();
  const std::string text = choice.text + choice.finished.text();
  if (c.has_json_schema()) {
    EXPECT_TRUE(IsPerson(Json::parse(text, nullptr, false))) << text;
  } else if (c.has_choice()) {
    EXPECT_TRUE(std::find(c.choice().texts().begin(), c.choice().texts().end(), text) != c.choice().texts().end()) << text;
  } else {
    EXPECT_TRUE(std::regex_match(text, std::regex("(north|south) [0-9]{3}-[a-f]{4,8}\\."))) << text;
  }
}

TEST(ConstraintTest, ClusterEqualsOneProcessAndSatisfies) {
  const ModelUnderTest model = ChooseModel();
  constexpr int kRequests = 12;
  std::vector<Generation> got;
  {
    auto cluster = Cluster::Start({.model = model.path, .prefill = 1, .decode = 2, .flags = {"--kv-memory-mib=64"}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    for (int i = 0; i < kRequests; ++i) got.push_back((*cluster)->Generate(ConstrainedRequest(i), absl::Seconds(120)));
    const absl::Status quiet = (*cluster)->WaitQuiet(absl::Seconds(20));
    EXPECT_TRUE(quiet.ok()) << quiet;
  }
  OneProcess oracle(model.path);
  for (int i = 0; i < kRequests; ++i) {
    SCOPED_TRACE(i);
    const v1::GenerateRequest request = ConstrainedRequest(i);
    ASSERT_TRUE(got[i].status.ok()) << got[i].status.error_message();
    EXPECT_EQ(got[i].violation, "");
    const auto want = oracle.Run(request);
    ASSERT_TRUE(want.ok()) << want.status();
    ASSERT_EQ(got[i].choices.size(), want->size());
    for (size_t c = 0; c < want->size(); ++c) {
      EXPECT_EQ(got[i].choices[c].token_ids, (*want)[c].token_ids);
      if (request.sampling().has_logprobs()) {
        EXPECT_EQ(got[i].choices[c].logprobs, (*want)[c].logprobs);
      }
      ExpectSatisfied(request, got[i].choices[c]);
    }
  }
}

TEST(ConstraintTest, AMoveToAnotherDecodeWorkerDoesNotShow) {
  const ModelUnderTest model = ChooseModel();
  auto cluster = Cluster::Start({.model = model.path, .prefill = 1, .decode = 2, .flags = {"--kv-memory-mib=64"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  v1::GenerateRequest request = ConstrainedRequest(0);
  request.mutable_sampling()->set_n(2);
  request.mutable_sampling()->set_temperature(1);
  const Generation want = (*cluster)->Generate(request, absl::Seconds(120));
  ASSERT_TRUE(want.status.ok()) << want.status.error_message();
  for (const Generation::Choice& choice : want.choices) ExpectSatisfied(request, choice);
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    int tokens = 0;
    bool asked = false;
    std::vector<WorkerProcess*> killed;
    const Generation got = (*cluster)->Generate(request, absl::Seconds(120), [&](grpc::ClientContext*, const v1::GenerateResponse& event) {
      if (!event.has_token() || ++tokens < 8 + 6 * round || asked) return;
      asked = true;
      for (auto& worker : (*cluster)->workers()) {
        if (worker->role != "decode") continue;
        const auto status = (*cluster)->WorkerStatusOf(*worker);
        if (!status.ok() || status->load().running() == 0) continue;
        worker->process->Signal(SIGKILL);
        killed.push_back(worker.get());
      }
    });
    ASSERT_TRUE(got.status.ok()) << got.status.error_message();
    EXPECT_TRUE(asked);
    EXPECT_EQ(got.violation, "");
    ASSERT_EQ(got.choices.size(), want.choices.size());
    for (size_t c = 0; c < want.choices.size(); ++c) {
      EXPECT_EQ(got.choices[c].token_ids, want.choices[c].token_ids);
      EXPECT_EQ(got.choices[c].text, want.choices[c].text);
    }
    for (WorkerProcess* worker : killed) ASSERT_TRUE((*cluster)->Restart(*worker).ok());
    ASSERT_TRUE((*cluster)->WaitReady(absl::Seconds(30)).ok());
  }
  EXPECT_GT((*cluster)->Metric((*cluster)->router_http(), "baton_request_retries_total"), 0) << "the kills hit nothing";
}

TEST(ConstraintTest, EverySpellingOverHttp) {
  const ModelUnderTest model = ChooseModel();
  auto cluster = Cluster::Start({.model = model.path, .flags = {"--kv-memory-mib=64"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::string& http = (*cluster)->router_http();
  testing::RawHttp client(std::atoi(http.c_str() + http.rfind(':') + 1));
  const Json messages = {{{"role", "user"}, {"content", "Describe a person with a pet."}}};
  const Json schema = Json::parse(kPerson);
  const auto chat = [&](const Json& more) {
    Json body = {{"messages", messages}, {"max_tokens", 160}, {"seed", 5}};
    body.update(more);
    const testing::HttpReply reply = client.Ask("POST", "/v1/chat/completions", body.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    const Json answer = Json::parse(reply.body, nullptr, false);
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop") << reply.body;
    return answer["choices"][0]["message"]["content"].get<std::string>();
  };
  const std::string person = chat({{"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "p"}, {"strict", true}, {"schema", schema}}}}}});
  EXPECT_TRUE(IsPerson(Json::parse(person, nullptr, false))) << person;
  EXPECT_EQ(chat({{"guided_json", schema}}), person);
  EXPECT_EQ(chat({{"guided_json", schema.dump()}}), person);
  EXPECT_EQ(chat({{"structured_outputs", {{"json", schema}}}}), person);
  const std::string number = chat({{"guided_regex", "[1-9][0-9]{2}"}});
  EXPECT_EQ(number.size(), 3u);
  EXPECT_EQ(chat({{"structured_outputs", {{"regex", "[1-9][0-9]{2}"}}}}), number);
  const std::string word = chat({{"guided_choice", {"cat", "dog"}}});
  EXPECT_TRUE(word == "cat" || word == "dog") << word;
  EXPECT_EQ(chat({{"structured_outputs", {{"choice", {"cat", "dog"}}}}}), word);
  // Any object: a model may write for ever, so its beginning is enough.
  Json body = {{"messages", messages}, {"max_tokens", 40}, {"seed", 6}, {"response_format", {{"type", "json_object"}}}};
  const testing::HttpReply reply = client.Ask("POST", "/v1/chat/completions", body.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(Json::parse(reply.body)["choices"][0]["message"]["content"].get<std::string>()[0], '{') << reply.body;
}

}  // namespace
}  // namespace baton::e2e
