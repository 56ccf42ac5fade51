// Prompts and answers stay out of logs and metrics: planted words are looked for at the most talkative level. (Errors, and
// so the log, do quote a role or a model's name that is not known.)
#include "common/logging.h"
#include "tests/router/http/http_fixture.h"

namespace baton::router {
namespace {

using fakes::Script;
using ::testing::HasSubstr;
using ::testing::Not;

class PrivacyTest : public HttpFixture {};

TEST_F(PrivacyTest, NoWordOfAPromptOrAnAnswerIsLoggedOrCounted) {
  const std::string asked = "Zanzibar77", answered = "Mombasa88";
  ASSERT_TRUE(InitLogging("trace", "json", "test").ok());
  ::testing::internal::CaptureStderr();
  StartRouter();
  Script script;
  script.texts = {answered + " is the answer, and this is more of it"};
  AddWorker("p0", "prefill", script);
  fakes::ScriptedWorker* d0 = AddWorker("d0", "decode", script);
  const Json messages = {{{"role", "user"}, {"content", "Tell me of " + asked}}};
  // Good ones, through both doors.
  const Answer answer = Generate(Prompt(asked, 20));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_THAT(answer.text.at(0), HasSubstr(answered));
  EXPECT_EQ(Chat({{"messages", messages}, {"max_tokens", 20}, {"user", asked}, {"unheard_of", asked}}).status, 200);
  EXPECT_EQ(Complete({{"prompt", asked}, {"stop", {asked, " is"}}, {"max_tokens", 20}, {"stream", true}}).status, 200);
  EXPECT_EQ(Post("/tokenize", Json{{"prompt", asked}}.dump()).status, 200);
  // Ones that are refused, whose errors may quote.
  std::string words = asked;
  while (words.size() < 600) words += " " + asked;
  EXPECT_EQ(Complete({{"prompt", words}}).status, 400);
  EXPECT_EQ(Complete({{"stop", words}}).status, 400);
  EXPECT_EQ(Chat({{"messages", {{{"role", "poet"}, {"content", asked}}}}}).status, 400);
  EXPECT_EQ(Chat({{"messages", {{{"role", "user"}, {"content", {{{"type", asked}, {"text", asked}}}}}}}}).status, 400);
  EXPECT_EQ(Chat({{"messages", messages}, {"tool_choice", asked}}).status, 400);
  EXPECT_EQ(Complete({{"model", "gpt-17"}, {"prompt", asked}}).status, 404);
  EXPECT_EQ(Post("/v1/completions", "{\"prompt\":\"" + asked + "\",}").status, 400);
  EXPECT_EQ(Post("/v1/completions", "{\"prompt\":\"" + asked + "\xff\"}").status, 400);
  EXPECT_FALSE(Generate(Prompt(asked + "\xff")).status.ok());
  // And ones whose workers fail.
  script.decode_error = absl::InternalError("it broke");
  d0->set_script(script);
  EXPECT_EQ(Chat({{"messages", messages}, {"max_tokens", 20}}).status, 500);
  const std::string metrics = Get("/metrics").body;
  router_.reset();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(InitLogging("info", "text", "test").ok());
  EXPECT_THAT(log, HasSubstr("request ended"));
  EXPECT_THAT(log, HasSubstr("it broke"));
  for (const std::string& word : {asked, answered}) {
    EXPECT_THAT(log, Not(HasSubstr(word)));
    EXPECT_THAT(metrics, Not(HasSubstr(word)));
  }
}

}  // namespace
}  // namespace baton::router
