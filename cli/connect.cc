#include "cli/connect.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/loading_display.h"
#include "cli/local_generator.h"
#include "cli/remote_generator.h"

namespace baton::cli {
absl::StatusOr<std::unique_ptr<Generator>> Connect(const v1::Config& config, bool local, absl::Duration timeout,
                                                   const Output& out) {
  if (!local) {
    absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = RouterChannel(config);
    if (!channel.ok()) return channel.status();
    return std::make_unique<RemoteGenerator>(*std::move(channel), config.router(), timeout);
  }
  LoadingDisplay display(out);
  absl::StatusOr<std::unique_ptr<LocalGenerator>> loaded = LocalGenerator::Load(
      config, timeout, [&display](absl::string_view phase, double fraction) { display.Show(phase, fraction); });
  if (!loaded.ok()) return loaded.status();
  return *std::move(loaded);
}

absl::StatusOr<absl::Duration> ParseTimeout(double seconds) {
  if (std::isnan(seconds) || seconds < 0 || seconds > 1e7) {
    return absl::InvalidArgumentError(
        absl::StrCat("--timeout is ", seconds, "; expected seconds, from 0 (the router's default) to 10000000"));
  }
  return seconds == 0 ? absl::InfiniteDuration() : absl::Seconds(seconds);
}

}  // namespace baton::cli
