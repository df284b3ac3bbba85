#ifndef REFRACT_MODELS_GRAPH_OP_TRAITS_TABLE_H_
#define REFRACT_MODELS_GRAPH_OP_TRAITS_TABLE_H_

// The data behind ClassOf(): internal to op_traits.cc.

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "models/graph/op_traits.h"

namespace refract::models {

using OpTable = absl::flat_hash_map<absl::string_view, OpClass>;

// Keys are ATen operators without namespace and overload ("linear"). Names as
// in PyTorch 2.11, functional forms only. Built on first use; never destroyed.
const OpTable& AtenOperators();

// Keys are full names ("aten.max.other") of overloads that mean something else
// than their operator.
const OpTable& OverloadExceptions();

}  // namespace refract::models

#endif  // REFRACT_MODELS_GRAPH_OP_TRAITS_TABLE_H_
