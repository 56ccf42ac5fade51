#include "router/api_keys.h"

#include <openssl/sha.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/logging.h"
#include "common/read_file.h"
#include "common/status.h"

namespace baton::router {
namespace {

constexpr size_t kMaxFileBytes = 4 << 20;
constexpr size_t kMinKey = 16, kMaxKey = 256, kMaxTenant = 64;
constexpr absl::string_view kDigestPrefix = "sha256:";

// Looked up by digest, so that how long a look-up takes says nothing of the keys.
std::string DigestOf(absl::string_view key) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const uint8_t*>(key.data()), key.size(), reinterpret_cast<uint8_t*>(digest.data()));
  return digest;
}

// The first column: a key, or its digest. An error does not repeat it.
absl::StatusOr<std::string> ReadKey(absl::string_view text) {
  if (absl::ConsumePrefix(&text, kDigestPrefix)) {
    const bool hex = std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isxdigit(c); });
    if (hex && text.size() == 2 * SHA256_DIGEST_LENGTH) return absl::HexStringToBytes(text);
    return absl::InvalidArgumentError("sha256: is followed by the key's digest, 64 hexadecimal digits");
  }
  if (text.size() < kMinKey || text.size() > kMaxKey) return absl::InvalidArgumentError("a key has 16 to 256 characters");
  if (!std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; })) {
    return absl::InvalidArgumentError("a key has printable ASCII characters only");
  }
  return DigestOf(text);
}

// False: one is not known.
bool ReadScopes(absl::string_view text, Caller* caller) {
  for (const absl::string_view scope : absl::StrSplit(text, ',')) {
    if (scope == "admin") {
      caller->admin = true;
    } else if (scope == "priority") {
      caller->priority = true;
    } else {
      return false;
    }
  }
  return true;
}

bool IsTenant(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxTenant && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
}

}  // namespace

absl::StatusOr<std::map<std::string, Caller>> ApiKeys::Parse(absl::string_view text) {
  std::map<std::string, Caller> callers;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const auto wrong = [number](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", what));
    };
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (parts.size() != 2 && parts.size() != 3) return wrong("is not \"KEY TENANT\" or \"KEY TENANT SCOPES\"");
    absl::StatusOr<std::string> digest = ReadKey(parts[0]);
    if (!digest.ok()) return wrong(digest.status().message());
    Caller caller;
    caller.tenant = std::string(parts[1]);
    if (!IsTenant(parts[1])) return wrong("a tenant is named by 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'");
    if (parts.size() == 3 && !ReadScopes(parts[2], &caller)) return wrong("scopes are admin, priority, or admin,priority");
    if (!callers.try_emplace(*std::move(digest), std::move(caller)).second) return wrong("that key was given before");
  }
  if (callers.empty()) return absl::InvalidArgumentError("no key is given; write \"KEY TENANT\", one to a line");
  return callers;
}

ApiKeys::Version ApiKeys::VersionOf(const std::string& path) {
  struct stat s = {};
  if (stat(path.c_str(), &s) != 0) return {};
  return {s.st_mtim.tv_sec * 1'000'000'000 + s.st_mtim.tv_nsec, static_cast<int64_t>(s.st_ino), s.st_size};
}

absl::Status ApiKeys::Load(const std::string& path) {
  const Version version = VersionOf(path);  // before it is read: what is written meanwhile is read again
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxFileBytes);
  if (!text.ok()) {
    return absl::Status(text.status().code(), absl::StrCat("api_keys_file: ", text.status().message(),
                                                           " It has a line \"KEY TENANT\" for each key."));
  }
  absl::StatusOr<std::map<std::string, Caller>> callers = Parse(*text);
  MutexLock lock(&mu_);
  version_ = version;
  if (!callers.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("api_keys_file ", path, ": ", callers.status().message()));
  }
  path_ = path;
  callers_ = *std::move(callers);
  return absl::OkStatus();
}

void ApiKeys::ReloadIfChanged() {
  if (path_.empty()) return;
  const Version now = VersionOf(path_);
  {
    MutexLock lock(&mu_);
    if (now == version_) return;
    version_ = now;  // a file that is away is said once
  }
  if (absl::Status s = Load(path_); !s.ok()) {
    LogError("the API keys cannot be read again; those known so far stay", {{"error", s.message()}});
  } else {
    LogInfo("API keys read again");
  }
}

absl::StatusOr<Caller> ApiKeys::CallerOf(absl::string_view authorization) const {
  if (path_.empty()) return Caller{.tenant = "", .admin = true, .priority = true};
  const size_t space = authorization.find(' ');
  // The scheme's name in any case: RFC 9110, 11.1.
  if (space == absl::string_view::npos || !absl::EqualsIgnoreCase(authorization.substr(0, space), "bearer")) {
    return WithReason(absl::UnauthenticatedError("no API key was sent; send Authorization: Bearer KEY"), "NO_API_KEY");
  }
  const std::string digest = DigestOf(absl::StripAsciiWhitespace(authorization.substr(space)));
  MutexLock lock(&mu_);
  const auto found = callers_.find(digest);
  if (found != callers_.end()) return found->second;
  return WithReason(absl::UnauthenticatedError("that API key is not known here"), "INVALID_API_KEY");
}

}  // namespace baton::router
