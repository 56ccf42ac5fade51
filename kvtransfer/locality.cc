#include "kvtransfer/locality.h"

#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton::kvtransfer {

const std::string& NetworkLocality() {
  static const std::string locality = [] {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    char ns[64] = {};
    const ssize_t n = readlink("/proc/self/ns/net", ns, sizeof(ns) - 1);
    return absl::StrCat(boot, "/", n > 0 ? absl::string_view(ns, static_cast<size_t>(n)) : "");
  }();
  return locality;
}

bool IsReachable(const v1::Endpoint& endpoint) {
  return endpoint.locality().empty() || endpoint.locality() == NetworkLocality();
}

}  // namespace baton::kvtransfer
