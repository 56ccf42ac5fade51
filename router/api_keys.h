// Who may ask, for which tenant, and what else: keys as OpenAI's clients send them, "Authorization: Bearer KEY" (RFC 6750), by HTTP
// header or gRPC metadata. A tenant has its own rate, concurrency and prefix cache.
#ifndef BATON_ROUTER_API_KEYS_H_
#define BATON_ROUTER_API_KEYS_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace baton::router {

// Who asks, and what he may besides asking.
struct Caller {
  std::string tenant;
  bool admin = false;     // see the cluster and change it, through the console
  bool priority = false;  // be served before others (Priority high)
};

// Thread-safe. Only digests of the keys are kept.
class ApiKeys {
 public:
  // Without a file everybody may all, as the tenant "".
  ApiKeys() = default;
  // The file has lines "KEY TENANT" or "KEY TENANT SCOPES"; empty ones and those that begin with # are skipped. A key has
  // 16 to 256 printable characters, or is written as "sha256:" and the 64 hexadecimal digits of its SHA-256; a tenant has 1 to
  // 64 of [A-Za-z0-9._-], and several keys may be of one. Scopes are "admin" and "priority", separated by a comma; a key without
  // them may ask, and nothing else. Errors of ReadSmallFile: it cannot be read. INVALID_ARGUMENT: it holds no key, or
  // something that is not so, by line number (no error repeats a key). What is returned is by the key's SHA-256.
  static absl::StatusOr<std::map<std::string, Caller>> Parse(absl::string_view text);
  absl::Status Load(const std::string& path);

  // Reads the file again when it has changed. One that is wrong is left out, with an error in the log: the keys that were
  // known stay. To be called every now and then.
  void ReloadIfChanged();

  // Whose key "Bearer KEY" is. UNAUTHENTICATED, with reason NO_API_KEY or INVALID_API_KEY.
  absl::StatusOr<Caller> CallerOf(absl::string_view authorization) const;

 private:
  struct Version {  // of the file: what changes when somebody writes it
    int64_t mtime_ns = 0, inode = 0, size = 0;
    bool operator==(const Version&) const = default;
  };
  static Version VersionOf(const std::string& path);

  std::string path_;  // empty: no keys are asked for
  mutable Mutex mu_;
  Version version_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Caller> callers_ ABSL_GUARDED_BY(mu_);  // by the key's SHA-256
};

}  // namespace baton::router

#endif  // BATON_ROUTER_API_KEYS_H_
