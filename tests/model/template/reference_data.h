// What tests/reference/template_reference.py wrote: conversations, and what jinja2 made of each with each template.
#ifndef BATON_TESTS_MODEL_TEMPLATE_REFERENCE_DATA_H_
#define BATON_TESTS_MODEL_TEMPLATE_REFERENCE_DATA_H_

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "model/template/chat_template.h"
#include "nlohmann/json.hpp"

namespace baton::model {

inline std::string ReadTestData(const std::string& name) {
  std::ifstream file("tests/model/template/testdata/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

inline nlohmann::ordered_json ReadJson(const std::string& name) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(ReadTestData(name), nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(json.is_discarded()) << name;
  return json;
}

inline ChatTemplateInput InputOf(const nlohmann::ordered_json& conversation) {
  ChatTemplateInput input;
  input.messages = conversation["messages"];
  input.tools = conversation.value("tools", nlohmann::ordered_json());
  input.add_generation_prompt = conversation["add_generation_prompt"].get<bool>();
  input.bos_token = conversation.value("bos_token", "");
  input.eos_token = conversation.value("eos_token", "<|end|>");
  input.extra = conversation.value("extra", nlohmann::ordered_json());
  input.now = absl::FromCivil(absl::CivilSecond(2026, 11, 29, 8, 5, 9), absl::UTCTimeZone());
  return input;
}

// `goldens`: one text for each conversation, or null where jinja2 raises.
inline void ExpectGoldens(const std::string& name, const std::string& source, const nlohmann::ordered_json& goldens) {
  const nlohmann::ordered_json conversations = ReadJson("conversations.json");
  ASSERT_EQ(conversations.size(), 10u);
  ASSERT_EQ(goldens.size(), conversations.size()) << name;
  absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse(source);
  ASSERT_TRUE(chat_template.ok()) << name << ": " << chat_template.status();
  for (size_t i = 0; i < conversations.size(); ++i) {
    const std::string what = absl::StrCat(name, " with conversation ", i);
    absl::StatusOr<std::string> text = chat_template->Render(InputOf(conversations[i]));
    if (goldens[i].is_null()) {
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << what << ": " << text.status();
      continue;
    }
    ASSERT_TRUE(text.ok()) << what << ": " << text.status();
    EXPECT_EQ(*text, goldens[i].get<std::string>()) << what;
  }
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_TEMPLATE_REFERENCE_DATA_H_
