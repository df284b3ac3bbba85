// Operators of a separate library, for tests of --op-library.

#include <ATen/core/Tensor.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <torch/library.h>

#include <tuple>

namespace {

at::Tensor Scale(const at::Tensor& x, double by) { return at::mul(x, by); }

// Two results, of which one has no tensor argument's shape.
std::tuple<at::Tensor, int64_t> Offsets(const at::Tensor& lengths) {
  return {at::sub(at::cumsum(lengths, 0), lengths), lengths.size(0)};
}

}  // namespace

TORCH_LIBRARY(refract_test, library) {
  library.def("scale(Tensor x, float by) -> Tensor", Scale);
  library.def("offsets(Tensor lengths) -> (Tensor, int)", Offsets);
}
