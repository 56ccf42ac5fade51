#include "constraint/json_schema.h"

#include "absl/strings/str_cat.h"
#include "common/bounded_json.h"
#include "constraint/schema_compiler.h"

namespace baton::constraint {

void BuildSchema(Builder* builder, absl::string_view schema) {
  if (schema.size() > kMaxSchemaBytes) {
    return builder->Fail(
        absl::InvalidArgumentError(absl::StrCat("a schema of ", schema.size(), " bytes; at most ", kMaxSchemaBytes)));
  }
  const absl::StatusOr<Json> root = ParseBoundedJson(schema);
  if (!root.ok()) return builder->Fail(root.status());
  SchemaCompiler(builder, *root).Run();
}

}  // namespace baton::constraint
