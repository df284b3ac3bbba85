// Exact operators on integers and truth values.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cuda_plan/emitter.h"

namespace refract::runtime::cuda_plan {

absl::Status Emitter::Integers(cuda::IntegerCode code,
                               const std::vector<Integer>& operands,
                               const Tensor& out) {
  cuda::IntegerOp op;
  op.code = code;
  const std::string& name = builder_.value(out.value).name;
  REFRACT_ASSIGN_OR_RETURN(op.dims, RowsOf(out.dims, name));
  for (const Integer& operand : operands) {
    cuda::IntegerInput& input = op.inputs.emplace_back();
    input.number = operand.number;
    if (!operand.tensor) continue;
    const std::optional<Tensor> whole = Expanded(*operand.tensor, out.dims);
    if (!whole) {
      return absl::UnimplementedError(
          absl::StrCat(builder_.value(operand.tensor->value).name,
                       " does not broadcast to ", name));
    }
    REFRACT_ASSIGN_OR_RETURN(input.tensor, RefTo(*whole));
  }
  REFRACT_ASSIGN_OR_RETURN(op.out, RefTo(out));
  builder_.Integers(std::move(op));
  return absl::OkStatus();
}

absl::Status Emitter::FoldIntegers(cuda::IntegerFold fold,
                                   cuda::IntegerCode code, const Tensor& in,
                                   const std::vector<size_t>& dims,
                                   const Tensor& out) {
  cuda::IntegerOp op;
  op.code = code;
  op.fold = fold;
  op.inner = static_cast<int>(dims.size());
  std::vector<size_t> order;
  for (size_t d = 0; d < in.rank(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) {
      order.push_back(d);
    }
  }
  order.insert(order.end(), dims.begin(), dims.end());
  const Tensor turned = Permuted(in, order);
  REFRACT_ASSIGN_OR_RETURN(op.dims,
                           RowsOf(turned.dims, builder_.value(out.value).name));
  op.inputs.emplace_back();
  REFRACT_ASSIGN_OR_RETURN(op.inputs[0].tensor, RefTo(turned));
  REFRACT_ASSIGN_OR_RETURN(op.out, RefTo(out));
  builder_.Integers(std::move(op));
  return absl::OkStatus();
}

}  // namespace refract::runtime::cuda_plan
