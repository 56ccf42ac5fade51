// A file that is read at given offsets and never mapped.
//
// Why not mmap: a mapped file that somebody truncates raises SIGBUS in whatever thread touches it next, and a file that
// is replaced while mapped changes under the reader. With positioned reads both are errors that a caller can report.
// Model weights are copied into a backend's own layout anyway, so mapping would save nothing.
//
// Thread contract: all const methods may be called from several threads at once.
#ifndef BATON_COMMON_RANDOM_ACCESS_FILE_H_
#define BATON_COMMON_RANDOM_ACCESS_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

class RandomAccessFile {
 public:
  // A regular file. NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT (a folder, a device), each naming the path.
  static absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(absl::string_view path);
  // Bytes in memory under a name for messages; for tests and fuzzing.
  static std::unique_ptr<RandomAccessFile> OfBytes(std::string bytes, absl::string_view name);

  virtual ~RandomAccessFile() = default;

  // Size when opened.
  virtual uint64_t size() const = 0;
  virtual const std::string& name() const = 0;
  // Fills all of `dst` from `offset` on. DATA_LOSS when the file ends before (it was truncated since it was opened, or
  // the caller asked past size()); UNAVAILABLE when the system reports a read error. `dst` is undefined after an error.
  virtual absl::Status Read(uint64_t offset, std::span<std::byte> dst) const = 0;
  // FAILED_PRECONDITION when size or modification time differ from those at Open: what was read may be a mixture.
  virtual absl::Status CheckUnchanged() const = 0;
};

}  // namespace baton

#endif  // BATON_COMMON_RANDOM_ACCESS_FILE_H_
