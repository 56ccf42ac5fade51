// The files of web/, as embed.cc put them into the binary.
#ifndef BATON_ROUTER_CONSOLE_WEB_FILES_H_
#define BATON_ROUTER_CONSOLE_WEB_FILES_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace baton::router::console {

struct WebFile {
  absl::string_view name;
  absl::string_view content;  // lives as long as the process
};

std::vector<WebFile> WebFiles();

}  // namespace baton::router::console

#endif  // BATON_ROUTER_CONSOLE_WEB_FILES_H_
