#include "kvtransfer/ucx_log.h"

#include <ucs/debug/log_def.h>

#include <cstdarg>
#include <cstdio>

namespace baton::kvtransfer {
namespace {

ucs_log_func_rc_t LogToStderr(const char* file, unsigned line, const char* function, ucs_log_level_t level,
                              const ucs_log_component_config_t* component, const char* format, va_list args) {
  if (level > UCS_LOG_LEVEL_WARN) return UCS_LOG_FUNC_RC_CONTINUE;  // asked for by UCX_LOG_LEVEL: as UCX likes it
  char text[1024];
  vsnprintf(text, sizeof(text), format, args);
  fprintf(stderr, "ucx %s: %s\n", level <= UCS_LOG_LEVEL_ERROR ? "error" : "warning", text);
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

void SendUcxLogToStderr() {
  [[maybe_unused]] static const bool sent = (ucs_log_push_handler(&LogToStderr), true);
}

}  // namespace baton::kvtransfer
