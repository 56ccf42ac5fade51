#include "model/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace baton::model {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxMetadata = 65536;
constexpr uint64_t kMaxTensors = uint64_t{1} << 20;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kMinMetadataBytes = 8 + 1 + 4 + 1;        // key length, key, type, value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name length, name, n_dims, one dim, type, offset
// Products of dimensions stay below this, so that later sums and signed conversions cannot overflow.
constexpr uint64_t kMaxElements = uint64_t{1} << 60;

template <typename T>
T Load(absl::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace

bool CheckedProduct(uint64_t count, uint64_t size, uint64_t* product) {
  return !__builtin_mul_overflow(count, size, product);
}

uint64_t GgufScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

GgufParser::GgufParser(absl::string_view header, uint64_t file_bytes, absl::string_view file_name)
    : header_(header), file_bytes_(file_bytes), file_name_(file_name) {}

absl::Status GgufParser::Invalid(uint64_t offset, absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(file_name_, ": at offset ", offset, ": ", what,
                                                 ". The file is damaged or not a model; fetch it again."));
}

absl::Status GgufParser::Take(uint64_t size, absl::string_view what, absl::string_view* bytes) {
  if (size > file_bytes_ - offset_) {
    return Invalid(offset_, absl::StrCat(absl::CEscape(what), " needs ", size, " bytes, the file has ",
                                         file_bytes_ - offset_, " left"));
  }
  if (size > header_.size() - offset_) {
    bytes_wanted_ = offset_ + size;
    return Invalid(offset_,
                   absl::StrCat(absl::CEscape(what), " reaches past the ", header_.size(), " header bytes read"));
  }
  *bytes = header_.substr(offset_, size);
  offset_ += size;
  return absl::OkStatus();
}

template <typename T>
absl::Status GgufParser::TakeNumber(absl::string_view what, T* value) {
  absl::string_view bytes;
  if (absl::Status s = Take(sizeof(T), what, &bytes); !s.ok()) return s;
  *value = Load<T>(bytes);
  return absl::OkStatus();
}

absl::Status GgufParser::TakeString(absl::string_view what, uint64_t max_bytes, absl::string_view* value) {
  const uint64_t start = offset_;
  uint64_t size = 0;
  if (absl::Status s = TakeNumber(what, &size); !s.ok()) return s;
  if (size > max_bytes) {
    return Invalid(start,
                   absl::StrCat(absl::CEscape(what), " has ", size, " bytes, at most ", max_bytes, " are allowed"));
  }
  return Take(size, what, value);
}

absl::Status GgufParser::Parse(GgufFile* file) {
  uint64_t num_tensors = 0, num_metadata = 0;
  if (absl::Status s = ParsePreamble(file, &num_tensors, &num_metadata); !s.ok()) return s;
  for (uint64_t i = 0; i < num_metadata; ++i) {
    if (absl::Status s = ParseMetadata(file); !s.ok()) return s;
  }
  if (absl::Status s = ReadAlignment(file); !s.ok()) return s;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    if (absl::Status s = ParseTensor(file); !s.ok()) return s;
  }
  return PlaceTensors(file);
}

absl::Status GgufParser::ParsePreamble(GgufFile* file, uint64_t* num_tensors, uint64_t* num_metadata) {
  uint32_t magic = 0;
  if (absl::Status s = TakeNumber("the magic number", &magic); !s.ok()) return s;
  if (magic != kMagic) {
    return absl::InvalidArgumentError(absl::StrCat(file_name_, ": at offset 0: expected \"GGUF\", found \"",
                                                   absl::CEscape(header_.substr(0, 4)),
                                                   "\". This is not a GGUF file; give the path of a .gguf model."));
  }
  if (absl::Status s = TakeNumber("the version", &file->version_); !s.ok()) return s;
  if (file->version_ != 2 && file->version_ != 3) {
    const bool swapped = __builtin_bswap32(file->version_) == 2 || __builtin_bswap32(file->version_) == 3;
    return absl::UnimplementedError(absl::StrCat(
        file_name_, ": at offset 4: ", swapped ? "big-endian GGUF" : absl::StrCat("GGUF version ", file->version_),
        "; Baton reads little-endian versions 2 and 3. Convert the model with a current converter."));
  }
  if (absl::Status s = TakeNumber("the tensor count", num_tensors); !s.ok()) return s;
  if (absl::Status s = TakeNumber("the metadata count", num_metadata); !s.ok()) return s;
  const uint64_t left = file_bytes_ - offset_;
  if (*num_tensors > std::min(kMaxTensors, left / kMinTensorBytes)) {
    return Invalid(8, absl::StrCat("tensor count ", *num_tensors, " cannot fit in the ", left, " bytes that follow"));
  }
  if (*num_metadata > std::min(kMaxMetadata, left / kMinMetadataBytes)) {
    return Invalid(16, absl::StrCat("metadata count ", *num_metadata, " cannot fit in the ", left,
                                    " bytes that follow (at most ", kMaxMetadata, ")"));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ParseMetadata(GgufFile* file) {
  const uint64_t start = offset_;
  GgufMetadata entry;
  if (absl::Status s = TakeString("a metadata key", GgufFile::kMaxKeyBytes, &entry.key); !s.ok()) return s;
  if (entry.key.empty()) return Invalid(start, "empty metadata key");
  if (absl::Status s = ParseValue(entry.key, &entry.value); !s.ok()) return s;
  if (!file->metadata_index_.emplace(entry.key, file->metadata_.size()).second) {
    return Invalid(start, absl::StrCat("metadata key \"", absl::CEscape(entry.key), "\" occurs twice"));
  }
  file->metadata_.push_back(std::move(entry));
  return absl::OkStatus();
}

absl::Status GgufParser::ParseValue(absl::string_view key, GgufValue* value) {
  const uint64_t start = offset_;
  uint32_t type = 0;
  if (absl::Status s = TakeNumber("a value type", &type); !s.ok()) return s;
  value->type = static_cast<GgufType>(type);
  if (value->type == GgufType::kString) {
    absl::string_view text;
    if (absl::Status s = TakeString(key, GgufFile::kMaxHeaderBytes, &text); !s.ok()) return s;
    value->value = text;
    return absl::OkStatus();
  }
  if (value->type == GgufType::kArray) {
    GgufArray array;
    if (absl::Status s = ParseArray(key, &array); !s.ok()) return s;
    value->value = std::move(array);
    return absl::OkStatus();
  }
  if (GgufScalarBytes(value->type) == 0) {
    return Invalid(start, absl::StrCat("value type ", type, " of key \"", absl::CEscape(key), "\" does not exist"));
  }
  return TakeScalar(key, value->type, value);
}

absl::Status GgufParser::TakeScalar(absl::string_view key, GgufType type, GgufValue* value) {
  const uint64_t start = offset_;
  absl::string_view bytes;
  if (absl::Status s = Take(GgufScalarBytes(type), key, &bytes); !s.ok()) return s;
  switch (type) {
    case GgufType::kUint8:
      value->value = uint64_t{Load<uint8_t>(bytes)};
      break;
    case GgufType::kInt8:
      value->value = int64_t{Load<int8_t>(bytes)};
      break;
    case GgufType::kUint16:
      value->value = uint64_t{Load<uint16_t>(bytes)};
      break;
    case GgufType::kInt16:
      value->value = int64_t{Load<int16_t>(bytes)};
      break;
    case GgufType::kUint32:
      value->value = uint64_t{Load<uint32_t>(bytes)};
      break;
    case GgufType::kInt32:
      value->value = int64_t{Load<int32_t>(bytes)};
      break;
    case GgufType::kUint64:
      value->value = Load<uint64_t>(bytes);
      break;
    case GgufType::kInt64:
      value->value = Load<int64_t>(bytes);
      break;
    case GgufType::kFloat32:
      value->value = double{Load<float>(bytes)};
      break;
    case GgufType::kFloat64:
      value->value = Load<double>(bytes);
      break;
    case GgufType::kBool: {
      const uint8_t b = Load<uint8_t>(bytes);
      if (b > 1) return Invalid(start, absl::StrCat("bool \"", absl::CEscape(key), "\" is ", int{b}, ", not 0 or 1"));
      value->value = b == 1;
      break;
    }
    case GgufType::kString:
    case GgufType::kArray:
      break;  // not scalars
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ParseArray(absl::string_view key, GgufArray* array) {
  const uint64_t start = offset_;
  uint32_t type = 0;
  if (absl::Status s = TakeNumber("an array's element type", &type); !s.ok()) return s;
  if (absl::Status s = TakeNumber("an array's length", &array->size); !s.ok()) return s;
  array->type = static_cast<GgufType>(type);
  if (array->type == GgufType::kArray) {
    return Invalid(start, absl::StrCat("array \"", absl::CEscape(key), "\" holds arrays; no model format uses that"));
  }
  if (array->type == GgufType::kString) {
    if (array->size > (file_bytes_ - offset_) / sizeof(uint64_t)) {
      return Invalid(start + 4, absl::StrCat("array \"", absl::CEscape(key), "\" of ", array->size,
                                             " strings cannot fit in the ", file_bytes_ - offset_, " bytes left"));
    }
    for (uint64_t i = 0; i < array->size; ++i) {
      absl::string_view text;
      if (absl::Status s = TakeString(key, GgufFile::kMaxHeaderBytes, &text); !s.ok()) return s;
      array->strings.push_back(text);
    }
    return absl::OkStatus();
  }
  const uint64_t element_bytes = GgufScalarBytes(array->type);
  if (element_bytes == 0) {
    return Invalid(start, absl::StrCat("element type ", type, " of array \"", absl::CEscape(key), "\" does not exist"));
  }
  uint64_t num_bytes = 0;
  if (!CheckedProduct(array->size, element_bytes, &num_bytes)) {
    return Invalid(start + 4, absl::StrCat("array \"", absl::CEscape(key), "\" has ", array->size, " elements"));
  }
  return Take(num_bytes, key, &array->bytes);
}

absl::Status GgufParser::ReadAlignment(GgufFile* file) {
  const GgufValue* value = file->Find("general.alignment");
  if (value == nullptr) return absl::OkStatus();
  const uint64_t* alignment = std::get_if<uint64_t>(&value->value);
  if (alignment == nullptr || *alignment < 8 || *alignment > GgufFile::kMaxAlignment ||
      !std::has_single_bit(*alignment)) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_name_, ": general.alignment must be an unsigned power of two from 8 to ", GgufFile::kMaxAlignment,
        alignment == nullptr ? std::string(", but is not unsigned") : absl::StrCat(", found ", *alignment),
        ". The file is damaged or hostile; fetch it again."));
  }
  file->alignment_ = *alignment;
  return absl::OkStatus();
}

absl::Status GgufParser::ParseTensor(GgufFile* file) {
  const uint64_t start = offset_;
  GgufTensor tensor;
  if (absl::Status s = TakeString("a tensor name", GgufFile::kMaxTensorNameBytes, &tensor.name); !s.ok()) return s;
  if (tensor.name.empty()) return Invalid(start, "empty tensor name");
  const std::string shown = absl::CEscape(tensor.name);
  uint32_t num_dims = 0;
  if (absl::Status s = TakeNumber(absl::StrCat("the rank of ", shown), &num_dims); !s.ok()) return s;
  if (num_dims < 1 || num_dims > kMaxDims) {
    return Invalid(start, absl::StrCat("tensor ", shown, " has ", num_dims, " dimensions, 1 to ", kMaxDims, " exist"));
  }
  tensor.num_elements = 1;
  for (uint32_t i = 0; i < num_dims; ++i) {
    uint64_t dim = 0;
    if (absl::Status s = TakeNumber(absl::StrCat("a dimension of ", shown), &dim); !s.ok()) return s;
    if (dim == 0 || dim > kMaxElements || !CheckedProduct(tensor.num_elements, dim, &tensor.num_elements) ||
        tensor.num_elements > kMaxElements) {
      return Invalid(start, absl::StrCat("tensor ", shown, ": dimension ", i, " is ", dim,
                                         "; dimensions must be positive and their product at most 2^60"));
    }
    tensor.dims.push_back(static_cast<int64_t>(dim));
  }
  uint32_t type = 0;
  if (absl::Status s = TakeNumber(absl::StrCat("the type of ", shown), &type); !s.ok()) return s;
  const auto dtype = kernels::FromGgmlType(type);
  if (!dtype.has_value()) {
    return absl::UnimplementedError(absl::StrCat(
        file_name_, ": at offset ", start, ": tensor ", shown, " has ggml type ", type,
        "; Baton reads F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K. Use a model in one of these."));
  }
  tensor.dtype = *dtype;
  const uint64_t block = static_cast<uint64_t>(kernels::BlockElements(tensor.dtype));
  if (static_cast<uint64_t>(tensor.dims[0]) % block != 0) {
    return Invalid(start, absl::StrCat("tensor ", shown, ": rows of ", tensor.dims[0], " elements are no multiple of ",
                                       kernels::Name(tensor.dtype), "'s block of ", block));
  }
  if (!CheckedProduct(tensor.num_elements / block, static_cast<uint64_t>(kernels::BlockBytes(tensor.dtype)),
                      &tensor.num_bytes)) {
    return Invalid(start, absl::StrCat("tensor ", shown, ": its size overflows 64 bits"));
  }
  // Relative to the data section until PlaceTensors.
  if (absl::Status s = TakeNumber(absl::StrCat("the offset of ", shown), &tensor.file_offset); !s.ok()) return s;
  if (tensor.file_offset % file->alignment_ != 0) {
    return Invalid(start, absl::StrCat("tensor ", shown, ": offset ", tensor.file_offset, " is no multiple of ",
                                       file->alignment_));
  }
  if (!file->tensor_index_.emplace(tensor.name, file->tensors_.size()).second) {
    return Invalid(start, absl::StrCat("tensor ", shown, " occurs twice"));
  }
  file->tensors_.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status GgufParser::PlaceTensors(GgufFile* file) {
  if (file->tensors_.empty()) return absl::OkStatus();
  // offset_ <= file_bytes_ < 2^63 (a file's size), so rounding up cannot wrap.
  const uint64_t data_start = (offset_ + file->alignment_ - 1) & ~(file->alignment_ - 1);
  const uint64_t data_bytes = data_start > file_bytes_ ? 0 : file_bytes_ - data_start;
  for (GgufTensor& tensor : file->tensors_) {
    if (tensor.file_offset > data_bytes || tensor.num_bytes > data_bytes - tensor.file_offset) {
      return Invalid(data_start, absl::StrCat("tensor ", absl::CEscape(tensor.name), " wants ", tensor.num_bytes,
                                              " bytes at ", tensor.file_offset, " of the data section, which has ",
                                              data_bytes, " (truncated download?)"));
    }
    tensor.file_offset += data_start;
  }
  std::vector<size_t> order(file->tensors_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(file->tensors_[a].file_offset, a) < std::pair(file->tensors_[b].file_offset, b);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = file->tensors_[order[i - 1]];
    const GgufTensor& after = file->tensors_[order[i]];
    if (after.file_offset < before.file_offset + before.num_bytes) {
      return Invalid(after.file_offset, absl::StrCat("tensors ", absl::CEscape(before.name), " and ",
                                                     absl::CEscape(after.name), " overlap"));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::model
