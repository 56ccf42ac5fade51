#include "common/rpc/http_exchange.h"

#include <boost/beast/http/status.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace baton::rpc {
namespace {

std::string SerializeHead(const HttpResponse& response, const HttpFraming& framing) {
  const auto reason =
      boost::beast::http::obsolete_reason(boost::beast::http::int_to_status(static_cast<unsigned>(response.status)));
  std::string out = absl::StrCat("HTTP/1.", framing.version == 10 ? 0 : 1, " ", response.status, " ",
                                 absl::string_view(reason.data(), reason.size()),
                                 "\r\nServer: baton\r\nContent-Type: ", response.content_type,
                                 "\r\nX-Content-Type-Options: nosniff\r\n");
  for (const auto& [name, value] : response.headers) absl::StrAppend(&out, name, ": ", value, "\r\n");
  if (!framing.keep_alive) {
    absl::StrAppend(&out, "Connection: close\r\n");
  } else if (framing.version == 10) {
    absl::StrAppend(&out, "Connection: keep-alive\r\n");
  }
  return out;
}

const char* ErrorType(int http_code) {
  if (http_code == 401) return "authentication_error";
  if (http_code == 403) return "permission_error";
  if (http_code == 429) return "rate_limit_error";
  return http_code >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

HttpResponse HttpError(int http_code, absl::string_view status, absl::string_view message, absl::string_view param,
                       absl::string_view code) {
  using Json = nlohmann::ordered_json;
  const Json body = {{"error",
                      {{"message", std::string(message)},
                       {"type", ErrorType(http_code)},
                       {"param", param.empty() ? Json(nullptr) : Json(std::string(param))},
                       {"code", code.empty() ? absl::AsciiStrToLower(status) : std::string(code)},
                       {"status", std::string(status)}}}};
  HttpResponse response;
  response.status = http_code;
  response.body = body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return response;
}

std::string SerializeResponse(HttpResponse response, const HttpFraming& framing) {
  std::string out =
      absl::StrCat(SerializeHead(response, framing), "Content-Length: ", response.body.size(), "\r\n\r\n");
  if (!framing.head) out += response.body;
  return out;
}

bool HttpOutbox::Append(absl::string_view bytes, bool last) {
  pending_.append(bytes.data(), bytes.size());
  complete_ = complete_ || last;
  return !std::exchange(woken_, true);
}

bool HttpOutbox::AppendPiece(absl::string_view piece) {
  if (framing_.head || piece.empty()) return false;  // an empty chunk would be the end
  if (!chunked_) return Append(piece, false);
  return Append(absl::StrCat(absl::Hex(piece.size()), "\r\n", piece, "\r\n"), false);
}

void HttpOutbox::Respond(HttpResponse response) {
  bool wake;
  {
    MutexLock lock(&mu_);
    if (gone_ || begun_ || complete_) return;
    framing_.keep_alive = framing_.keep_alive && !draining_();
    wake = Append(SerializeResponse(std::move(response), framing_), true);
  }
  if (wake) wake_();
}

void HttpOutbox::Begin(HttpResponse head) {
  bool wake;
  {
    MutexLock lock(&mu_);
    if (gone_ || begun_ || complete_) return;
    begun_ = true;
    chunked_ = framing_.version != 10;
    framing_.keep_alive = framing_.keep_alive && chunked_ && !draining_();  // HTTP/1.0 ends a body by closing
    wake = Append(absl::StrCat(SerializeHead(head, framing_), chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n"),
                  false);
    wake = AppendPiece(head.body) || wake;
  }
  if (wake) wake_();
}

bool HttpOutbox::Write(absl::string_view piece) {
  bool wake;
  bool accepted = true;
  {
    MutexLock lock(&mu_);
    if (gone_ || !begun_ || complete_ || overflowed_) return false;
    if (pending_.size() + piece.size() > max_buffered_) {
      accepted = false;
      overflowed_ = true;
      wake = !std::exchange(woken_, true);
    } else {
      wake = AppendPiece(piece);
    }
  }
  if (wake) wake_();
  return accepted;
}

void HttpOutbox::End() {
  bool wake;
  {
    MutexLock lock(&mu_);
    if (gone_ || !begun_ || complete_) return;
    wake = Append(chunked_ && !framing_.head ? "0\r\n\r\n" : "", true);
  }
  if (wake) wake_();
}

void HttpOutbox::Abandon() {
  bool begun;
  {
    MutexLock lock(&mu_);
    begun = begun_;
  }
  if (begun) return End();
  Respond(HttpError(500, "INTERNAL", "the request was dropped unanswered; please report this"));
}

void HttpOutbox::OnGone(std::function<void()> gone) {
  {
    MutexLock lock(&mu_);
    if (complete_) return;
    if (!gone_) {
      gone_callback_ = std::move(gone);
      return;
    }
  }
  gone();
}

std::string HttpOutbox::Take() {
  MutexLock lock(&mu_);
  woken_ = false;
  return std::exchange(pending_, {});
}

bool HttpOutbox::complete() const {
  MutexLock lock(&mu_);
  return complete_;
}

bool HttpOutbox::overflowed() const {
  MutexLock lock(&mu_);
  return overflowed_;
}

bool HttpOutbox::keep_alive() const {
  MutexLock lock(&mu_);
  return framing_.keep_alive;
}

void HttpOutbox::Gone() {
  std::function<void()> callback;  // goes without the lock: it may hold the exchange, whose end comes back here
  bool tell;
  {
    MutexLock lock(&mu_);
    gone_ = true;
    callback = std::exchange(gone_callback_, nullptr);
    tell = !complete_;
  }
  if (callback && tell) callback();
}

void HttpOutbox::Delivered() {
  std::function<void()> drop;
  MutexLock lock(&mu_);
  drop = std::exchange(gone_callback_, nullptr);
}

}  // namespace baton::rpc
