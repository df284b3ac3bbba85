#ifndef REFRACT_MODELS_PASSES_FUNCTIONALIZE_VIEWS_H_
#define REFRACT_MODELS_PASSES_FUNCTIONALIZE_VIEWS_H_

// Facts about operators whose result shares memory with their first argument.
// Part of Functionalize().

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/graph/graph.h"

namespace refract::models {

// Relation of a result to the memory of its source argument.
enum class Sharing : uint8_t {
  kNone,       // new memory, new contents
  kCopy,       // new memory, same contents and shape
  kSame,       // same memory, contents and shape
  kView,       // same memory, other shape or order
  kMaybeSame,  // kCopy or kSame: depends on strides or dtypes
  kMaybeView,  // a view of the memory, or of a copy of it
};

// `source_is_contiguous`: the argument is known to be row-major.
Sharing SharingOf(const Graph& graph, const Node& node,
                  bool source_is_contiguous);

// Whether a view of a row-major tensor is row-major, too.
bool KeepsContiguous(const Node& view);

// The argument that shares memory ("self" or "input"); null if there is none.
const Argument* SourceArg(const Node& node);

// The node, without name and outputs, that returns `base` with the part seen
// through result `output` of `view` replaced by `contents`. Unimplemented names
// the view if no operator does that.
absl::StatusOr<Node> InverseOf(const Node& view, size_t output, ValueId base,
                               ValueId contents);

// Whether the results of a view share no element with each other.
bool GivesDisjointParts(const Node& view);
// Whether the result may show an element in several places.
bool MayOverlap(const Node& view);

// squeeze_, t_, …, by their functional form: whether the tensor itself becomes
// a view of its old memory.
bool ReshapesInPlace(absl::string_view functional);

// "aten.add_.Tensor" → "aten.add.Tensor"; empty if `op` does not write.
// Unimplemented: `op` writes and has no functional form.
absl::StatusOr<std::string> FunctionalForm(absl::string_view op);

// Whether the functional form's result always has the dtype of its
// first argument. False: it may be promoted, as for add, or differ, as
// for eq.
bool KeepsDtype(const Graph& graph, const Node& functional);

// Checks that return nothing and change nothing while they hold.
bool IsCheck(absl::string_view op);

}  // namespace refract::models

#endif  // REFRACT_MODELS_PASSES_FUNCTIONALIZE_VIEWS_H_
