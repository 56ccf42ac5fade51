// A socket that sends what a test says, byte for byte, and a reader of answers.
#ifndef BATON_TESTS_COMMON_RPC_RAW_HTTP_H_
#define BATON_TESTS_COMMON_RPC_RAW_HTTP_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace baton::testing {

struct HttpReply {
  int status = 0;                              // 0: none came
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  std::vector<std::string> chunks;
  bool complete = false;  // as its framing says
};

class RawHttp {
 public:
  explicit RawHttp(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    timeval timeout{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  }
  virtual ~RawHttp() { Close(); }
  RawHttp(const RawHttp&) = delete;
  RawHttp& operator=(const RawHttp&) = delete;

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void ShutdownSend() { shutdown(fd_, SHUT_WR); }
  int fd() const { return fd_; }

  void Send(const std::string& text) {
    for (size_t done = 0; done < text.size();) {
      const ssize_t n = Write(text.data() + done, text.size() - done);
      if (n <= 0) return;  // the server hung up, which some tests want
      done += static_cast<size_t>(n);
    }
  }
  // Until the server closes.
  std::string ReadAll() {
    while (More()) {
    }
    return std::exchange(buffer_, {});
  }
  // Until `text` was seen.
  std::string ReadUntil(const std::string& text) {
    size_t at;
    while ((at = buffer_.find(text)) == std::string::npos && More()) {
    }
    if (at == std::string::npos) return std::exchange(buffer_, {});
    return Take(at + text.size());
  }

  // Waits until `text` came, and takes nothing. False: the connection ended first.
  bool Await(const std::string& text) {
    while (buffer_.find(text) == std::string::npos) {
      if (!More()) return false;
    }
    return true;
  }

  // One answer, by its Content-Length, its chunks, or the end of the connection.
  HttpReply ReadReply(bool head = false) {
    HttpReply reply;
    const std::string top = ReadUntil("\r\n\r\n");
    if (top.size() < 12 || top.compare(0, 5, "HTTP/") != 0) return reply;
    reply.status = std::atoi(top.c_str() + 9);
    for (size_t begin = top.find("\r\n") + 2; begin + 2 < top.size();) {
      const size_t end = top.find("\r\n", begin);
      const std::string line = top.substr(begin, end - begin);
      const size_t colon = line.find(": ");
      if (colon != std::string::npos) {
        reply.headers[absl::AsciiStrToLower(line.substr(0, colon))] = line.substr(colon + 2);
      }
      begin = end + 2;
    }
    if (head) {
      reply.complete = true;
    } else if (reply.headers.count("content-length") > 0) {
      const size_t length = std::strtoul(reply.headers["content-length"].c_str(), nullptr, 10);
      while (buffer_.size() < length && More()) {
      }
      reply.complete = buffer_.size() >= length;
      reply.body = Take(std::min(length, buffer_.size()));
    } else if (reply.headers.count("transfer-encoding") > 0) {
      ReadChunks(&reply);
    } else {
      reply.body = ReadAll();
      reply.complete = true;
    }
    return reply;
  }

  // `headers`: "Name: value\r\n" each.
  HttpReply Ask(const std::string& method, const std::string& target, const std::string& body = "",
                const std::string& headers = "") {
    SendRequest(method, target, body, headers);
    return ReadReply(method == "HEAD");
  }
  void SendRequest(const std::string& method, const std::string& target, const std::string& body = "",
                   const std::string& headers = "") {
    std::string text = absl::StrCat(method, " ", target, " HTTP/1.1\r\nHost: test\r\n", headers);
    if (!body.empty() || method == "POST") {
      absl::StrAppend(&text, "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n");
    }
    Send(absl::StrCat(text, "\r\n", body));
  }

 protected:
  // As send and recv.
  virtual ssize_t Write(const char* bytes, size_t size) { return send(fd_, bytes, size, MSG_NOSIGNAL); }
  virtual ssize_t Read(char* bytes, size_t size) { return recv(fd_, bytes, size, 0); }

 private:
  bool More() {
    char bytes[4096];
    const ssize_t n = Read(bytes, sizeof(bytes));
    if (n > 0) buffer_.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }
  std::string Take(size_t n) {
    std::string out = buffer_.substr(0, n);
    buffer_.erase(0, n);
    return out;
  }
  void ReadChunks(HttpReply* reply) {
    while (true) {
      const std::string line = ReadUntil("\r\n");
      if (line.size() < 3) return;
      const size_t length = std::strtoul(line.c_str(), nullptr, 16);
      while (buffer_.size() < length + 2 && More()) {
      }
      if (buffer_.size() < length + 2) return;
      const std::string chunk = Take(length + 2);
      if (length == 0) {
        reply->complete = true;
        return;
      }
      reply->chunks.push_back(chunk.substr(0, length));
      reply->body += reply->chunks.back();
    }
  }

  int fd_;
  std::string buffer_;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_COMMON_RPC_RAW_HTTP_H_
