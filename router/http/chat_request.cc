// The body of /v1/chat/completions.
#include "absl/strings/str_cat.h"
#include "common/validate_request.h"
#include "router/http/openai_request.h"

namespace baton::router::http {
namespace {

// A string, or a list of text parts, which are joined.
std::string ReadContent(JsonFields* fields) {
  const Json* content = fields->Find("content");
  if (content == nullptr) return "";
  if (content->is_string()) return content->get<std::string>();
  std::string text;
  if (!content->is_array()) fields->Fail("content", "must be a string or a list of parts");
  for (size_t i = 0; content->is_array() && i < content->size(); ++i) {
    const Json& part = (*content)[i];
    const std::string name = absl::StrCat("content[", i, "]");
    if (!part.is_object()) {
      fields->Fail(name, "must be an object such as {\"type\": \"text\", \"text\": ...}");
      break;
    }
    const auto type = part.find("type");
    const auto words = part.find(type != part.end() && *type == "refusal" ? "refusal" : "text");
    if (type == part.end() || (*type != "text" && *type != "refusal") || words == part.end() || !words->is_string()) {
      fields->Fail(name, "must be of type text; images, audio and files are not supported");
      break;
    }
    text += words->get_ref<const std::string&>();
  }
  return text;
}

void ReadToolCalls(JsonFields* fields, const std::string& path, v1::ChatMessage* message) {
  const Json* calls = fields->Array("tool_calls");
  for (size_t i = 0; calls != nullptr && i < calls->size() && i <= kMaxToolCalls; ++i) {
    const std::string at = absl::StrCat("tool_calls[", i, "]");
    if (!(*calls)[i].is_object()) return fields->Fail(at, "must be an object");
    JsonFields call((*calls)[i], absl::StrCat(path, at, "."));
    v1::ToolCall* out = message->add_tool_calls();
    out->set_id(call.String("id").value_or(""));
    if (call.String("type").value_or("function") != "function") call.Fail("type", "must be function");
    if (const Json* function = call.Object("function"); function != nullptr) {
      JsonFields inner(*function, absl::StrCat(path, at, ".function."));
      out->set_name(inner.String("name").value_or(""));
      out->set_arguments(inner.String("arguments").value_or("{}"));
      call.Fail(inner.status());
    } else {
      call.Fail("function", "is missing");
    }
    fields->Fail(call.status());
  }
}

void ReadMessage(const Json& json, const std::string& path, v1::ChatMessage* message, absl::Status* status) {
  JsonFields fields(json, path);
  std::string role = fields.String("role").value_or("");
  if (role == "developer") role = "system";
  message->set_role(role);
  message->set_content(ReadContent(&fields));
  ReadToolCalls(&fields, path, message);
  message->set_tool_call_id(fields.String("tool_call_id").value_or(""));
  message->set_name(fields.String("name").value_or(""));
  *status = fields.status();
}

// Only what models are known to ask for: these reach a template, which is not written for strangers' variables.
bool IsKnownTemplateArgument(const std::string& name) {
  for (const char* known : {"enable_thinking", "thinking", "date_string", "reasoning_effort", "builtin_tools",
                            "tools_in_user_message", "custom_tools", "documents"}) {
    if (name == known) return true;
  }
  return false;
}

// tool_choice and what goes with it; request->tools has the names of all tools.
void ReadToolChoice(JsonFields* fields, OpenAiRequest* request, v1::Chat* chat) {
  const Json* choice = fields->Find("tool_choice");
  const bool parallel = fields->Bool("parallel_tool_calls").value_or(true);
  request->one_tool_call = !parallel;
  if (choice == nullptr) return;
  if (choice->is_object()) {
    JsonFields named(*choice, "tool_choice.");
    if (named.String("type").value_or("") != "function") named.Fail("type", "must be function");
    const Json* function = named.Object("function");
    const auto name = function == nullptr ? Json::const_iterator() : function->find("name");
    if (function == nullptr || name == function->end() || !name->is_string() ||
        request->tools.count(name->get_ref<const std::string&>()) == 0) {
      named.Fail("function.name", "must be the name of one of tools");
    } else {
      request->callable = {name->get<std::string>()};
    }
    return fields->Fail(named.status());
  }
  const std::string chosen = choice->is_string() ? choice->get<std::string>() : "";
  if (chosen == "required") {
    if (request->tools.empty()) return fields->Fail("tool_choice", "is required, and there are no tools");
    request->callable = request->tools;
  } else if (chosen == "none") {
    chat->clear_tools();
    request->tools.clear();
  } else if (chosen != "auto") {
    fields->Fail("tool_choice", "must be none, auto, required or {\"type\": \"function\", \"function\": {\"name\": ...}}");
  }
}

// Their names; checks the parts that the server itself needs.
std::set<std::string> ToolNames(JsonFields* fields, const Json& tools) {
  std::set<std::string> names;
  if (tools.size() > kMaxTools) fields->Fail("tools", absl::StrCat(tools.size(), " tools; at most ", kMaxTools));
  for (size_t i = 0; i < tools.size() && fields->ok(); ++i) {
    const std::string at = absl::StrCat("tools[", i, "]");
    if (!tools[i].is_object()) {
      fields->Fail(at, "must be an object");
      break;
    }
    JsonFields tool(tools[i], at + ".");
    if (tool.String("type").value_or("") != "function") tool.Fail("type", "must be function");
    const Json* function = tool.Object("function");
    const auto name = function == nullptr ? Json::const_iterator() : function->find("name");
    if (function == nullptr || name == function->end() || !name->is_string() ||
        name->get_ref<const std::string&>().empty()) {
      tool.Fail("function.name", "must be a string that is not empty");
    } else {
      names.insert(name->get<std::string>());
    }
    fields->Fail(tool.status());
  }
  return names;
}

}  // namespace

void ReadChat(JsonFields* fields, v1::Chat* chat) {
  const Json* messages = fields->Array("messages");
  if (messages == nullptr) return fields->Fail("messages", "is missing; send a list of messages");
  for (size_t i = 0; i < messages->size() && i <= kMaxMessages; ++i) {
    const std::string at = absl::StrCat("messages[", i, "]");
    if (!(*messages)[i].is_object()) return fields->Fail(at, "must be an object with role and content");
    absl::Status status;
    ReadMessage((*messages)[i], at + ".", chat->add_messages(), &status);
    if (!status.ok()) return fields->Fail(status);
  }
  if (const Json* tools = fields->Array("tools"); tools != nullptr && !tools->empty()) chat->set_tools(tools->dump());
  chat->set_omit_generation_prompt(!fields->Bool("add_generation_prompt").value_or(true));
  const Json* arguments = fields->Object("chat_template_kwargs");
  if (arguments == nullptr) return;
  for (auto it = arguments->begin(); it != arguments->end(); ++it) {
    if (!IsKnownTemplateArgument(it.key())) {
      return fields->Fail("chat_template_kwargs",
                          "has a variable that is not on the list of those allowed (docs/API.md)");
    }
  }
  chat->set_template_arguments(arguments->dump());
}

absl::StatusOr<OpenAiRequest> ParseChatRequest(const Json& body) {
  OpenAiRequest request;
  request.chat = true;
  v1::GenerateRequest common;
  JsonFields fields(body);
  ReadCommon(&fields, &request, &common);
  v1::SamplingParams* sampling = common.mutable_sampling();
  if (const auto tokens = fields.Int32("max_completion_tokens")) sampling->set_max_tokens(*tokens);
  request.logprobs = fields.Bool("logprobs").value_or(false);
  const std::optional<int32_t> top = fields.Int32("top_logprobs");
  if (request.logprobs) sampling->set_logprobs(top.value_or(0));
  if (top.has_value() && (*top < 0 || *top > kMaxLogprobs)) {
    fields.Fail("top_logprobs", absl::StrCat(*top, " is not in [0, ", kMaxLogprobs, "]"));
  }
  if (top.has_value() && *top != 0 && !request.logprobs) fields.Fail("top_logprobs", "needs logprobs: true");
  if (fields.Bool("echo").value_or(false)) fields.Fail("echo", "is not supported for chats; leave it out");
  if (const Json* modalities = fields.Array("modalities"); modalities != nullptr) {
    for (const Json& one : *modalities) {
      if (one != "text") fields.Fail("modalities", "only text is supported");
    }
  }
  for (const char* name : {"reasoning_effort", "verbosity", "prediction", "web_search_options"}) fields.Find(name);
  v1::Chat* chat = common.mutable_chat();
  ReadChat(&fields, chat);
  if (!chat->tools().empty()) request.tools = ToolNames(&fields, *fields.Array("tools"));
  if (fields.ok()) ReadToolChoice(&fields, &request, chat);
  if (!request.tools.empty() && sampling->has_constraint()) {
    fields.Fail("tools", absl::StrCat("cannot be called by an answer that ", request.constraint_field,
                                      " constrains; send one of the two, or tool_choice none"));
  }
  if (!fields.ok()) return fields.status();
  request.prompts.push_back(std::move(common));
  request.ignored = fields.Unread();
  return request;
}

}  // namespace baton::router::http
