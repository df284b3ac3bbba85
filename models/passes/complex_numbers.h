#ifndef REFRACT_MODELS_PASSES_COMPLEX_NUMBERS_H_
#define REFRACT_MODELS_PASSES_COMPLEX_NUMBERS_H_

// Complex tensors: Fourier transforms of sequences (FMLP-Rec, FEARec), rotary
// embeddings, products in the complex plane.
//
// base::DType has no complex element type, so that code that moves, stores or
// sends tensors needs no support for them. A complex tensor is a tensor of
// floats with a last dimension of two, real and imaginary part
// (torch.view_as_real). An operator that reads or returns it is
// "complex.mul.Tensor" for "aten.mul.Tensor", with arguments that mark the
// pairs. runtime::aten::Caller (runtime/torch/caller.h) makes LibTorch's
// tensors of the pairs, without copying them. Such operators run on the CN.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "models/graph/graph.h"
#include "models/repository/weights.h"

namespace refract::models {

// Element types during import only: ComplexToPairs() removes them, and no
// imported graph has one.
inline constexpr base::DType kComplex64 = static_cast<base::DType>(0xc0);
inline constexpr base::DType kComplex128 = static_cast<base::DType>(0xc1);
constexpr bool IsComplex(base::DType dtype) {
  return dtype == kComplex64 || dtype == kComplex128;
}
// Type of the real and the imaginary part.
constexpr base::DType PartOf(base::DType dtype) {
  return dtype == kComplex64 ? base::DType::kFloat32 : base::DType::kFloat64;
}

// Namespace of the operators, with its dot.
inline constexpr absl::string_view kComplexSpace = "complex.";
// BoolList: which of InputsOf(node) are pairs, that is complex numbers.
inline constexpr absl::string_view kComplexOperandsArg = "complex_operands";
// BoolList: which of node.outputs are pairs.
inline constexpr absl::string_view kComplexResultsArg = "complex_results";
// A complex element type as an argument (std::string), and a complex number as
// an argument (FloatList of two).
inline constexpr absl::string_view kComplex64Name = "complex64";
inline constexpr absl::string_view kComplex128Name = "complex128";

bool IsComplexOp(absl::string_view op);

// Whether the ATen node returns complex tensors, by its name and its operands:
// for nodes whose type neither the file nor an example request gives.
bool GivesComplex(const Graph& graph, const Node& node);

// Turns a weight of complex element type into pairs; leaves other weights.
void MakePairs(WeightEntry& entry);

// Turns values of complex element type into pairs. For graphs that
// Functionalize() has seen. Complex weights must be pairs in the weight table
// (MakePairs).
//
// Unimplemented names an input or an output that is complex, and an operator
// that is not ATen's.
absl::Status ComplexToPairs(Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_PASSES_COMPLEX_NUMBERS_H_
