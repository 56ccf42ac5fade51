// Internal to gguf.cc: one pass over the header bytes of a GGUF file.
#ifndef BATON_MODEL_GGUF_PARSER_H_
#define BATON_MODEL_GGUF_PARSER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/gguf.h"

namespace baton::model {

// Parses `header`, the first bytes of a file of `file_bytes` bytes, into a GgufFile. When the header goes on past the
// bytes given (but not past the file), Parse fails and bytes_wanted() tells how many are needed at least.
class GgufParser {
 public:
  GgufParser(absl::string_view header, uint64_t file_bytes, absl::string_view file_name);

  absl::Status Parse(GgufFile* file);
  uint64_t bytes_wanted() const { return bytes_wanted_; }  // 0: more bytes would not help

 private:
  absl::Status ParsePreamble(GgufFile* file, uint64_t* num_tensors, uint64_t* num_metadata);
  absl::Status ParseMetadata(GgufFile* file);
  absl::Status ParseValue(absl::string_view key, GgufValue* value);
  absl::Status ParseArray(absl::string_view key, GgufArray* array);
  absl::Status ReadAlignment(GgufFile* file);
  absl::Status ParseTensor(GgufFile* file);
  absl::Status PlaceTensors(GgufFile* file);

  // The next `size` bytes; `what` names them in messages.
  absl::Status Take(uint64_t size, absl::string_view what, absl::string_view* bytes);
  template <typename T>
  absl::Status TakeNumber(absl::string_view what, T* value);
  absl::Status TakeString(absl::string_view what, uint64_t max_bytes, absl::string_view* value);
  absl::Status TakeScalar(absl::string_view key, GgufType type, GgufValue* value);
  absl::Status Invalid(uint64_t offset, absl::string_view what) const;

  const absl::string_view header_;
  const uint64_t file_bytes_;
  const std::string file_name_;
  uint64_t offset_ = 0;
  uint64_t bytes_wanted_ = 0;
};

// Whether `count` elements of `size` bytes each overflow 64 bits; else their product.
bool CheckedProduct(uint64_t count, uint64_t size, uint64_t* product);

// Bytes of one element; 0 for strings and arrays and for unknown numbers.
uint64_t GgufScalarBytes(GgufType type);

}  // namespace baton::model

#endif  // BATON_MODEL_GGUF_PARSER_H_
