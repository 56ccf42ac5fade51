#include "router/http/openai_door.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bounded_json.h"
#include "common/ids.h"
#include "common/logging.h"
#include "common/status.h"
#include "common/version.h"
#include "router/http/answer_json.h"
#include "router/http/generation.h"
#include "router/http/forced_call.h"
#include "router/http/http_errors.h"
#include "router/http/openapi.h"

namespace baton::router::http {
namespace {

constexpr size_t kMaxWarned = 100;
constexpr size_t kMaxIdInKey = 96;

ToolFormat ChooseToolFormat(const std::string& setting, const ModelText& text) {
  if (setting == "hermes") return ToolFormat::kHermes;
  if (setting == "llama3") return ToolFormat::kLlama3;
  return setting == "none" ? ToolFormat::kNone : ToolFormatOf(text.chat_template_source());
}

bool IsNameChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
}

// The client's x-request-id if it is one we would write to logs and headers, else empty.
std::string ClientRequestId(const rpc::HttpRequest& request) {
  const absl::string_view id = request.header("x-request-id");
  if (id.empty() || id.size() > kMaxRequestIdBytes || !std::all_of(id.begin(), id.end(), IsNameChar)) return "";
  return std::string(id);
}

// A web page of any origin may have a browser send other types without asking first.
absl::StatusOr<Json> ParseBody(const rpc::HttpRequest& request) {
  absl::StatusOr<Json> body = ParseBoundedJson(request.body);
  if (!body.ok()) return absl::InvalidArgumentError(absl::StrCat("the body: ", body.status().message()));
  if (!body->is_object()) return absl::InvalidArgumentError("the body must be a JSON object");
  return body;
}

bool IsJson(const rpc::HttpRequest& request) {
  const std::string type = absl::AsciiStrToLower(request.header("content-type"));
  return absl::StartsWith(type, "application/json");
}

rpc::HttpResponse NotJson() {
  return rpc::HttpError(415, "INVALID_ARGUMENT",
                        "the body must be JSON, and said to be: send Content-Type: application/json");
}

rpc::HttpResponse JsonResponse(const Json& json) {
  rpc::HttpResponse response;
  response.body = Dump(json);
  return response;
}

}  // namespace

OpenAiDoor::OpenAiDoor(const OpenAiDoorOptions& options, Intake* intake, Metrics* metrics)
    : intake_(intake),
      metrics_(metrics),
      tool_format_(ChooseToolFormat(options.tool_format, intake->text())),
      client_retries_(
          metrics->Counter("baton_http_client_retries_total", "Requests that a client said it sends again")) {}

void OpenAiDoor::AddHandlers(rpc::HttpServer* server) {
  const auto generate = [&](const std::string& path, Parse parse) {
    server->HandleAsync("POST", path,
                        [this, path, parse](rpc::HttpRequest request, std::shared_ptr<rpc::HttpExchange> exchange) {
                          Generate(path, parse, request, std::move(exchange));
                        });
  };
  generate("/v1/chat/completions", &ParseChatRequest);
  generate("/v1/completions", &ParseCompletionRequest);
  const auto post = [&](const std::string& path, Answer answer) {
    server->Handle("POST", path,
                   [this, path, answer](const rpc::HttpRequest& request) { return Post(path, answer, request); });
  };
  post("/tokenize", &OpenAiDoor::Tokenize);
  post("/detokenize", &OpenAiDoor::Detokenize);
  server->Handle("GET", "/v1/models", [this](const rpc::HttpRequest& request) { return Models(request); });
  server->Handle("GET", "/v1/models/*", [this](const rpc::HttpRequest& request) { return OneModel(request); });
  server->Handle("GET", "/version", [](const rpc::HttpRequest&) { return JsonResponse({{"version", kVersion}}); });
  server->Handle("GET", "/ping", [](const rpc::HttpRequest&) { return JsonResponse(Json::object()); });
  server->Handle("GET", "/openapi.json", [document = OpenApiDocument()](const rpc::HttpRequest&) {
    rpc::HttpResponse response;
    response.body = document;
    return response;
  });
}

void OpenAiDoor::Count(const std::string& path, int http_code) {
  metrics_
      ->Counter("baton_http_requests_total", "HTTP requests answered, by path and status",
                {{"path", path}, {"code", absl::StrCat(http_code)}})
      .Increment();
}

void OpenAiDoor::CountClientRetry(const rpc::HttpRequest& request) {
  const absl::string_view count = request.header("x-stainless-retry-count");
  if (!count.empty() && count != "0") client_retries_.Increment();
}

void OpenAiDoor::WarnOfIgnored(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    std::string safe = name.substr(0, 64);
    std::replace_if(
        safe.begin(), safe.end(), [](char c) { return !IsNameChar(c); }, '?');
    {
      MutexLock lock(&mu_);
      if (warned_.size() >= kMaxWarned || !warned_.insert(safe).second) continue;
    }
    LogWarn("a field that means nothing here is ignored, now and from now on", {{"field", safe}});
  }
}

void OpenAiDoor::Generate(const std::string& path, Parse parse, const rpc::HttpRequest& request,
                          std::shared_ptr<rpc::HttpExchange> exchange) {
  CountClientRetry(request);
  const std::string client_id = ClientRequestId(request);
  const std::string unique = absl::StrCat(absl::Hex(RandomU64(), absl::kZeroPad16));
  Generation::Options options;
  // Unique also when a client, or a proxy that repeats a request, gives one id twice.
  options.id = absl::StrCat(parse == &ParseChatRequest ? "chatcmpl-" : "cmpl-",
                            client_id.empty() ? "" : absl::StrCat(client_id.substr(0, kMaxIdInKey), "-"), unique);
  options.headers["X-Request-Id"] = client_id.empty() ? options.id : client_id;
  options.tool_format = tool_format_;
  options.on_status = [this, path](int code) { Count(path, code); };
  const auto refuse = [&](rpc::HttpResponse response) {
    response.headers.insert(options.headers.begin(), options.headers.end());
    Count(path, response.status);
    exchange->Respond(std::move(response));
  };
  absl::StatusOr<Caller> caller = CallerOf(request);
  if (!caller.ok()) return refuse(ErrorResponse(caller.status()));
  options.caller = *std::move(caller);
  options.trace = tracing::ParseTraceparent(request.header("traceparent"), request.header("tracestate"));
  if (!IsJson(request)) return refuse(NotJson());
  const absl::StatusOr<Json> body = ParseBody(request);
  if (!body.ok()) return refuse(ErrorResponse(body.status()));
  absl::StatusOr<OpenAiRequest> parsed = parse(*body);
  if (!parsed.ok()) return refuse(ErrorResponse(parsed.status()));
  if (!parsed->callable.empty()) {
    if (absl::Status s = ForceCall(tool_format_, &*parsed); !s.ok()) return refuse(ErrorResponse(s));
  }
  WarnOfIgnored(parsed->ignored);
  Generation::Start(*std::move(parsed), std::move(options), intake_, std::move(exchange));
}

rpc::HttpResponse OpenAiDoor::Post(const std::string& path, Answer answer, const rpc::HttpRequest& request) {
  rpc::HttpResponse response;
  if (absl::Status status = CallerOf(request).status(); !status.ok()) {
    response = ErrorResponse(status);
  } else if (!IsJson(request)) {
    response = NotJson();
  } else {
    absl::StatusOr<Json> json = ParseBody(request);
    if (json.ok()) json = (this->*answer)(*json);
    response = json.ok() ? JsonResponse(*json) : ErrorResponse(json.status());
  }
  if (const std::string id = ClientRequestId(request); !id.empty()) response.headers["X-Request-Id"] = id;
  Count(path, response.status);
  return response;
}

absl::StatusOr<Caller> OpenAiDoor::CallerOf(const rpc::HttpRequest& request) const {
  return intake_->CallerOf(request.header("authorization"));
}

rpc::HttpResponse OpenAiDoor::Models(const rpc::HttpRequest& request) const {
  if (absl::Status status = CallerOf(request).status(); !status.ok()) return ErrorResponse(status);
  return JsonResponse(ListModels());
}

Json OpenAiDoor::ListModels() const {
  Json list = {{"object", "list"}, {"data", Json::array()}};
  const v1::ListModelsResponse models = intake_->ListModels();
  for (const v1::Model& model : models.models()) {
    list["data"].push_back({{"id", model.name()},
                            {"object", "model"},
                            {"created", absl::ToUnixSeconds(intake_->started())},
                            {"owned_by", "baton"},
                            {"root", model.name()},
                            {"parent", nullptr},
                            {"max_model_len", model.max_context()},
                            {"architecture", model.architecture()},
                            {"fingerprint", model.fingerprint()}});
  }
  return list;
}

rpc::HttpResponse OpenAiDoor::OneModel(const rpc::HttpRequest& request) const {
  if (absl::Status status = CallerOf(request).status(); !status.ok()) return ErrorResponse(status);
  const std::string name = request.path.substr(std::string("/v1/models/").size());
  if (absl::Status status = intake_->CheckModel(name); !status.ok()) return ErrorResponse(status);
  return JsonResponse(ListModels()["data"][0]);
}

absl::StatusOr<Json> OpenAiDoor::Tokenize(const Json& body) const {
  JsonFields fields(body);
  v1::TokenizeRequest request;
  request.set_model(fields.String("model").value_or(""));
  const bool strings = fields.Bool("return_token_strs").value_or(false);
  if (const auto special = fields.Bool("add_special_tokens")) request.set_add_special_tokens(*special);
  if (fields.Find("messages") != nullptr) {
    ReadChat(&fields, request.mutable_chat());
  } else if (const auto prompt = fields.String("prompt")) {
    request.set_text(*prompt);
  } else {
    fields.Fail("prompt", "is missing; send prompt or messages");
  }
  if (!fields.ok()) return fields.status();
  const absl::StatusOr<v1::TokenizeResponse> response = intake_->Tokenize(request);
  if (!response.ok()) return response.status();
  Json json = {
      {"count", response->token_ids_size()}, {"max_model_len", response->max_context()}, {"tokens", Json::array()}};
  json["token_strs"] = strings ? Json::array() : Json(nullptr);
  for (const int32_t id : response->token_ids()) {
    json["tokens"].push_back(id);
    if (strings) json["token_strs"].push_back(TokenName(intake_->text().TokenBytes(id)));
  }
  return json;
}

absl::StatusOr<Json> OpenAiDoor::Detokenize(const Json& body) const {
  JsonFields fields(body);
  v1::DetokenizeRequest request;
  request.set_model(fields.String("model").value_or(""));
  const Json* tokens = fields.Array("tokens");
  if (tokens == nullptr) fields.Fail("tokens", "is missing; send a list of token ids");
  for (size_t i = 0; fields.ok() && i < tokens->size(); ++i) {
    const Json& id = (*tokens)[i];
    if (!id.is_number_integer() || id.get<int64_t>() != static_cast<int32_t>(id.get<int64_t>())) {
      fields.Fail("tokens", absl::StrCat("has something other than a token id at index ", i));
      break;
    }
    request.add_token_ids(id.get<int32_t>());
  }
  if (!fields.ok()) return fields.status();
  const absl::StatusOr<v1::DetokenizeResponse> response = intake_->Detokenize(request);
  if (!response.ok()) return response.status();
  return Json{{"prompt", response->text()}};
}

}  // namespace baton::router::http
