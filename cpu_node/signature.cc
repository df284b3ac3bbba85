#include "cpu_node/signature.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace refract::cpu_node {
namespace {

base::Dims FixedDims(const models::Value& value) {
  base::Dims dims;
  for (const models::SymExpr& size : value.shape) {
    dims.push_back(size.constant().value_or(-1));
  }
  return dims;
}

std::string Names(const std::vector<TensorSignature>& tensors) {
  return absl::StrJoin(tensors, ", ",
                       [](std::string* out, const TensorSignature& tensor) {
                         absl::StrAppend(out, "'", tensor.name, "'");
                       });
}

bool Fits(absl::Span<const int64_t> expected, absl::Span<const int64_t> given) {
  if (expected.size() != given.size()) return false;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] >= 0 && expected[i] != given[i]) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<Signature> Signature::Of(const models::Graph& graph) {
  Signature result;
  for (const models::ValueId id : graph.inputs) {
    const models::Value& value = graph.value(id);
    if (value.kind != models::ValueKind::kTensor || !value.has_shape ||
        value.dtype == base::DType::kUnknown) {
      return absl::InvalidArgumentError(
          absl::StrCat("input '", value.name, "' has no known dtype and rank"));
    }
    const size_t index = result.inputs_.size();
    result.input_index_[value.name] = index;
    result.inputs_.push_back({value.name, value.dtype, FixedDims(value)});
    for (size_t dim = 0; dim < value.shape.size(); ++dim) {
      if (result.batch_.has_value() || graph.batch_symbol.empty()) break;
      if (value.shape[dim].symbol() == graph.batch_symbol) {
        result.batch_ = BatchPlace{index, dim};
      }
    }
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const models::Value& value = graph.value(graph.outputs[i]);
    const std::string& name = graph.output_names[i];
    const bool is_size = value.kind == models::ValueKind::kSymInt;
    result.output_index_[name] = i;
    result.outputs_.push_back(
        {name, is_size ? base::DType::kInt64 : value.dtype, FixedDims(value)});
  }
  return result;
}

absl::Status Signature::CheckInput(const TensorSignature& expected,
                                   const base::TensorView& given) const {
  if (given.dtype != expected.dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "input '", expected.name, "' is ", base::KServeName(given.dtype),
        ", wanted ", base::KServeName(expected.dtype)));
  }
  if (!Fits(expected.dims, given.dims)) {
    return absl::InvalidArgumentError(
        absl::StrCat("input '", expected.name, "' has shape ",
                     base::DimsToString(given.dims), ", wanted ",
                     base::DimsToString(expected.dims), " (-1 = any size)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<BoundRequest> Signature::Bind(
    const InferRequest& request) const {
  BoundRequest bound;
  bound.inputs.resize(inputs_.size());
  std::vector<bool> given(inputs_.size(), false);
  for (const InputTensor& input : request.inputs) {
    const auto found = input_index_.find(input.name);
    if (found == input_index_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the model has no input '",
                                                     input.name, "'; it has ",
                                                     Names(inputs_)));
    }
    const size_t index = found->second;
    if (given[index]) {
      return absl::InvalidArgumentError(
          absl::StrCat("input '", input.name, "' is given twice"));
    }
    given[index] = true;
    bound.inputs[index] = input.tensor.view();
    REFRACT_RETURN_IF_ERROR(CheckInput(inputs_[index], bound.inputs[index]));
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!given[i]) {
      return absl::InvalidArgumentError(
          absl::StrCat("input '", inputs_[i].name, "' is missing"));
    }
  }
  if (batch_.has_value()) {
    bound.batch = bound.inputs[batch_->input].dims[batch_->dim];
    if (bound.batch == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "input '", inputs_[batch_->input].name, "' holds a batch of 0"));
    }
  }
  std::vector<bool> wanted(outputs_.size(), false);
  for (const std::string& name : request.outputs) {
    const auto found = output_index_.find(name);
    if (found == output_index_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the model has no output '", name, "'; it has ", Names(outputs_)));
    }
    if (wanted[found->second]) {
      return absl::InvalidArgumentError(
          absl::StrCat("output '", name, "' is requested twice"));
    }
    wanted[found->second] = true;
    bound.outputs.push_back(found->second);
  }
  if (request.outputs.empty()) {
    for (size_t i = 0; i < outputs_.size(); ++i) bound.outputs.push_back(i);
  }
  return bound;
}

}  // namespace refract::cpu_node
