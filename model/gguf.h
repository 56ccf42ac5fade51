// Reader of GGUF, the file format of llama.cpp's models: metadata, then tensor descriptions, then tensor bytes.
//
// The file is hostile until proved otherwise: every count, length, product, offset and alignment is checked before it
// is used, sizes are bounded by the bytes that the file really has before anything is allocated, and whatever does not
// fit is an INVALID_ARGUMENT that names the offset. Versions 2 and 3, little-endian.
//
// Thread contract: immutable after Open; all const methods may be called from several threads at once.
// Ownership: string views and spans that getters return live as long as the GgufFile.
//
// Source: the GGUF specification (docs/gguf.md of the ggml repository).
#ifndef BATON_MODEL_GGUF_H_
#define BATON_MODEL_GGUF_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/random_access_file.h"
#include "kernels/dtype.h"

namespace baton::model {

// Numbers as in the file.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
absl::string_view GgufTypeName(GgufType type);

// Elements of one type, never arrays again.
struct GgufArray {
  GgufType type = GgufType::kUint8;
  uint64_t size = 0;                       // elements
  absl::string_view bytes;                 // as in the file; empty for strings
  std::vector<absl::string_view> strings;  // for kString
};

struct GgufValue {
  GgufType type = GgufType::kUint8;
  std::variant<uint64_t, int64_t, double, bool, absl::string_view, GgufArray> value;
};

struct GgufMetadata {
  absl::string_view key;
  GgufValue value;
};

struct GgufTensor {
  absl::string_view name;
  kernels::DType dtype = kernels::DType::kF32;
  std::vector<int64_t> dims;  // 1 to 4; dims[0] runs fastest: a matrix of R outputs and C inputs is {C, R}
  uint64_t file_offset = 0;   // of the first byte, from the start of the file
  uint64_t num_elements = 0;
  uint64_t num_bytes = 0;
};

class GgufFile {
 public:
  static constexpr uint64_t kDefaultAlignment = 32;
  static constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
  static constexpr uint64_t kMaxKeyBytes = 65535;
  static constexpr uint64_t kMaxTensorNameBytes = 255;
  // Metadata of real models is some MB (a vocabulary of 262,144 tokens: 6.5 MB).
  static constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 30;

  // Reads the header. NOT_FOUND, PERMISSION_DENIED: the path. INVALID_ARGUMENT: not GGUF, damaged or hostile.
  // UNIMPLEMENTED: a version, byte order or tensor type that Baton does not read.
  static absl::StatusOr<GgufFile> Open(absl::string_view path);
  static absl::StatusOr<GgufFile> Parse(std::unique_ptr<RandomAccessFile> file);

  GgufFile(GgufFile&&) = default;
  GgufFile& operator=(GgufFile&&) = default;

  uint32_t version() const { return version_; }
  uint64_t alignment() const { return alignment_; }
  uint64_t file_bytes() const { return file_->size(); }
  const std::string& name() const { return file_->name(); }

  // In file order.
  std::span<const GgufMetadata> metadata() const { return metadata_; }
  std::span<const GgufTensor> tensors() const { return tensors_; }

  // Null when absent.
  const GgufValue* Find(absl::string_view key) const;
  const GgufTensor* FindTensor(absl::string_view name) const;
  bool Has(absl::string_view key) const { return Find(key) != nullptr; }

  // Getters: NOT_FOUND when the key is absent, INVALID_ARGUMENT when its type does not fit; both name the key.
  // Integers of any width and sign convert when the value fits; floats are float32 or float64.
  absl::StatusOr<uint64_t> GetUint(absl::string_view key) const;
  absl::StatusOr<int64_t> GetInt(absl::string_view key) const;
  absl::StatusOr<double> GetFloat(absl::string_view key) const;
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  absl::StatusOr<absl::string_view> GetString(absl::string_view key) const;
  absl::StatusOr<std::span<const absl::string_view>> GetStrings(absl::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetInts(absl::string_view key) const;  // array of any integer type
  absl::StatusOr<std::vector<float>> GetFloats(absl::string_view key) const;  // array of float32
  absl::StatusOr<std::vector<bool>> GetBools(absl::string_view key) const;

  // Reads tensor bytes [offset, offset + dst.size()), in the file's format. DATA_LOSS when the file was truncated
  // since.
  absl::Status ReadTensor(const GgufTensor& tensor, uint64_t offset, std::span<std::byte> dst) const;
  // FAILED_PRECONDITION when the file was written to since Open.
  absl::Status CheckUnchanged() const { return file_->CheckUnchanged(); }

 private:
  friend class GgufParser;
  GgufFile() = default;

  std::unique_ptr<RandomAccessFile> file_;
  std::unique_ptr<std::string> header_;  // what the views point into; on the heap so that moving keeps them valid
  uint32_t version_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  std::vector<GgufMetadata> metadata_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<absl::string_view, size_t> metadata_index_;
  absl::flat_hash_map<absl::string_view, size_t> tensor_index_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_GGUF_H_
