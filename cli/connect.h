// Which generator a command talks to, by its settings.
#ifndef BATON_CLI_CONNECT_H_
#define BATON_CLI_CONNECT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/generator.h"
#include "cli/output.h"
#include "proto/config.pb.h"

namespace baton::cli {

// Loads the model here when `local`, showing progress on `out`; otherwise a client of the router, which is not asked
// yet.
absl::StatusOr<std::unique_ptr<Generator>> Connect(const v1::Config& config, bool local, absl::Duration timeout,
                                                   const Output& out);

// Seconds as given on the command line; 0 is none. INVALID_ARGUMENT for negative, NaN or absurd values.
absl::StatusOr<absl::Duration> ParseTimeout(double seconds);

}  // namespace baton::cli

#endif  // BATON_CLI_CONNECT_H_
