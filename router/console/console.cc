#include "router/console/console.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "router/console/console_json.h"
#include "router/console/web_files.h"

namespace baton::router::console {
namespace {

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

}  // namespace

void Console::AddHandlers(rpc::HttpServer* server) {
  for (const char* path : {"/", "/console"}) {
    server->Handle("GET", path, [](const rpc::HttpRequest&) { return Redirect("/console/"); });
  }
  for (const WebFile& file : WebFiles()) {
    const std::string path = file.name == "index.html" ? "/console/" : absl::StrCat("/console/", file.name);
    server->Handle("GET", path, [file](const rpc::HttpRequest&) { return FileResponse(file); });
  }
  server->Handle("GET", "/baton/cluster", [this](const rpc::HttpRequest&) {
    return JsonResponse(ClusterJson(sources_.status(), /*admin=*/false));
  });
  server->Handle("GET", "/baton/requests",
                 [this](const rpc::HttpRequest&) { return JsonResponse(RequestsJson(sources_.log->Latest())); });
  server->Handle("GET", "/baton/requests/*", [this](const rpc::HttpRequest& request) { return OneRequest(request); });
  server->Handle("GET", "/baton/load",
                 [this](const rpc::HttpRequest&) { return JsonResponse(LoadJson(sources_.load->Seconds())); });
}

rpc::HttpResponse Console::OneRequest(const rpc::HttpRequest& request) const {
  const std::string id = PercentDecoded(absl::string_view(request.path).substr(sizeof("/baton/requests/") - 1));
  const std::shared_ptr<const EndedRequest> found = sources_.log->Find(id);
  if (found != nullptr) return JsonResponse(RequestJson(*found, sources_.explain(id)));
  rpc::HttpResponse response = rpc::HttpError(
      404, "NOT_FOUND", "no request of that id has ended here lately; /baton/requests lists those that are kept");
  Harden(&response);
  return response;
}

}  // namespace baton::router::console
