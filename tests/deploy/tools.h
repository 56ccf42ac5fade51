// Programs that the tests of deploy/ run, and pages that they read.
#ifndef BATON_TESTS_DEPLOY_TOOLS_H_
#define BATON_TESTS_DEPLOY_TOOLS_H_

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace baton::deploy {

namespace fs = std::filesystem;

inline std::string ReadFile(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline fs::path CacheFolder() {
  if (const char* cache = getenv("BATON_CACHE"); cache != nullptr && *cache != '\0') return cache;
  return fs::path(getenv("HOME")) / ".cache/baton";
}

// The path of a program that scripts/setup --tests has unpacked.
inline std::string Tool(const std::string& path) {
  const fs::path tool = CacheFolder() / "tools" / path;
  EXPECT_TRUE(fs::exists(tool)) << tool << " is missing; run scripts/setup --tests";
  return tool.string();
}

struct ShellResult {
  int exit_code;
  std::string output;
};
inline ShellResult Shell(const std::string& command) {
  ShellResult run{-1, ""};
  FILE* pipe = popen(absl::StrCat(command, " 2>&1").c_str(), "r");
  if (pipe == nullptr) return run;
  char buffer[4096];
  while (size_t n = fread(buffer, 1, sizeof(buffer), pipe)) run.output.append(buffer, n);
  run.exit_code = WEXITSTATUS(pclose(pipe));
  return run;
}
inline void ExpectPasses(const std::string& command) {
  const ShellResult run = Shell(command);
  EXPECT_EQ(run.exit_code, 0) << command << "\n" << run.output;
}

inline std::string HttpGet(const std::string& address, const std::string& path) {
  namespace beast = boost::beast;
  const std::vector<std::string> parts = absl::StrSplit(address, ':');
  boost::asio::io_context context;
  beast::tcp_stream stream(context);
  stream.connect(boost::asio::ip::tcp::resolver(context).resolve(parts[0], parts[1]));
  beast::http::request<beast::http::empty_body> request(beast::http::verb::get, path, 11);
  request.set(beast::http::field::host, address);
  beast::http::write(stream, request);
  beast::flat_buffer buffer;
  beast::http::response<beast::http::string_body> response;
  beast::http::read(stream, buffer, response);
  EXPECT_EQ(response.result_int(), 200u) << address << path;
  return response.body();
}

}  // namespace baton::deploy

#endif  // BATON_TESTS_DEPLOY_TOOLS_H_
