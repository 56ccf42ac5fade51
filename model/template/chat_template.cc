#include "model/template/chat_template.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/template/ast.h"
#include "model/template/interpreter.h"
#include "model/template/lexer.h"
#include "model/template/parser.h"
#include "model/template/python_text.h"
#include "model/template/status_macros.h"

namespace baton::model {
namespace {

using jinja::Budget;
using jinja::Int;
using jinja::Value;
using Json = nlohmann::ordered_json;

absl::StatusOr<Value> FromJson(Budget& budget, const Json& json, int depth) {
  if (depth > budget.max_depth()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the messages or tools are nested deeper than ", budget.max_depth()));
  }
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
      return Value(static_cast<Int>(json.get<int64_t>()));
    case Json::value_t::number_unsigned:
      return Value(static_cast<Int>(json.get<uint64_t>()));
    case Json::value_t::number_float:
      return Value(json.get<double>());
    case Json::value_t::string: {
      const std::string& text = json.get_ref<const std::string&>();
      if (const std::optional<size_t> bad = jinja::FirstInvalidByte(text)) {
        return absl::InvalidArgumentError(
            absl::StrCat("a text of the messages is not valid UTF-8: bad byte at offset ", *bad));
      }
      JINJA_RETURN_IF_ERROR(budget.Alloc(text.size()));
      return Value(text);
    }
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& element : json) {
        JINJA_ASSIGN_OR_RETURN(Value item, FromJson(budget, element, depth + 1));
        items.push_back(std::move(item));
      }
      return jinja::MakeList(budget, std::move(items));
    }
    case Json::value_t::object: {
      std::vector<std::pair<Value, Value>> items;
      for (auto it = json.begin(); it != json.end(); ++it) {
        JINJA_ASSIGN_OR_RETURN(Value key, FromJson(budget, Json(it.key()), depth + 1));
        JINJA_ASSIGN_OR_RETURN(Value value, FromJson(budget, it.value(), depth + 1));
        items.emplace_back(std::move(key), std::move(value));
      }
      return jinja::MakeDict(budget, std::move(items));
    }
    default:
      return Value(jinja::None{});
  }
}

absl::Status WithLine(const absl::Status& status, int line) {
  if (status.ok() || absl::StartsWith(status.message(), "chat template, line")) return status;
  return absl::Status(status.code(), absl::StrCat("chat template, line ", line, ": ", status.message()));
}

absl::Status SetVariables(const ChatTemplateInput& input, Budget& budget, jinja::Interpreter* interpreter) {
  const auto set = [&](const std::string& name, const Json& json) -> absl::Status {
    JINJA_ASSIGN_OR_RETURN(Value value, FromJson(budget, json, 0));
    interpreter->SetVariable(name, std::move(value));
    return absl::OkStatus();
  };
  if (!input.extra.is_null() && !input.extra.is_object()) {
    return absl::InvalidArgumentError("the further variables of a chat template must be a JSON object");
  }
  if (!input.messages.is_array()) return absl::InvalidArgumentError("messages must be a JSON array");
  if (input.extra.is_object()) {
    for (auto it = input.extra.begin(); it != input.extra.end(); ++it) JINJA_RETURN_IF_ERROR(set(it.key(), it.value()));
  }
  JINJA_RETURN_IF_ERROR(set("messages", input.messages));
  JINJA_RETURN_IF_ERROR(set("tools", input.tools));
  JINJA_RETURN_IF_ERROR(set("add_generation_prompt", input.add_generation_prompt));
  JINJA_RETURN_IF_ERROR(set("bos_token", input.bos_token));
  return set("eos_token", input.eos_token);
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<const jinja::Template> tree, const ChatTemplateLimits& limits)
    : tree_(std::move(tree)), limits_(limits) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(absl::string_view source, const ChatTemplateLimits& limits) {
  if (source.size() > limits.max_template_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the chat template has ", source.size(), " bytes; at most ",
                                                   limits.max_template_bytes, " are allowed"));
  }
  if (const std::optional<size_t> bad = jinja::FirstInvalidByte(source)) {
    return absl::InvalidArgumentError(absl::StrCat("the chat template is not valid UTF-8: bad byte at offset ", *bad));
  }
  JINJA_ASSIGN_OR_RETURN(std::vector<jinja::Token> tokens, jinja::Tokenize(source));
  JINJA_ASSIGN_OR_RETURN(std::unique_ptr<const jinja::Template> tree,
                         jinja::ParseTemplate(std::move(tokens), limits.max_depth));
  return ChatTemplate(std::move(tree), limits);
}

absl::StatusOr<std::string> ChatTemplate::Render(const ChatTemplateInput& input) const {
  jinja::Interpreter interpreter(*tree_, limits_, input.now);
  // Inputs have a budget of their own: long messages must not leave less for the template.
  Budget input_budget(limits_.max_steps * 100, limits_.max_alloc_bytes, limits_.max_alloc_bytes, limits_.max_depth);
  JINJA_RETURN_IF_ERROR(SetVariables(input, input_budget, &interpreter));
  absl::StatusOr<std::string> text = interpreter.Run();
  if (!text.ok()) return WithLine(text.status(), interpreter.line());
  return text;
}

}  // namespace baton::model
