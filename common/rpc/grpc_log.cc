#include "common/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/logging.h"
#include "common/mutex.h"

namespace baton::rpc {
namespace {

class LineLimit {
 public:
  // Whether another line from there is due; `left_out`: how many were not since the last one.
  bool Take(const char* file, int line, int64_t* left_out) {
    MutexLock lock(&mu_);
    Place& place = places_[{file, line}];
    const absl::Time now = absl::Now();
    if (now - place.since >= absl::Minutes(1)) {
      place.since = now;
      place.lines = 0;
    }
    if (++place.lines > kMaxGrpcLinesPerMinute) {
      ++place.left_out;
      return false;
    }
    *left_out = std::exchange(place.left_out, 0);
    return true;
  }

 private:
  struct Place {
    absl::Time since = absl::InfinitePast();
    int lines = 0;
    int64_t left_out = 0;
  };
  Mutex mu_;
  std::map<std::pair<const char*, int>, Place> places_ ABSL_GUARDED_BY(mu_);  // literals of gRPC's: a few hundred at most
};

void Write(gpr_log_func_args* args) {
  static LineLimit& limit = *new LineLimit();  // threads of gRPC may outlive everything
  int64_t left_out = 0;
  if (!limit.Take(args->file, args->line, &left_out)) return;
  absl::string_view file = args->file;
  file.remove_prefix(file.rfind('/') == absl::string_view::npos ? 0 : file.rfind('/') + 1);
  absl::string_view message = args->message;
  message = message.substr(0, message.find(" value="));
  const LogLevel level = args->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kWarn
                         : args->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                   : LogLevel::kDebug;
  const std::string from = absl::StrCat(file, ":", args->line);
  if (left_out > 0) {
    Log(level, "gRPC says", {{"from", from}, {"message", message}, {"left_out", left_out}});
  } else {
    Log(level, "gRPC says", {{"from", from}, {"message", message}});
  }
}

}  // namespace

void TakeGrpcLogs() {
  gpr_log_verbosity_init();  // errors, unless GRPC_VERBOSITY says otherwise; gRPC itself may not have started yet
  gpr_set_log_function(Write);
}

}  // namespace baton::rpc
