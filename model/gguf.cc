#include "model/gguf.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "model/gguf_parser.h"

namespace baton::model {
namespace {

// Most headers of real models fit in the second size; each retry parses from the start.
constexpr uint64_t kFirstHeaderBytes = uint64_t{1} << 20;
constexpr uint64_t kHeaderGrowth = 8;

template <typename T>
T LoadAt(absl::string_view bytes, uint64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

// Element i of an array of integers; nullopt when the type is no integer or the value exceeds int64.
std::optional<int64_t> IntAt(const GgufArray& array, uint64_t i) {
  switch (array.type) {
    case GgufType::kUint8:
      return LoadAt<uint8_t>(array.bytes, i);
    case GgufType::kInt8:
      return LoadAt<int8_t>(array.bytes, i);
    case GgufType::kUint16:
      return LoadAt<uint16_t>(array.bytes, i);
    case GgufType::kInt16:
      return LoadAt<int16_t>(array.bytes, i);
    case GgufType::kUint32:
      return LoadAt<uint32_t>(array.bytes, i);
    case GgufType::kInt32:
      return LoadAt<int32_t>(array.bytes, i);
    case GgufType::kInt64:
      return LoadAt<int64_t>(array.bytes, i);
    case GgufType::kUint64: {
      const uint64_t value = LoadAt<uint64_t>(array.bytes, i);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::string TypeText(const GgufValue& value) {
  if (const auto* array = std::get_if<GgufArray>(&value.value)) {
    return absl::StrCat("array of ", GgufTypeName(array->type));
  }
  return std::string(GgufTypeName(value.type));
}

}  // namespace

absl::string_view GgufTypeName(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
      return "uint8";
    case GgufType::kInt8:
      return "int8";
    case GgufType::kUint16:
      return "uint16";
    case GgufType::kInt16:
      return "int16";
    case GgufType::kUint32:
      return "uint32";
    case GgufType::kInt32:
      return "int32";
    case GgufType::kFloat32:
      return "float32";
    case GgufType::kBool:
      return "bool";
    case GgufType::kString:
      return "string";
    case GgufType::kArray:
      return "array";
    case GgufType::kUint64:
      return "uint64";
    case GgufType::kInt64:
      return "int64";
    case GgufType::kFloat64:
      return "float64";
  }
  return "unknown";
}

absl::StatusOr<GgufFile> GgufFile::Open(absl::string_view path) {
  auto file = RandomAccessFile::Open(path);
  if (!file.ok()) return file.status();
  return Parse(*std::move(file));
}

absl::StatusOr<GgufFile> GgufFile::Parse(std::unique_ptr<RandomAccessFile> file) {
  uint64_t header_bytes = std::min(file->size(), kFirstHeaderBytes);
  while (true) {
    GgufFile gguf;
    gguf.header_ = std::make_unique<std::string>(header_bytes, '\0');
    absl::Status read = file->Read(0, std::as_writable_bytes(std::span(*gguf.header_)));
    if (!read.ok()) return read;
    GgufParser parser(*gguf.header_, file->size(), file->name());
    absl::Status parsed = parser.Parse(&gguf);
    if (parsed.ok()) {
      gguf.file_ = std::move(file);
      return gguf;
    }
    if (parser.bytes_wanted() <= header_bytes) return parsed;
    if (parser.bytes_wanted() > kMaxHeaderBytes) {
      return absl::InvalidArgumentError(absl::StrCat(file->name(), ": metadata of more than ", kMaxHeaderBytes,
                                                     " bytes. The file is damaged or hostile; fetch it again."));
    }
    header_bytes =
        std::min({std::max(header_bytes * kHeaderGrowth, parser.bytes_wanted()), file->size(), kMaxHeaderBytes});
  }
}

const GgufValue* GgufFile::Find(absl::string_view key) const {
  const auto it = metadata_index_.find(key);
  return it == metadata_index_.end() ? nullptr : &metadata_[it->second].value;
}

const GgufTensor* GgufFile::FindTensor(absl::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

namespace {

absl::Status Missing(const GgufFile& file, absl::string_view key) {
  return absl::NotFoundError(absl::StrCat(file.name(), ": metadata key ", key,
                                          " is missing. Convert the model again with a current converter."));
}

absl::Status WrongType(const GgufFile& file, absl::string_view key, absl::string_view want, const GgufValue& value) {
  return absl::InvalidArgumentError(absl::StrCat(file.name(), ": metadata key ", key, " must be ", want, ", found ",
                                                 TypeText(value), ". Convert the model again."));
}

const GgufArray* ArrayOf(const GgufValue& value) { return std::get_if<GgufArray>(&value.value); }

}  // namespace

absl::StatusOr<uint64_t> GgufFile::GetUint(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(*this, key);
  if (const auto* u = std::get_if<uint64_t>(&value->value)) return *u;
  if (const auto* i = std::get_if<int64_t>(&value->value); i != nullptr && *i >= 0) return static_cast<uint64_t>(*i);
  return WrongType(*this, key, "a non-negative integer", *value);
}

absl::StatusOr<int64_t> GgufFile::GetInt(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(*this, key);
  if (const auto* i = std::get_if<int64_t>(&value->value)) return *i;
  if (const auto* u = std::get_if<uint64_t>(&value->value);
      u != nullptr && *u <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return static_cast<int64_t>(*u);
  }
  return WrongType(*this, key, "an integer of at most 63 bits", *value);
}

absl::StatusOr<double> GgufFile::GetFloat(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(*this, key);
  if (const auto* d = std::get_if<double>(&value->value)) return *d;
  return WrongType(*this, key, "a float", *value);
}

absl::StatusOr<bool> GgufFile::GetBool(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(*this, key);
  if (const auto* b = std::get_if<bool>(&value->value)) return *b;
  return WrongType(*this, key, "a bool", *value);
}

absl::StatusOr<absl::string_view> GgufFile::GetString(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(*this, key);
  if (const auto* s = std::get_if<absl::string_view>(&value->value)) return *s;
  return WrongType(*this, key, "a string", *value);
}

absl::StatusOr<std::span<const absl::string_view>> GgufFile::GetStrings(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(*this, key);
  const GgufArray* array = ArrayOf(*value);
  if (array == nullptr || array->type != GgufType::kString) return WrongType(*this, key, "an array of strings", *value);
  return std::span<const absl::string_view>(array->strings);
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetInts(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(*this, key);
  const GgufArray* array = ArrayOf(*value);
  if (array == nullptr) return WrongType(*this, key, "an array of integers", *value);
  std::vector<int64_t> ints;
  for (uint64_t i = 0; i < array->size; ++i) {
    const std::optional<int64_t> element = IntAt(*array, i);
    if (!element.has_value()) return WrongType(*this, key, "an array of integers below 2^63", *value);
    ints.push_back(*element);
  }
  return ints;
}

absl::StatusOr<std::vector<float>> GgufFile::GetFloats(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(*this, key);
  const GgufArray* array = ArrayOf(*value);
  if (array == nullptr || array->type != GgufType::kFloat32)
    return WrongType(*this, key, "an array of float32", *value);
  std::vector<float> floats(array->size);
  for (uint64_t i = 0; i < array->size; ++i) floats[i] = LoadAt<float>(array->bytes, i);
  return floats;
}

absl::StatusOr<std::vector<bool>> GgufFile::GetBools(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(*this, key);
  const GgufArray* array = ArrayOf(*value);
  if (array == nullptr || array->type != GgufType::kBool) return WrongType(*this, key, "an array of bools", *value);
  std::vector<bool> bools(array->size);
  for (uint64_t i = 0; i < array->size; ++i) bools[i] = array->bytes[i] != 0;
  return bools;
}

absl::Status GgufFile::ReadTensor(const GgufTensor& tensor, uint64_t offset, std::span<std::byte> dst) const {
  if (offset > tensor.num_bytes || dst.size() > tensor.num_bytes - offset) {
    return absl::InvalidArgumentError(absl::StrCat(name(), ": tensor ", absl::CEscape(tensor.name), " has ",
                                                   tensor.num_bytes, " bytes; ", dst.size(), " were wanted at ",
                                                   offset));
  }
  absl::Status read = file_->Read(tensor.file_offset + offset, dst);
  if (!read.ok()) {
    return absl::Status(read.code(), absl::StrCat("tensor ", absl::CEscape(tensor.name), ": ", read.message()));
  }
  return absl::OkStatus();
}

}  // namespace baton::model
