// UCX 1.13.1 ends the process (SIGSEGV) when a peer dies at the moment at which its shared memory is being attached: that fails,
// the connection's other lanes are still null, and when the next one fails, ucp_ep_is_local_connected looks into each.
//
// Debian links libucp's own calls through the dynamic linker, which looks into the executable first. So this stands before two of
// its functions: a lane that is null is no lane that is being wired up, and a connection that has one is not connected, upon which
// UCX fails the connection as it does otherwise. Nothing of UCX's layout is known here. (ADR 8)
#include <dlfcn.h>
#include <ucp/api/ucp.h>

#include "kvtransfer/ucx_runtime.h"

namespace {

thread_local bool saw_null_lane = false;

template <class Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int ucp_wireup_ep_test(void* lane) {
  static auto* const real = Real<int(void*)>("ucp_wireup_ep_test");
  if (lane != nullptr) return real(lane);
  saw_null_lane = true;
  return 0;
}

int ucp_ep_is_local_connected(ucp_ep_h ep) {
  static auto* const real = Real<int(ucp_ep_h)>("ucp_ep_is_local_connected");
  saw_null_lane = false;
  const int connected = real(ep);
  return connected && !saw_null_lane;
}

}  // extern "C"

namespace baton::kvtransfer {

bool UcxSurvivesNullLanes() {
  // What libucp calls. One that has no such symbols (a newer one may hide them) does not call ours.
  return dlsym(RTLD_DEFAULT, "ucp_wireup_ep_test") == reinterpret_cast<void*>(&ucp_wireup_ep_test) &&
         dlsym(RTLD_NEXT, "ucp_wireup_ep_test") != nullptr;
}

}  // namespace baton::kvtransfer
