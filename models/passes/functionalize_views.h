#ifndef REFRACT_MODELS_PASSES_FUNCTIONALIZE_VIEWS_H_
#define REFRACT_MODELS_PASSES_FUNCTIONALIZE_VIEWS_H_

// What is known of operators whose result shares memory with their first
// argument. Part of Functionalize().

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/graph/graph.h"

namespace refract::models {

// How a result relates to the memory of the argument it is made of.
enum class Sharing : uint8_t {
  kNone,       // new memory, new contents
  kCopy,       // new memory, same contents and shape
  kSame,       // same memory, contents and shape
  kView,       // same memory, seen otherwise
  kMaybeSame,  // a kCopy or a kSame: depends on strides or dtypes
  kMaybeView,  // a view of the memory, or of a copy of it
};

// `source_is_contiguous`: the argument is known to be row-major.
Sharing SharingOf(const Graph& graph, const Node& node,
                  bool source_is_contiguous);

// A view of a row-major tensor that is row-major, too.
bool KeepsContiguous(const Node& view);

// The argument that shares memory ("self" or "input"); null if there is none.
const Argument* SourceArg(const Node& node);

// The node, without name and outputs, that gives `base` with the part seen
// through result `output` of `view` replaced by `contents`. Unimplemented names
// the view when that cannot be written down.
absl::StatusOr<Node> InverseOf(const Node& view, size_t output, ValueId base,
                               ValueId contents);

// The parts that a view gives share no element with each other.
bool GivesDisjointParts(const Node& view);
// May show one element in several places.
bool MayOverlap(const Node& view);

// squeeze_, t_, …, by their functional form: the tensor itself becomes a view
// of what it was.
bool ReshapesInPlace(absl::string_view functional);

// "aten.add_.Tensor" → "aten.add.Tensor"; empty when `op` writes into nothing.
// Unimplemented: it writes, and has no functional form.
absl::StatusOr<std::string> FunctionalForm(absl::string_view op);

// The result of the functional form always has the dtype of its first
// argument. False: it may be promoted, as that of add, or differ, as that of
// eq.
bool KeepsDtype(const Graph& graph, const Node& functional);

// Checks that return nothing and change nothing while they hold.
bool IsCheck(absl::string_view op);

}  // namespace refract::models

#endif  // REFRACT_MODELS_PASSES_FUNCTIONALIZE_VIEWS_H_
