// What is wrong with a certificate, its key and its authority, found before whoever shows it reads them: gRPC itself would
// start and fail every connection.
//
// Thread contract: plain functions. Paths are of PEM files. Errors name the file: NOT_FOUND when it cannot be read, else
// FAILED_PRECONDITION.
#ifndef BATON_COMMON_RPC_CERTIFICATE_FILES_H_
#define BATON_COMMON_RPC_CERTIFICATE_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton::rpc {

inline constexpr absl::Duration kCertificateEndsSoon = absl::Hours(7 * 24);

struct CertificateInfo {
  std::vector<std::string> dns_names;
  absl::Time not_after;
};

// The texts of the files.
struct CertificatePair {
  std::string cert, key;
  CertificateInfo info;
};

// A certificate (first of its file, which may go on with those that signed it) that is valid now, and its key.
absl::StatusOr<CertificatePair> ReadCertificatePair(const std::string& cert, const std::string& key);

// And that `ca` signed it.
absl::StatusOr<CertificateInfo> CheckCertificateFiles(const std::string& cert, const std::string& key,
                                                      const std::string& ca);

// A line in the log when that is soon. `renew`: how.
void WarnBeforeItEnds(const CertificateInfo& info, const std::string& cert, absl::string_view renew);

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_CERTIFICATE_FILES_H_
