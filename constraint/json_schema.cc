#include "constraint/json_schema.h"

#include "absl/strings/str_cat.h"
#include "common/bounded_json.h"
#include "constraint/schema_compiler.h"

namespace baton::constraint {

Rule BuildSchema(Builder* builder, absl::string_view schema) {
  if (schema.size() > kMaxSchemaBytes) {
    builder->Fail(
        absl::InvalidArgumentError(absl::StrCat("a schema of ", schema.size(), " bytes; at most ", kMaxSchemaBytes)));
    return 0;
  }
  const absl::StatusOr<Json> root = ParseBoundedJson(schema);
  if (root.ok()) return SchemaCompiler(builder, *root).Run();
  builder->Fail(root.status());
  return 0;
}

}  // namespace baton::constraint
