#include "common/rpc/http_session.h"

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/http_exchange.h"

namespace baton::rpc {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

namespace {

constexpr size_t kReadBytes = 16 << 10;
constexpr absl::Duration kLingerTime = absl::Seconds(2);
constexpr uint8_t kTlsHandshake = 22;  // the first byte of a TLS connection, and of no HTTP request

std::string ToString(beast::string_view s) { return std::string(s.data(), s.size()); }

HttpRequest Convert(http::request<http::string_body> request) {
  HttpRequest out;
  out.method = ToString(request.method_string());
  const std::string target = ToString(request.target());
  const size_t question = target.find('?');
  out.path = target.substr(0, question);
  if (question != std::string::npos) out.query = target.substr(question + 1);
  for (const auto& field : request) {
    out.headers[absl::AsciiStrToLower(ToString(field.name_string()))] = ToString(field.value());
  }
  out.body = std::move(request.body());
  return out;
}

// What a handler holds. It keeps the connection's session; the session keeps only the outbox.
class HandlerExchange final : public HttpExchange {
 public:
  HandlerExchange(std::shared_ptr<HttpOutbox> outbox, std::shared_ptr<HttpSession> session)
      : outbox_(std::move(outbox)), session_(std::move(session)) {}
  ~HandlerExchange() override { outbox_->Abandon(); }
  void Respond(HttpResponse response) override { outbox_->Respond(std::move(response)); }
  void Begin(HttpResponse head) override { outbox_->Begin(std::move(head)); }
  bool Write(absl::string_view piece) override { return outbox_->Write(piece); }
  void End() override { outbox_->End(); }
  void OnGone(std::function<void()> gone) override { outbox_->OnGone(std::move(gone)); }

 private:
  const std::shared_ptr<HttpOutbox> outbox_;
  const std::shared_ptr<HttpSession> session_;
};

}  // namespace

HttpSession::HttpSession(std::shared_ptr<HttpSessions> sessions, Socket socket, std::string address,
                         std::shared_ptr<TlsContext> tls)
    : sessions_(std::move(sessions)),
      options_(sessions_->options),
      address_(std::move(address)),
      tls_(std::move(tls)),
      stream_(std::move(socket)),
      timer_(stream_.get_executor()),
      // A chunk's header or a trailer may be longer than a request's header only by what one read brings.
      buffer_(options_.max_header_bytes + 2 * kReadBytes) {
  MutexLock lock(&sessions_->mu);
  sessions_->open.insert(this);
  ++sessions_->per_address[address_];
}

HttpSession::~HttpSession() { Close(); }

void HttpSession::Start() {
  beast::error_code ignored;
  stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);  // a token must not wait for the next
  if (tls_ == nullptr) return ReadNext();
  stream_.socket().non_blocking(true, ignored);
  SetDeadline(options_.header_timeout);
  WaitForHello();
}

// Whoever begins otherwise has most likely written http://, and is told so in the language that it speaks.
void HttpSession::WaitForHello() {
  stream_.socket().async_wait(Socket::wait_read, [self = shared_from_this()](ErrorCode ec) {
    if (self->state_ == State::kClosed) return;
    uint8_t first = 0;
    if (!ec) self->stream_.socket().receive(asio::buffer(&first, 1), Socket::message_peek, ec);
    if (ec == asio::error::would_block) return self->WaitForHello();
    if (ec) return self->Close();
    if (first != kTlsHandshake) {
      return self->Reject(400, "INVALID_ARGUMENT", "this port speaks HTTPS: write https:// instead of http://");
    }
    self->stream_.Secure(std::exchange(self->tls_, nullptr), [self](ErrorCode failed) {
      if (self->state_ == State::kClosed) return;
      if (failed) return self->Close();
      self->ReadNext();
    });
  });
}

void HttpSession::Refuse(absl::string_view why) {
  if (tls_ != nullptr) return Close();
  Reject(503, "UNAVAILABLE", why);
}

void HttpSession::Drain(bool unused_too) {
  asio::post(stream_.get_executor(), [self = shared_from_this(), unused_too] {
    if (self->state_ == State::kIdle && (self->used_ || unused_too)) self->Close();
  });
}

void HttpSession::SetDeadline(absl::Duration after) {
  deadline_ = after == absl::InfiniteDuration() ? kNever : Clock::now() + absl::ToChronoNanoseconds(after);
  // A timer that is set for earlier finds out by itself: most deadlines of a stream never touch it.
  if (deadline_ < armed_until_) WaitForDeadline();
}

void HttpSession::WaitForDeadline() {
  armed_until_ = deadline_;
  if (deadline_ == kNever) return;
  timer_.expires_at(deadline_);
  timer_.async_wait([weak = weak_from_this()](ErrorCode ec) {
    const std::shared_ptr<HttpSession> self = weak.lock();
    if (ec || self == nullptr || self->state_ == State::kClosed) return;
    if (Clock::now() >= self->deadline_) return self->Close();
    self->WaitForDeadline();
  });
}

void HttpSession::ReadNext() {
  state_ = State::kIdle;
  SetDeadline(options_.idle_timeout);
  if (filling_) return;
  if (buffer_.size() > 0) return ReadHeader();
  Fill();
}

// Waits for bytes: of the next request, or, while one is answered, to learn that the client hung up.
void HttpSession::Fill() {
  filling_ = true;
  stream_.async_read_some(buffer_.prepare(kReadBytes), [self = shared_from_this()](ErrorCode ec, size_t n) {
    self->filling_ = false;
    if (self->state_ == State::kClosed) return;
    if (self->state_ == State::kLingering) return ec ? self->Close() : self->Discard();
    if (ec) {
      // A client that only closed its sending side still gets an answer that is complete.
      const bool wait = ec == asio::error::eof && self->state_ == State::kAnswering && self->exchange_ != nullptr &&
                        self->exchange_->complete();
      self->keep_alive_ = false;
      if (!wait) self->Close();
      return;
    }
    self->buffer_.commit(n);
    if (self->state_ == State::kIdle) self->ReadHeader();
    // Else it is the next request, which waits until this one is answered.
  });
}

void HttpSession::ReadHeader() {
  state_ = State::kReading;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  parser_->body_limit(options_.max_body_bytes);
  SetDeadline(options_.header_timeout);
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](ErrorCode ec, size_t) { self->OnHeader(ec); });
}

void HttpSession::OnHeader(ErrorCode ec) {
  if (state_ == State::kClosed) return;
  if (ec) return ReadFailed(ec);
  if (!HeaderIsClear()) return;
  SetDeadline(options_.body_timeout);
  const beast::string_view expect = parser_->get()[http::field::expect];
  if (expect.empty() || parser_->is_done()) return ReadBody();
  if (!beast::iequals(expect, "100-continue")) {
    return Reject(417, "INVALID_ARGUMENT", "the only expectation understood is 100-continue");
  }
  Continue();
}

// Beast refuses what contradicts itself (two lengths, a length and chunks, bare line feeds); this refuses what it would
// read one way and a proxy in front another.
bool HttpSession::HeaderIsClear() {
  const auto& request = parser_->get();
  std::string wrong;
  int code = 400;
  const beast::string_view coding = request[http::field::transfer_encoding];
  if (request.count(http::field::content_length) > 1 ||
      request[http::field::content_length].find(',') != beast::string_view::npos) {
    wrong = "Content-Length is given more than once";
  } else if (request.count(http::field::transfer_encoding) > 0 && !beast::iequals(coding, "chunked")) {
    wrong = "the only Transfer-Encoding understood is chunked";
    code = 501;
  } else if (request.count(http::field::transfer_encoding) > 0 && request.version() == 10) {
    wrong = "HTTP/1.0 has no Transfer-Encoding";
  } else if (request.count(http::field::host) > 1) {
    wrong = "Host is given more than once";
  } else if (request.target().empty() || request.target()[0] != '/') {
    wrong = "the request's target must be a path that begins with /";
  }
  if (!wrong.empty()) Reject(code, code == 501 ? "UNIMPLEMENTED" : "INVALID_ARGUMENT", wrong);
  return wrong.empty();
}

void HttpSession::Continue() {
  static const std::string kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(kContinue), [self = shared_from_this()](ErrorCode ec, size_t) {
    if (self->state_ == State::kClosed) return;
    if (ec) return self->Close();
    self->ReadBody();
  });
}

void HttpSession::ReadBody() {
  if (parser_->is_done()) return Answer();
  http::async_read_some(stream_, buffer_, *parser_,
                        [self = shared_from_this()](ErrorCode ec, size_t) { self->OnBody(ec); });
}

void HttpSession::OnBody(ErrorCode ec) {
  if (state_ == State::kClosed) return;
  if (ec) return ReadFailed(ec);
  const auto have = static_cast<int64_t>(parser_->get().body().size());
  sessions_->body_bytes += have - charged_;
  charged_ = have;
  if (sessions_->body_bytes > static_cast<int64_t>(options_.max_all_bodies_bytes)) {
    return Reject(503, "UNAVAILABLE", "too many large requests arrive at once; try again");
  }
  ReadBody();
}

void HttpSession::ReleaseBody() {
  sessions_->body_bytes -= charged_;
  charged_ = 0;
}

void HttpSession::ReadFailed(ErrorCode ec) {
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
    return Reject(431, "INVALID_ARGUMENT",
                  absl::StrCat("headers have more than ", options_.max_header_bytes, " bytes"));
  }
  if (ec == http::error::body_limit) {
    return Reject(413, "INVALID_ARGUMENT", absl::StrCat("the body has more than ", options_.max_body_bytes, " bytes"));
  }
  const bool malformed = ec.category() == http::make_error_code(http::error::bad_method).category() &&
                         ec != http::error::end_of_stream && ec != http::error::partial_message;
  if (!malformed) return Close();
  Reject(400, "INVALID_ARGUMENT", absl::StrCat("not an HTTP/1.1 request: ", ec.message()));
}

void HttpSession::Answer() {
  state_ = State::kAnswering;
  SetDeadline(absl::InfiniteDuration());
  ReleaseBody();
  http::request<http::string_body> request = parser_->release();
  parser_.reset();
  keep_alive_ = request.keep_alive();
  const HttpFraming framing{request.version(), request.method() == http::verb::head, keep_alive_};
  const std::weak_ptr<HttpSession> weak = weak_from_this();
  exchange_ = std::make_shared<HttpOutbox>(
      framing, options_.max_buffered_bytes, [sessions = sessions_] { return sessions->draining.load(); },
      [weak] {
        const std::shared_ptr<HttpSession> self = weak.lock();
        if (self != nullptr) asio::post(self->stream_.get_executor(), [self] { self->Flush(); });
      });
  auto exchange = std::make_shared<HandlerExchange>(exchange_, shared_from_this());
  if (buffer_.size() == 0) Fill();
  sessions_->dispatch(Convert(std::move(request)), std::move(exchange));
}

void HttpSession::Reject(int code, absl::string_view status, absl::string_view message) {
  ReleaseBody();
  keep_alive_ = false;
  HttpResponse response = HttpError(code, status, message);
  if (code == 503) response.headers["Retry-After"] = "1";
  writing_ = SerializeResponse(std::move(response), {});
  written_ = 0;
  WriteSome();
}

void HttpSession::Flush() {
  if (state_ != State::kAnswering || write_outstanding_ || exchange_ == nullptr) return;
  if (exchange_->overflowed()) return Close();
  writing_ = exchange_->Take();
  written_ = 0;
  if (!writing_.empty()) return WriteSome();
  if (exchange_->complete()) AnswerDone();
}

void HttpSession::WriteSome() {
  write_outstanding_ = true;
  SetDeadline(options_.write_timeout);  // of each step: a slow reader is paused, one that stands still is dropped
  stream_.async_write_some(asio::buffer(writing_.data() + written_, writing_.size() - written_),
                           [self = shared_from_this()](ErrorCode ec, size_t n) {
                             self->write_outstanding_ = false;
                             if (self->state_ == State::kClosed) return;
                             if (ec) return self->Close();
                             self->written_ += n;
                             if (self->written_ < self->writing_.size()) return self->WriteSome();
                             self->SetDeadline(absl::InfiniteDuration());
                             if (self->state_ != State::kAnswering) return self->Linger();
                             self->Flush();
                           });
}

void HttpSession::AnswerDone() {
  exchange_->Delivered();
  used_ = true;
  keep_alive_ = keep_alive_ && exchange_->keep_alive();
  exchange_.reset();
  writing_.clear();
  if (!keep_alive_ || sessions_->draining) return Linger();
  ReadNext();
}

// Closing while the client still sends would make its system throw our answer away.
void HttpSession::Linger() {
  state_ = State::kLingering;
  SetDeadline(kLingerTime);
  buffer_.consume(buffer_.size());
  stream_.EndWriting(shared_from_this());
  if (!filling_) Discard();
}

// What still comes is of no interest, nor is what it would be without TLS, which ends when something follows its goodbye.
void HttpSession::Discard() {
  stream_.socket().async_read_some(buffer_.prepare(kReadBytes), [self = shared_from_this()](ErrorCode ec, size_t) {
    if (self->state_ == State::kClosed) return;
    if (ec) return self->Close();
    self->Discard();
  });
}

void HttpSession::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  ReleaseBody();
  beast::error_code ignored;
  stream_.socket().close(ignored);
  timer_.cancel();
  if (exchange_ != nullptr) std::exchange(exchange_, nullptr)->Gone();
  MutexLock lock(&sessions_->mu);
  sessions_->open.erase(this);
  if (const auto found = sessions_->per_address.find(address_); --found->second == 0) {
    sessions_->per_address.erase(found);
  }
  if (sessions_->open.empty()) sessions_->none_left.SignalAll();
}

}  // namespace baton::rpc
