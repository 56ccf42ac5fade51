#include "router/tools_as_text.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// A message's own text; parts of a list are put together by the door.
std::string ContentOf(const Json& message) {
  const auto content = message.find("content");
  return content != message.end() && content->is_string() ? content->get<std::string>() : std::string();
}

std::string ListOf(const Json& tools) {
  std::string text =
      "You can call these functions. Each line describes one, with a JSON Schema of its arguments:\n<tools>\n";
  for (const Json& tool : tools) {
    const auto function = tool.find("function");
    absl::StrAppend(&text, Dump(function == tool.end() ? tool : *function), "\n");
  }
  absl::StrAppend(&text,
                  "</tools>\nTo call one, answer with JSON of its name and arguments within tags:\n<tool_call>\n"
                  "{\"name\": \"...\", \"arguments\": {...}}\n</tool_call>");
  return text;
}

Json AsText(const Json& message) {
  const std::string role = message.value("role", "");
  std::string content = ContentOf(message);
  if (role == "tool") {
    return {{"role", "user"}, {"content", absl::StrCat("<tool_response>\n", content, "\n</tool_response>")}};
  }
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return message;
  for (const Json& call : *calls) {
    const Json& function = call.at("function");
    absl::StrAppend(&content, content.empty() ? "" : "\n", "<tool_call>\n",
                    Dump({{"name", function.at("name")}, {"arguments", function.at("arguments")}}), "\n</tool_call>");
  }
  return {{"role", role}, {"content", std::move(content)}};
}

}  // namespace

void TellOfTools(const Json& tools, Json* messages) {
  Json told = Json::array();
  std::string system = ListOf(tools);
  size_t first = 0;
  if (!messages->empty() && (*messages)[0].value("role", "") == "system") {
    system = absl::StrCat(ContentOf((*messages)[0]), "\n\n", system);
    first = 1;
  }
  told.push_back(Json{{"role", "system"}, {"content", std::move(system)}});
  bool after_tool = false;
  for (size_t i = first; i < messages->size(); ++i) {
    const bool of_tool = (*messages)[i].value("role", "") == "tool";
    Json message = AsText((*messages)[i]);
    // Answers of one turn are one message: some templates want roles in turn.
    if (of_tool && after_tool) {
      told.back()["content"] = absl::StrCat(ContentOf(told.back()), "\n", ContentOf(message));
    } else {
      told.push_back(std::move(message));
    }
    after_tool = of_tool;
  }
  *messages = std::move(told);
}

}  // namespace baton::router
