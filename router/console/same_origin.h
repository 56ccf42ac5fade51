// Whether a request that changes something was sent by the console's own page.
#ifndef BATON_ROUTER_CONSOLE_SAME_ORIGIN_H_
#define BATON_ROUTER_CONSOLE_SAME_ORIGIN_H_

#include "absl/status/status.h"
#include "common/rpc/http_message.h"

namespace baton::router::console {

// PERMISSION_DENIED, with the reason, unless all of this holds: the header X-Baton-Console, which a page of another
// origin cannot send without being allowed to; JSON; an Origin that is this host; nothing in Sec-Fetch-Site that says
// otherwise; and a Host that is an address or localhost, for any other name can be made to lead here by who owns it.
absl::Status CheckSameOrigin(const rpc::HttpRequest& request);

}  // namespace baton::router::console

#endif  // BATON_ROUTER_CONSOLE_SAME_ORIGIN_H_
