#include "common/membership/kubernetes_directory.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/logging.h"
#include "common/rpc/address.h"

namespace baton::membership {
namespace {

using nlohmann::json;

constexpr absl::Duration kListTimeout = absl::Seconds(30);
constexpr int kWatchSeconds = 240;  // after which the server ends it
// Bookmarks come about once a minute; a server that is silent for longer than a watch lasts is gone.
constexpr absl::Duration kWatchSilence = absl::Seconds(kWatchSeconds + 30);

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, "; does this pod have a service account's token? ",
                                            "kubernetes_credentials names another folder"));
  }
  return std::string(absl::StripAsciiWhitespace(text.str()));
}

std::string Text(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

const json& Member(const json& object, const char* key) {
  static const json kNone;
  if (!object.is_object()) return kNone;
  const auto it = object.find(key);
  return it == object.end() ? kNone : *it;
}

// For a query: what is not unreserved (RFC 3986) by its code.
std::string Escaped(absl::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_' || c == '~') {
      escaped += c;
    } else {
      absl::StrAppend(&escaped, "%", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  return escaped;
}

// Addresses of one EndpointSlice (discovery.k8s.io/v1).
std::vector<std::string> AddressesOf(const json& slice, const std::string& port_name) {
  std::vector<std::string> addresses;
  int port = 0;
  const json& ports = Member(slice, "ports");
  for (const json& p : ports.is_array() ? ports : json::array()) {
    const json& number = Member(p, "port");
    if (Text(p, "name") == port_name && number.is_number_integer()) port = number.get<int>();
  }
  const json& endpoints = Member(slice, "endpoints");
  if (port < 1 || port > 65535 || !endpoints.is_array()) return addresses;
  for (const json& endpoint : endpoints) {
    const json& terminating = Member(Member(endpoint, "conditions"), "terminating");
    if (terminating.is_boolean() && terminating.get<bool>()) continue;
    const json& hosts = Member(endpoint, "addresses");
    // All addresses of one endpoint are one pod.
    if (hosts.is_array() && !hosts.empty() && hosts[0].is_string()) {
      addresses.push_back(rpc::JoinHostPort(hosts[0].get<std::string>(), port));
    }
  }
  return addresses;
}

}  // namespace

absl::Status EndpointSlices::TakeList(absl::string_view text, bool first_part, std::string* next) {
  const json list = json::parse(text.begin(), text.end(), nullptr, false);
  const json& items = Member(list, "items");
  const std::string version = Text(Member(list, "metadata"), "resourceVersion");
  if (Text(list, "kind") != "EndpointSliceList" || version.empty() || !(items.is_array() || items.is_null())) {
    return absl::DataLossError("the answer is not a list of endpoint slices");
  }
  if (first_part) slices_.clear();
  for (const json& item : items) {
    const std::string name = Text(Member(item, "metadata"), "name");
    if (!name.empty()) slices_[name] = AddressesOf(item, port_);
  }
  resource_version_ = version;
  *next = Text(Member(list, "metadata"), "continue");
  return absl::OkStatus();
}

absl::Status EndpointSlices::TakeEvent(absl::string_view text) {
  const json event = json::parse(text.begin(), text.end(), nullptr, false);
  const json& object = Member(event, "object");
  if (!event.is_object() || !object.is_object()) return absl::DataLossError("a line of the watch is not an event");
  const std::string type = Text(event, "type");
  if (type == "ERROR") {
    const json& code = Member(object, "code");
    if (code.is_number_integer() && code.get<int>() == 410) return absl::AbortedError("410 Gone: the history is too short");
    return absl::AbortedError(absl::StrCat("the server ended the watch: ", Text(object, "reason")));
  }
  const std::string version = Text(Member(object, "metadata"), "resourceVersion");
  if (!version.empty()) resource_version_ = version;
  const std::string name = Text(Member(object, "metadata"), "name");
  if (type == "BOOKMARK" || name.empty()) return absl::OkStatus();
  if (type == "DELETED") {
    slices_.erase(name);
  } else if (type == "ADDED" || type == "MODIFIED") {
    slices_[name] = AddressesOf(object, port_);
  }
  return absl::OkStatus();
}

std::vector<std::string> EndpointSlices::Addresses() const {
  std::vector<std::string> all;
  for (const auto& [name, addresses] : slices_) all.insert(all.end(), addresses.begin(), addresses.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

absl::StatusOr<std::unique_ptr<KubernetesDirectory>> KubernetesDirectory::Create(const v1::Config& config,
                                                                                OnRouters on_routers) {
  if (!config.has_kubernetes_service()) {
    return absl::InvalidArgumentError("kubernetes_service is not set; it names the routers' service (namespace/name)");
  }
  const std::string& folder = config.kubernetes_credentials();
  Service service{.token_file = absl::StrCat(folder, "/token")};
  if (absl::StatusOr<std::string> token = ReadFile(service.token_file); !token.ok()) return token.status();
  std::vector<std::string> parts = absl::StrSplit(config.kubernetes_service(), '/');
  service.name = parts.back();
  if (parts.size() == 2) {
    service.ns = parts[0];
  } else {
    absl::StatusOr<std::string> ns = ReadFile(absl::StrCat(folder, "/namespace"));
    if (!ns.ok()) return ns.status();
    service.ns = *ns;
  }
  for (const std::string* name : {&service.ns, &service.name}) {
    const bool valid = !name->empty() && name->size() <= 253 && parts.size() <= 2 &&
                       std::all_of(name->begin(), name->end(), [](char c) {
                         return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '.';
                       });
    if (!valid) {
      return absl::InvalidArgumentError(
          absl::StrCat("kubernetes_service: \"", config.kubernetes_service(), "\" is not namespace/name"));
    }
  }
  std::string api = config.kubernetes_api();
  if (api.empty()) {
    const char* host = getenv("KUBERNETES_SERVICE_HOST");
    const char* port = getenv("KUBERNETES_SERVICE_PORT_HTTPS");
    if (host == nullptr) {
      return absl::InvalidArgumentError("this is not a pod (KUBERNETES_SERVICE_HOST is not set); set kubernetes_api");
    }
    api = absl::StrCat("https://", absl::StrContains(host, ':') ? absl::StrCat("[", host, "]") : std::string(host), ":",
                       port == nullptr ? "443" : port);
  }
  absl::StatusOr<std::unique_ptr<HttpsClient>> client = HttpsClient::Create(api, absl::StrCat(folder, "/ca.crt"));
  if (!client.ok()) return client.status();
  return std::unique_ptr<KubernetesDirectory>(new KubernetesDirectory(
      *std::move(client), std::move(service), config.kubernetes_port(), std::move(on_routers)));
}

absl::StatusOr<std::unique_ptr<RouterDirectory>> KubernetesDirectory::Open(const v1::Config& config,
                                                                           OnRouters on_routers) {
  absl::StatusOr<std::unique_ptr<KubernetesDirectory>> directory = Create(config, std::move(on_routers));
  if (!directory.ok()) return directory.status();
  (*directory)->thread_.Start([d = directory->get()] { d->Run(); });
  return *std::move(directory);
}

KubernetesDirectory::KubernetesDirectory(std::unique_ptr<HttpsClient> client, Service service, std::string port,
                                         OnRouters on_routers)
    : client_(std::move(client)),
      service_(std::move(service)),
      on_routers_(std::move(on_routers)),
      slices_(std::move(port)) {}

KubernetesDirectory::~KubernetesDirectory() {
  thread_.Stop([this] { client_->Stop(); });
}

std::string KubernetesDirectory::Path(absl::string_view query) const {
  return absl::StrCat("/apis/discovery.k8s.io/v1/namespaces/", service_.ns,
                      "/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D", service_.name, query);
}

absl::StatusOr<HttpHeaders> KubernetesDirectory::Headers() const {
  absl::StatusOr<std::string> token = ReadFile(service_.token_file);
  if (!token.ok()) return token.status();
  return HttpHeaders{{"Authorization", absl::StrCat("Bearer ", *token)}, {"Accept", "application/json"}};
}

void KubernetesDirectory::Run() {
  Backoff backoff;
  bool warned = false;
  bool listed = false;  // slices_ holds a list that a watch can go on from
  while (!thread_.stopping()) {
    absl::Status s = listed ? Watch() : List();
    if (s.ok()) {
      listed = true;
      backoff.Reset();
      if (std::exchange(warned, false)) LogInfo("the Kubernetes API answers again");
      thread_.Sleep(absl::Milliseconds(50));  // a server that ends every watch at once is not asked in a busy loop
      continue;
    }
    if (thread_.stopping()) return;
    // A broken watch goes on from the last version that was seen; what only a new list can mend has other codes.
    if (!absl::IsUnavailable(s)) listed = false;
    if (!absl::IsAborted(s) && !std::exchange(warned, true)) {
      LogWarn("the Kubernetes API cannot be asked; the routers known so far stay, and it is tried again",
              {{"service", service_.name}, {"error", s.message()}});
    }
    thread_.Sleep(backoff.Next());
  }
}

absl::Status KubernetesDirectory::List() {
  std::string next;
  bool first = true;
  do {
    absl::StatusOr<HttpHeaders> headers = Headers();
    if (!headers.ok()) return headers.status();
    const std::string page = next.empty() ? "" : absl::StrCat("&continue=", Escaped(next));
    absl::StatusOr<std::string> body = client_->Get(Path(absl::StrCat("&limit=500", page)), *headers, kListTimeout);
    if (!body.ok()) return body.status();
    if (absl::Status s = slices_.TakeList(*body, first, &next); !s.ok()) return s;
    first = false;
  } while (!next.empty());
  Tell();
  return absl::OkStatus();
}

absl::Status KubernetesDirectory::Watch() {
  absl::StatusOr<HttpHeaders> headers = Headers();
  if (!headers.ok()) return headers.status();
  return client_->GetLines(Path(absl::StrCat("&watch=1&allowWatchBookmarks=true&timeoutSeconds=", kWatchSeconds,
                                             "&resourceVersion=", Escaped(slices_.resource_version()))),
                           *headers, kWatchSilence, [this](absl::string_view line) {
                             if (line.empty()) return absl::OkStatus();
                             absl::Status s = slices_.TakeEvent(line);
                             if (s.ok()) Tell();
                             return s;
                           });
}

void KubernetesDirectory::Tell() {
  std::vector<std::string> routers = slices_.Addresses();
  if (routers.empty() || routers == told_) return;
  LogInfo("routers in Kubernetes", {{"service", service_.name}, {"routers", absl::StrJoin(routers, ",")}});
  told_ = std::move(routers);
  on_routers_(told_);
}

}  // namespace baton::membership
