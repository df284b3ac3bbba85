#ifndef REFRACT_MODELS_TORCH_EXPORT_ARGUMENTS_H_
#define REFRACT_MODELS_TORCH_EXPORT_ARGUMENTS_H_

// The serializer's tagged arguments, dtypes and sizes. Tags and codes are those
// of torch/_export/serde/schema.py (2.11, schema 8.17). Internal to
// torch_export.

#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "models/graph/graph.h"
#include "models/torch_export/json.h"

namespace refract::models::torch_export {

// Names that may be read at one point of the program.
using Scope = absl::flat_hash_map<std::string, ValueId>;

// The error of an export that has something else where `what` belongs.
inline absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, " is malformed"));
}

// Unimplemented names a dtype that Refract does not have (float8, …). Complex
// types are those of models/passes/complex_numbers.h.
absl::StatusOr<base::DType> ParseDType(const Json& code);

// {"as_int": 4} or {"as_expr": {"expr_str": …}}. Unknown when the expression is
// of a kind that SymExpr does not have; InvalidArgument when it is neither.
absl::StatusOr<SymExpr> ParseSize(const Json& size);

// nullopt for what the graph leaves out: device, layout, memory format.
// InvalidArgument: malformed, or reads a name that is not in `scope`.
// Unimplemented: complex numbers, sparse layouts, subgraphs, custom objects and
// tags of newer writers.
absl::StatusOr<std::optional<Argument>> ParseArgument(const Tagged& argument,
                                                      const Scope& scope);

}  // namespace refract::models::torch_export

#endif  // REFRACT_MODELS_TORCH_EXPORT_ARGUMENTS_H_
