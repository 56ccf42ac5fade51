#include "kvtransfer/ucx_memory.h"

#include <ucp/api/ucp.h>

#include "absl/strings/str_cat.h"
#include "kvtransfer/ucx_log.h"

namespace baton::kvtransfer {
namespace {

absl::Status Failed(absl::string_view what, ucs_status_t status) {
  return absl::UnavailableError(absl::StrCat("asking UCX what memory it has: ", what, ": ", ucs_status_string(status)));
}

}  // namespace

absl::StatusOr<UcxMemory> QueryUcxMemory() {
  SendUcxLogToStderr();
  UcxMemory memory;
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  memory.version = absl::StrCat(major, ".", minor, ".", release);
  ucp_config_t* config = nullptr;
  if (const ucs_status_t s = ucp_config_read(nullptr, nullptr, &config); s != UCS_OK) return Failed("configuration", s);
  // Of its own, whatever UCX_TLS and the transport's context leave out: memory comes with transports (cuda_copy).
  if (const ucs_status_t s = ucp_config_modify(config, "TLS", "all"); s != UCS_OK) {
    ucp_config_release(config);
    return Failed("transports", s);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM;
  ucp_context_h context = nullptr;
  const ucs_status_t made = ucp_init(&params, config, &context);
  ucp_config_release(config);
  if (made != UCS_OK) return Failed("a context", made);
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  const ucs_status_t told = ucp_context_query(context, &attributes);
  ucp_cleanup(context);
  if (told != UCS_OK) return Failed("its context", told);
  memory.cuda = (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
  return memory;
}

}  // namespace baton::kvtransfer
