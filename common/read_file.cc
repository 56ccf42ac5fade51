#include "common/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

absl::Status Errno(int error, const std::string& path) {
  const std::string message = absl::StrCat("Cannot read ", path, ": ", std::strerror(error), ".");
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == EACCES) return absl::PermissionDeniedError(message);
  return absl::UnknownError(message);
}

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  // Non-blocking, so that opening a pipe nobody writes to does not hang.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Errno(errno, path);
  struct stat info;
  absl::Status status;
  std::string text;
  if (::fstat(fd, &info) != 0) {
    status = Errno(errno, path);
  } else if (!S_ISREG(info.st_mode)) {
    status = absl::InvalidArgumentError(absl::StrCat("Cannot read ", path, ": it is not a regular file."));
  }
  char buffer[1 << 16];
  while (status.ok()) {
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n == 0) break;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      status = Errno(errno, path);
      break;
    }
    text.append(buffer, static_cast<size_t>(n));
    // A model file given by mistake is recognised by its first bytes; the rest is not wanted.
    if (text.size() >= 4 && text.compare(0, 4, "GGUF") == 0) break;
    if (text.size() > max_bytes) {
      status = absl::InvalidArgumentError(
          absl::StrCat("Cannot read ", path, ": it is larger than ", max_bytes, " bytes and not a GGUF file."));
    }
  }
  ::close(fd);
  if (!status.ok()) return status;
  return text;
}

}  // namespace baton
