// What is wrong with a certificate, its key and its authority, found before gRPC reads them: gRPC itself would start
// and fail every connection.
#ifndef BATON_COMMON_RPC_CERTIFICATE_FILES_H_
#define BATON_COMMON_RPC_CERTIFICATE_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::rpc {

struct CertificateInfo {
  std::vector<std::string> dns_names;
  absl::Time not_after;
};

// Paths of PEM files. Errors as Security::FromConfig, except for roles.
absl::StatusOr<CertificateInfo> CheckCertificateFiles(const std::string& cert, const std::string& key,
                                                      const std::string& ca);

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_CERTIFICATE_FILES_H_
