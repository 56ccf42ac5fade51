#include "common/random_access_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

absl::Status PastEnd(const std::string& name, uint64_t offset, uint64_t size, uint64_t file_size) {
  return absl::DataLossError(absl::StrCat(name, ": wanted ", size, " bytes at offset ", offset,
                                          ", but the file ends before (it had ", file_size,
                                          " bytes when opened). It is truncated or being rewritten; fetch it again."));
}

class PosixFile : public RandomAccessFile {
 public:
  PosixFile(int fd, std::string name, const struct stat& st)
      : fd_(fd), name_(std::move(name)), size_(static_cast<uint64_t>(st.st_size)), mtime_(st.st_mtim) {}
  ~PosixFile() override { close(fd_); }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  uint64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }

  absl::Status Read(uint64_t offset, std::span<std::byte> dst) const override {
    if (offset > size_ || dst.size() > size_ - offset) return PastEnd(name_, offset, dst.size(), size_);
    constexpr size_t kMaxRead = size_t{1} << 30;  // Linux reads at most 2 GiB a call
    size_t done = 0;
    while (done < dst.size()) {
      const ssize_t n =
          pread(fd_, dst.data() + done, std::min(dst.size() - done, kMaxRead), static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        return absl::UnavailableError(absl::StrCat(name_, ": reading at offset ", offset + done, ": ", strerror(errno),
                                                   ". Check the disk or network share."));
      }
      if (n == 0) return PastEnd(name_, offset, dst.size(), size_);
      done += static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }

  absl::Status CheckUnchanged() const override {
    struct stat st;
    if (fstat(fd_, &st) != 0) {
      return absl::UnavailableError(absl::StrCat(name_, ": fstat: ", strerror(errno)));
    }
    if (static_cast<uint64_t>(st.st_size) != size_ || st.st_mtim.tv_sec != mtime_.tv_sec ||
        st.st_mtim.tv_nsec != mtime_.tv_nsec) {
      return absl::FailedPreconditionError(absl::StrCat(name_, ": changed while being read (", size_, " bytes before, ",
                                                        st.st_size, " now). Start again when the writer is done."));
    }
    return absl::OkStatus();
  }

 private:
  const int fd_;
  const std::string name_;
  const uint64_t size_;
  const struct timespec mtime_;
};

class BytesFile : public RandomAccessFile {
 public:
  BytesFile(std::string bytes, absl::string_view name) : bytes_(std::move(bytes)), name_(name) {}

  uint64_t size() const override { return bytes_.size(); }
  const std::string& name() const override { return name_; }
  absl::Status Read(uint64_t offset, std::span<std::byte> dst) const override {
    if (offset > bytes_.size() || dst.size() > bytes_.size() - offset) {
      return PastEnd(name_, offset, dst.size(), bytes_.size());
    }
    if (!dst.empty()) std::memcpy(dst.data(), bytes_.data() + offset, dst.size());
    return absl::OkStatus();
  }
  absl::Status CheckUnchanged() const override { return absl::OkStatus(); }

 private:
  const std::string bytes_;
  const std::string name_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RandomAccessFile>> RandomAccessFile::Open(absl::string_view path) {
  std::string name(path);
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it has no effect on regular files.
  const int fd = open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const std::string message = absl::StrCat(name, ": ", strerror(errno), ". Check the path.");
    if (errno == ENOENT || errno == ENOTDIR) return absl::NotFoundError(message);
    if (errno == EACCES || errno == EPERM) return absl::PermissionDeniedError(message);
    return absl::UnavailableError(message);
  }
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(name, ": not a regular file. Give the path of the file itself."));
  }
  return std::unique_ptr<RandomAccessFile>(std::make_unique<PosixFile>(fd, std::move(name), st));
}

std::unique_ptr<RandomAccessFile> RandomAccessFile::OfBytes(std::string bytes, absl::string_view name) {
  return std::make_unique<BytesFile>(std::move(bytes), name);
}

}  // namespace baton
