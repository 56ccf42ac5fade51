#include "router/http/openapi.h"

#include "common/validate_request.h"
#include "common/version.h"
#include "router/http/json_fields.h"
#include "router/http/openai_request.h"

namespace baton::router::http {
namespace {

Json Ref(const char* name) { return {{"$ref", std::string("#/components/schemas/") + name}}; }

Json Number(double min, double max) { return {{"type", {"number", "null"}}, {"minimum", min}, {"maximum", max}}; }
Json Above(double min, double max) {
  return {{"type", {"number", "null"}}, {"exclusiveMinimum", min}, {"maximum", max}};
}
Json Integer(int64_t min, int64_t max) { return {{"type", {"integer", "null"}}, {"minimum", min}, {"maximum", max}}; }
Json Boolean() { return {{"type", {"boolean", "null"}}}; }
Json String() { return {{"type", {"string", "null"}}}; }
Json ListOf(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }
Json AnyOf(std::vector<Json> options) { return {{"anyOf", options}}; }

Json TokenId() { return {{"type", "integer"}, {"minimum", 0}, {"maximum", INT32_MAX}}; }

Json JsonObject() { return {{"type", {"object", "null"}}}; }
Json Choices() {
  return {{"type", {"array", "null"}}, {"items", {{"type", "string"}, {"minLength", 1}}}, {"minItems", 1}};
}

Json CommonFields() {
  const Json stop = {{"type", "string"}, {"minLength", 1}, {"maxLength", kMaxStopBytes}};
  Json stops = ListOf(stop);
  stops["maxItems"] = kMaxStops;
  return {{"model", String()},
          {"stream", Boolean()},
          {"stream_options",
           {{"type", {"object", "null"}},
            {"description", "only with stream: true"},
            {"properties", {{"include_usage", Boolean()}, {"continuous_usage_stats", Boolean()}}}}},
          {"temperature", Number(0, 100)},
          {"top_p", Above(0, 1)},
          {"top_k", Integer(-1, INT32_MAX)},
          {"min_p", Number(0, 1)},
          {"repetition_penalty", Above(0, 100)},
          {"presence_penalty", Number(-2, 2)},
          {"frequency_penalty", Number(-2, 2)},
          {"seed", Integer(INT64_MIN, INT64_MAX)},
          {"max_tokens", Integer(1, INT32_MAX)},
          {"min_tokens", Integer(0, INT32_MAX)},
          {"n", Integer(1, kMaxChoices)},
          {"priority", Integer(INT64_MIN, INT64_MAX)},
          {"stop", AnyOf({stop, stops, {{"type", "null"}}})},
          {"stop_token_ids", ListOf(TokenId())},
          {"ignore_eos", Boolean()},
          {"include_stop_str_in_output", Boolean()},
          {"logit_bias", {{"type", {"object", "null"}}, {"additionalProperties", Number(-100, 100)}}},
          {"return_token_ids", Boolean()},
          {"response_format",
           {{"type", {"object", "null"}},
            {"properties",
             {{"type", {{"enum", {"text", "json_object", "json_schema"}}}}, {"json_schema", JsonObject()}}},
            {"required", {"type"}}}},
          {"guided_json", {{"type", {"object", "string", "boolean", "null"}}}},
          {"guided_regex", String()},
          {"guided_choice", Choices()},
          {"guided_grammar", String()},
          {"structured_outputs",
           {{"type", {"object", "null"}},
            {"properties", {{"json", {{"type", {"object", "string", "boolean", "null"}}}},
                            {"regex", String()},
                            {"choice", Choices()},
                            {"grammar", String()},
                            {"json_object", Boolean()}}}}}};
}

Json PoolSize() { return {{"type", "integer"}, {"minimum", 1}, {"maximum", 64}}; }

Json ObjectOf(Json properties, std::vector<std::string> required) {
  Json object = {{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) object["required"] = std::move(required);
  return object;
}

Json Schemas() {
  Json completion = CommonFields();
  completion["prompt"] =
      AnyOf({{{"type", "string"}}, ListOf({{"type", "string"}}), ListOf(TokenId()), ListOf(ListOf(TokenId()))});
  completion["logprobs"] = Integer(0, kMaxLogprobs);
  completion["echo"] = Boolean();
  Json chat = CommonFields();
  const Json part = ObjectOf({{"type", {{"const", "text"}}}, {"text", {{"type", "string"}}}}, {"type", "text"});
  const Json message = ObjectOf({{"role", {{"enum", {"system", "developer", "user", "assistant", "tool"}}}},
                                 {"content", AnyOf({String(), ListOf(part)})},
                                 {"name", String()},
                                 {"tool_call_id", String()},
                                 {"tool_calls", {{"type", {"array", "null"}}}}},
                                {"role"});
  chat["messages"] = ListOf(message);
  chat["messages"]["minItems"] = 1;
  chat["messages"]["maxItems"] = kMaxMessages;
  chat["max_completion_tokens"] = Integer(1, INT32_MAX);
  chat["logprobs"] = Boolean();
  chat["top_logprobs"] = Integer(0, kMaxLogprobs);
  chat["tools"] = {{"type", {"array", "null"}}, {"maxItems", kMaxTools}};
  const Json named = ObjectOf({{"type", {{"const", "function"}}}, {"function", ObjectOf({{"name", {{"type", "string"}}}}, {"name"})}},
                              {"type", "function"});
  chat["tool_choice"] = AnyOf({{{"enum", {"none", "auto", "required", nullptr}}}, named});
  chat["parallel_tool_calls"] = Boolean();
  const Json error = ObjectOf({{"message", {{"type", "string"}}},
                               {"type", {{"type", "string"}}},
                               {"param", String()},
                               {"code", {{"type", {"string", "integer", "null"}}}},
                               {"status", {{"type", "string"}}}},
                              {"message", "type", "param", "code"});
  return {{"Error", ObjectOf({{"error", error}}, {"error"})},
          {"CompletionRequest", ObjectOf(completion, {"prompt"})},
          {"ChatCompletionRequest", ObjectOf(chat, {"messages"})},
          {"TokenizeRequest", ObjectOf({{"model", String()},
                                        {"prompt", String()},
                                        {"messages", ListOf(message)},
                                        {"add_special_tokens", Boolean()},
                                        {"return_token_strs", Boolean()}},
                                       {})},
          {"DetokenizeRequest", ObjectOf({{"model", String()}, {"tokens", ListOf(TokenId())}}, {"tokens"})},
          {"DrainRequest", ObjectOf({{"worker", {{"type", "string"}}}}, {"worker"})},
          {"ChangeRoleRequest",
           ObjectOf({{"worker", {{"type", "string"}}}, {"role", {{"enum", {"prefill", "decode"}}}}}, {"worker", "role"})},
          {"ScaleRequest",
           {{"type", "object"},
            {"properties", {{"prefill", PoolSize()}, {"decode", PoolSize()}}},
            {"additionalProperties", false},
            {"minProperties", 1}}}};
}

Json Content(const char* type, Json schema) { return {{type, {{"schema", std::move(schema)}}}}; }

Json Responses(Json ok) {
  const Json error = {{"description", "an error"}, {"content", Content("application/json", Ref("Error"))}};
  Json responses = {{"200", {{"description", "success"}, {"content", std::move(ok)}}}};
  for (const char* code : {"400", "401", "403", "404", "405", "408", "413", "415", "429", "431", "500", "503", "504"}) {
    responses[code] = error;
  }
  return responses;
}

Json Post(const char* summary, const char* schema, bool streams) {
  Json ok = Content("application/json", {{"type", "object"}});
  if (streams) ok["text/event-stream"] = {{"schema", {{"type", "string"}}}};
  return {{"post",
           {{"summary", summary},
            {"requestBody", {{"required", true}, {"content", Content("application/json", Ref(schema))}}},
            {"responses", Responses(std::move(ok))}}}};
}

Json PathParameter(const char* name) {
  const Json schema = {{"type", "string"}, {"minLength", 1}};
  return Json::array({{{"name", name}, {"in", "path"}, {"required", true}, {"schema", schema}}});
}

// Buttons of the console, with --console admin: they want the headers that only a page of the same origin sends.
Json Button(const char* summary, const char* schema) {
  Json path = Post(summary, schema, false);
  path["post"]["parameters"] = Json::array(
      {{{"name", "X-Baton-Console"}, {"in", "header"}, {"required", true}, {"schema", {{"const", "1"}}}},
       {{"name", "Origin"}, {"in", "header"}, {"required", true}, {"schema", {{"type", "string"}}}}});
  return path;
}

Json Get(const char* summary, const char* type = "application/json") {
  const Json ok = Content(type, {{"type", type == std::string("application/json") ? "object" : "string"}});
  return {{"get", {{"summary", summary}, {"responses", Responses(ok)}}}};
}

}  // namespace

std::string OpenApiDocument() {
  Json one_model = Get("One model");
  one_model["get"]["parameters"] = PathParameter("model");
  Json one_request = Get("One of them: its journey, in milliseconds, and its placement");
  one_request["get"]["parameters"] = PathParameter("id");
  const Json document = {
      {"openapi", "3.1.0"},
      {"info",
       {{"title", "Baton"}, {"version", kVersion}, {"description", "OpenAI's API and what its clients look for"}}},
      {"paths",
       {{"/v1/models", Get("The models served")},
        {"/v1/models/{model}", one_model},
        {"/v1/chat/completions", Post("Answer a chat", "ChatCompletionRequest", true)},
        {"/v1/completions", Post("Continue a text", "CompletionRequest", true)},
        {"/tokenize", Post("Token ids of a text or a chat", "TokenizeRequest", false)},
        {"/detokenize", Post("Text of token ids", "DetokenizeRequest", false)},
        {"/health", Get("200 when requests can be served")},
        {"/health/live", Get("200 while the process runs")},
        {"/health/ready", Get("as /health")},
        {"/ping", Get("200 while the process runs")},
        {"/version", Get("The server's version")},
        {"/metrics", Get("Prometheus metrics", "text/plain")},
        // Not with --console off.
        {"/baton/cluster", Get("State of the cluster, baton.v1.ClusterStatus as JSON")},
        {"/baton/requests", Get("The latest requests that ended")},
        {"/baton/requests/{id}", one_request},
        {"/baton/load", Get("Each of the last 600 seconds")},
        {"/baton/drain", Button("Drain a worker", "DrainRequest")},
        {"/baton/role", Button("Give a worker the other role", "ChangeRoleRequest")},
        {"/baton/scale", Button("Another number of workers, of a cluster that baton up runs", "ScaleRequest")}}},
      {"components", {{"schemas", Schemas()}}}};
  return document.dump(1) + "\n";
}

}  // namespace baton::router::http
