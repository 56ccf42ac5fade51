#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::fakes {
namespace {

enum : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9, kUint64 = 10 };

template <typename T>
std::string Raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

}  // namespace

std::string GgufU32(uint32_t value) { return Raw(value); }
std::string GgufU64(uint64_t value) { return Raw(value); }
std::string GgufText(absl::string_view text) { return absl::StrCat(Raw<uint64_t>(text.size()), text); }

void GgufWriter::AddRaw(absl::string_view key, uint32_t type, absl::string_view bytes) {
  absl::StrAppend(&metadata_, GgufText(key), Raw(type), bytes);
  ++num_metadata_;
}

void GgufWriter::AddUint32(absl::string_view key, uint32_t value) { AddRaw(key, kUint32, Raw(value)); }
void GgufWriter::AddUint64(absl::string_view key, uint64_t value) { AddRaw(key, kUint64, Raw(value)); }
void GgufWriter::AddFloat(absl::string_view key, float value) { AddRaw(key, kFloat32, Raw(value)); }
void GgufWriter::AddBool(absl::string_view key, bool value) { AddRaw(key, kBool, Raw<uint8_t>(value)); }
void GgufWriter::AddString(absl::string_view key, absl::string_view value) { AddRaw(key, kString, GgufText(value)); }

void GgufWriter::AddStrings(absl::string_view key, const std::vector<std::string>& values) {
  std::string bytes = absl::StrCat(Raw<uint32_t>(kString), Raw<uint64_t>(values.size()));
  for (const std::string& value : values) absl::StrAppend(&bytes, GgufText(value));
  AddRaw(key, kArray, bytes);
}

void GgufWriter::AddInt32s(absl::string_view key, const std::vector<int32_t>& values) {
  std::string bytes = absl::StrCat(Raw<uint32_t>(kInt32), Raw<uint64_t>(values.size()));
  for (int32_t value : values) bytes += Raw(value);
  AddRaw(key, kArray, bytes);
}

void GgufWriter::AddFloats(absl::string_view key, const std::vector<float>& values) {
  std::string bytes = absl::StrCat(Raw<uint32_t>(kFloat32), Raw<uint64_t>(values.size()));
  for (float value : values) bytes += Raw(value);
  AddRaw(key, kArray, bytes);
}

void GgufWriter::AddTensorInfo(absl::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                               uint64_t offset) {
  absl::StrAppend(&tensor_infos_, GgufText(name), Raw<uint32_t>(static_cast<uint32_t>(dims.size())));
  for (uint64_t dim : dims) tensor_infos_ += Raw(dim);
  absl::StrAppend(&tensor_infos_, Raw(type), Raw(offset));
  ++num_tensors_;
}

void GgufWriter::AddTensor(absl::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                           absl::string_view data) {
  AddTensorInfo(name, dims, type, data_.size());
  data_.append(data.data(), data.size());
  while (data_.size() % alignment_ != 0) data_.push_back('\0');
}

std::string GgufWriter::Finish() const { return Finish(num_tensors_, num_metadata_); }

std::string GgufWriter::Finish(uint64_t num_tensors, uint64_t num_metadata) const {
  std::string file = absl::StrCat("GGUF", Raw(version_), Raw(num_tensors), Raw(num_metadata), metadata_, tensor_infos_);
  while (file.size() % alignment_ != 0) file.push_back('\0');
  return file + data_;
}

}  // namespace baton::fakes
