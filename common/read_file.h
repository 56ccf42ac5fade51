// Reads a small text file whole.
#ifndef BATON_COMMON_READ_FILE_H_
#define BATON_COMMON_READ_FILE_H_

#include <string>

#include "absl/status/statusor.h"

namespace baton {

// Of a file that begins as a GGUF model only the beginning. NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (a folder, or larger than `max_bytes`) or UNKNOWN, naming the path.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

}  // namespace baton

#endif  // BATON_COMMON_READ_FILE_H_
