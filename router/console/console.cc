#include "router/console/console.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bounded_json.h"
#include "common/status.h"
#include "router/console/console_json.h"
#include "router/console/same_origin.h"
#include "router/console/web_files.h"

namespace baton::router::console {
namespace {

constexpr int kMaxWorkers = 64;  // of a role, as the settings of `up`
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

const char* TypeOf(absl::string_view name) {
  if (absl::EndsWith(name, ".html")) return "text/html; charset=utf-8";
  if (absl::EndsWith(name, ".css")) return "text/css; charset=utf-8";
  if (absl::EndsWith(name, ".svg")) return "image/svg+xml";
  return "text/javascript; charset=utf-8";
}

// No other page may show, read or guess at what is answered here.
void Harden(rpc::HttpResponse* response) {
  response->headers["Content-Security-Policy"] = kPolicy;
  response->headers["X-Frame-Options"] = "DENY";
  response->headers["Referrer-Policy"] = "no-referrer";
  response->headers["Cross-Origin-Opener-Policy"] = "same-origin";
  response->headers["Cross-Origin-Resource-Policy"] = "same-origin";
}

rpc::HttpResponse FileResponse(const WebFile& file) {
  rpc::HttpResponse response;
  response.content_type = TypeOf(file.name);
  response.body = std::string(file.content);
  response.headers["Cache-Control"] = "no-cache";
  Harden(&response);
  return response;
}

rpc::HttpResponse JsonResponse(std::string json) {
  rpc::HttpResponse response;
  response.body = std::move(json);
  response.headers["Cache-Control"] = "no-store";
  Harden(&response);
  return response;
}

rpc::HttpResponse Outcome(const absl::Status& status) {
  if (status.ok()) return JsonResponse("{\"ok\":true}\n");
  const StatusRule& rule = RuleFor(status.code());
  rpc::HttpResponse response = rpc::HttpError(rule.http_code, rule.name, status.message());
  Harden(&response);
  return response;
}

rpc::HttpResponse Redirect(const char* where) {
  rpc::HttpResponse response;
  response.status = 302;
  response.content_type = "text/plain; charset=utf-8";
  response.body = absl::StrCat("the console is at ", where, "\n");
  response.headers["Location"] = where;
  Harden(&response);
  return response;
}

// Ids may hold any printable character. What is not an escape stays as it is.
std::string PercentDecoded(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 1])) &&
        absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 2]))) {
      out.push_back(static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16)));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

absl::StatusOr<std::string> WorkerOf(const nlohmann::ordered_json& body) {
  const auto worker = body.find("worker");
  if (worker != body.end() && worker->is_string()) return worker->get<std::string>();
  return absl::InvalidArgumentError("worker: is missing; send the name of one");
}

}  // namespace

void Console::AddHandlers(rpc::HttpServer* server) {
  for (const char* path : {"/", "/console"}) {
    server->Handle("GET", path, [](const rpc::HttpRequest&) { return Redirect("/console/"); });
  }
  for (const WebFile& file : WebFiles()) {
    const std::string path = file.name == "index.html" ? "/console/" : absl::StrCat("/console/", file.name);
    server->Handle("GET", path, [file](const rpc::HttpRequest&) { return FileResponse(file); });
  }
  HandleGet(server, "/baton/cluster", Who::kAdmin, [this](const rpc::HttpRequest&, const std::string&) {
    return JsonResponse(ClusterJson(sources_.status(), admin()));
  });
  HandleGet(server, "/baton/requests", Who::kTenant, [this](const rpc::HttpRequest&, const std::string& tenant) {
    return JsonResponse(RequestsJson(sources_.log->Latest(tenant)));
  });
  HandleGet(server, "/baton/requests/*", Who::kTenant, [this](const rpc::HttpRequest& request, const std::string& tenant) {
    return OneRequest(request, tenant);
  });
  HandleGet(server, "/baton/load", Who::kAdmin, [this](const rpc::HttpRequest&, const std::string&) {
    return JsonResponse(LoadJson(sources_.load->Seconds()));
  });
  if (admin()) AddAdminHandlers(server);
}

absl::StatusOr<Caller> Console::Admin(const rpc::HttpRequest& request) const {
  absl::StatusOr<Caller> caller = sources_.caller_of(request.header("authorization"));
  if (!caller.ok() || caller->admin) return caller;
  return WithReason(absl::PermissionDeniedError("this API key shows your own requests only; the cluster is for keys with the "
                                                "scope \"admin\" in api_keys_file"),
                    "NO_ADMIN_SCOPE");
}

void Console::HandleGet(rpc::HttpServer* server, const std::string& path, Who who,
                        std::function<rpc::HttpResponse(const rpc::HttpRequest&, const std::string&)> answer) {
  server->Handle("GET", path, [this, who, answer = std::move(answer)](const rpc::HttpRequest& request) {
    const absl::StatusOr<Caller> caller =
        who == Who::kAdmin ? Admin(request) : sources_.caller_of(request.header("authorization"));
    return caller.ok() ? answer(request, caller->tenant) : Outcome(caller.status());
  });
}

absl::StatusOr<nlohmann::ordered_json> Console::OwnBody(const rpc::HttpRequest& request) const {
  if (absl::Status status = Admin(request).status(); !status.ok()) return status;
  if (absl::Status status = CheckSameOrigin(request); !status.ok()) return status;
  absl::StatusOr<nlohmann::ordered_json> body = ParseBoundedJson(request.body);
  if (body.ok() && !body->is_object()) return absl::InvalidArgumentError("the body must be a JSON object");
  return body;
}

void Console::WaitUntilIdle() {
  std::thread last;
  {
    MutexLock lock(&mu_);
    last = std::move(scaler_);
  }
  if (last.joinable()) last.join();
}

void Console::AddAdminHandlers(rpc::HttpServer* server) {
  server->HandleAsync("POST", "/baton/drain",
                      [this](const rpc::HttpRequest& request, std::shared_ptr<rpc::HttpExchange> exchange) {
                        Drain(request, std::move(exchange));
                      });
  server->HandleAsync("POST", "/baton/role",
                      [this](const rpc::HttpRequest& request, std::shared_ptr<rpc::HttpExchange> exchange) {
                        ChangeRole(request, std::move(exchange));
                      });
  server->HandleAsync("POST", "/baton/scale",
                      [this](const rpc::HttpRequest& request, std::shared_ptr<rpc::HttpExchange> exchange) {
                        Scale(request, std::move(exchange));
                      });
}

void Console::Drain(const rpc::HttpRequest& request, std::shared_ptr<rpc::HttpExchange> exchange) {
  const absl::StatusOr<nlohmann::ordered_json> body = OwnBody(request);
  if (!body.ok()) return exchange->Respond(Outcome(body.status()));
  const absl::StatusOr<std::string> worker = WorkerOf(*body);
  if (!worker.ok()) return exchange->Respond(Outcome(worker.status()));
  sources_.drain(*worker, [exchange](absl::Status status) { exchange->Respond(Outcome(std::move(status))); });
}

void Console::ChangeRole(const rpc::HttpRequest& request, std::shared_ptr<rpc::HttpExchange> exchange) {
  const absl::StatusOr<nlohmann::ordered_json> body = OwnBody(request);
  if (!body.ok()) return exchange->Respond(Outcome(body.status()));
  const absl::StatusOr<std::string> worker = WorkerOf(*body);
  if (!worker.ok()) return exchange->Respond(Outcome(worker.status()));
  const auto role = body->find("role");
  if (role == body->end() || (*role != "prefill" && *role != "decode")) {
    return exchange->Respond(Outcome(absl::InvalidArgumentError("role: must be \"prefill\" or \"decode\"")));
  }
  sources_.change_role(*worker, role->get<std::string>(),
                       [exchange](absl::Status status) { exchange->Respond(Outcome(std::move(status))); });
}

void Console::Scale(const rpc::HttpRequest& request, std::shared_ptr<rpc::HttpExchange> exchange) {
  const absl::StatusOr<nlohmann::ordered_json> body = OwnBody(request);
  if (!body.ok()) return exchange->Respond(Outcome(body.status()));
  int sizes[2] = {0, 0};  // prefill, decode
  bool understood = !body->empty();
  for (const auto& [role, count] : body->items()) {
    const bool known = role == "prefill" || role == "decode";
    understood = understood && known && count.is_number_integer() && count >= 1 && count <= kMaxWorkers;
    if (understood) sizes[role == "decode"] = count.get<int>();
  }
  if (!understood) {
    return exchange->Respond(
        Outcome(absl::InvalidArgumentError("sizes are prefill, decode or both, each from 1 to 64")));
  }
  std::thread former;
  {
    MutexLock lock(&mu_);
    if (scaling_) return exchange->Respond(Outcome(absl::UnavailableError("another change is under way; try again")));
    scaling_ = true;
    former = std::move(scaler_);
    // Not on the server's thread: it waits for another process.
    scaler_ = std::thread([this, sizes = std::pair(sizes[0], sizes[1]), exchange] {
      exchange->Respond(Outcome(sources_.scale(sizes.first, sizes.second)));
      MutexLock lock(&mu_);
      scaling_ = false;
    });
  }
  if (former.joinable()) former.join();  // it has nothing left to do
}

rpc::HttpResponse Console::OneRequest(const rpc::HttpRequest& request, const std::string& tenant) const {
  const std::string id = PercentDecoded(absl::string_view(request.path).substr(sizeof("/baton/requests/") - 1));
  const std::shared_ptr<const EndedRequest> found = sources_.log->Find(id, tenant);
  if (found != nullptr) return JsonResponse(RequestJson(*found, sources_.explain(id)));
  rpc::HttpResponse response = rpc::HttpError(
      404, "NOT_FOUND", "no request of that id has ended here lately; /baton/requests lists those that are kept");
  Harden(&response);
  return response;
}

}  // namespace baton::router::console
