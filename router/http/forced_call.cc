#include "router/http/forced_call.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace baton::router::http {
namespace {

// What holds values rather than schemas: a "$ref" in there is a word.
bool HoldsValues(const std::string& keyword) {
  return keyword == "const" || keyword == "enum" || keyword == "default" || keyword == "examples";
}

// A schema that becomes part of another one, at the JSON pointer `place` there: its references to itself, too.
void MoveReferences(Json* schema, const std::string& place) {
  if (schema->is_array()) {
    for (Json& one : *schema) MoveReferences(&one, place);
  }
  if (!schema->is_object()) return;
  for (auto it = schema->begin(); it != schema->end(); ++it) {
    if (HoldsValues(it.key())) continue;
    if (it.key() == "$ref" && it->is_string() && it->get_ref<const std::string&>().substr(0, 1) == "#") {
      *it = absl::StrCat("#", place, it->get_ref<const std::string&>().substr(1));
    } else {
      MoveReferences(&*it, place);
    }
  }
}

}  // namespace

absl::Status ForceCall(ToolFormat format, OpenAiRequest* request) {
  if (format == ToolFormat::kNone) {
    return InvalidField("tool_choice",
                        "asks for a call, and the model's chat template knows no form of calls; use auto or none, or set "
                        "--tool-format");
  }
  const std::string arguments = format == ToolFormat::kHermes ? "arguments" : "parameters";
  const Json tools = Json::parse(request->prompts[0].chat().tools());
  Json calls = Json::array();
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    const std::string& name = function["name"].get_ref<const std::string&>();
    if (request->callable.count(name) == 0) continue;
    Json schema = Json{{"type", "object"}};
    if (const auto given = function.find("parameters"); given != function.end() && !given->is_null()) schema = *given;
    MoveReferences(&schema, absl::StrCat("/anyOf/", calls.size(), "/properties/", arguments));
    calls.push_back({{"type", "object"},
                     {"properties", {{"name", {{"const", name}}}, {arguments, std::move(schema)}}},
                     {"required", {"name", arguments}},
                     {"additionalProperties", false}});
  }
  v1::Constraint constraint;
  constraint.mutable_enclosed()->set_json_schema(Json{{"anyOf", std::move(calls)}}.dump());
  if (format == ToolFormat::kHermes) {
    constraint.mutable_enclosed()->set_before("<tool_call>\n");
    constraint.mutable_enclosed()->set_after("\n</tool_call>");
  }
  for (v1::GenerateRequest& prompt : request->prompts) *prompt.mutable_sampling()->mutable_constraint() = constraint;
  request->constraint_field = "tools";
  return absl::OkStatus();
}

}  // namespace baton::router::http
