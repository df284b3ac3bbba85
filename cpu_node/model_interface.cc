#include "cpu_node/model_interface.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/shorten.h"
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

std::string Names(const std::vector<TensorInfo>& tensors) {
  return absl::StrJoin(tensors, ", ",
                       [](std::string* out, const TensorInfo& tensor) {
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

absl::StatusOr<ModelInterface> ModelInterface::Of(const models::Graph& graph) {
  ModelInterface result;
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
      // The first dimension that is the batch symbol alone gives a request's
      // batch.
      if (value.shape[dim].symbol() == graph.batch_symbol) {
        result.batch_ = BatchDim{index, dim};
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

absl::Status ModelInterface::CheckInput(const TensorInfo& expected,
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

absl::Status ModelInterface::Bind(const InferRequest& request,
                                  BoundRequest& bound) const {
  REFRACT_RETURN_IF_ERROR(BindInputs(request, bound));
  bound.batch = 1;
  if (batch_.has_value()) {
    bound.batch = bound.inputs[batch_->input].dims[batch_->dim];
    if (bound.batch == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "input '", inputs_[batch_->input].name, "' holds a batch of 0"));
    }
  }
  return BindOutputs(request, bound);
}

absl::Status ModelInterface::BindInputs(const InferRequest& request,
                                        BoundRequest& bound) const {
  // An unknown dtype marks an input that was not given; no input has it.
  bound.inputs.assign(inputs_.size(), base::TensorView());
  for (const InputTensor& input : request.inputs) {
    const auto found = input_index_.find(input.name);
    if (found == input_index_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model has no input '", base::Shorten(input.name),
                       "'; it has ", Names(inputs_)));
    }
    const size_t index = found->second;
    base::TensorView& view = bound.inputs[index];
    if (view.dtype != base::DType::kUnknown) {
      return absl::InvalidArgumentError(
          absl::StrCat("input '", input.name, "' is given twice"));
    }
    view = input.tensor.view();
    REFRACT_RETURN_IF_ERROR(CheckInput(inputs_[index], view));
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (bound.inputs[i].dtype == base::DType::kUnknown) {
      return absl::InvalidArgumentError(
          absl::StrCat("input '", inputs_[i].name, "' is missing"));
    }
  }
  return absl::OkStatus();
}

absl::Status ModelInterface::BindOutputs(const InferRequest& request,
                                         BoundRequest& bound) const {
  bound.outputs.clear();
  for (const std::string& name : request.outputs) {
    const auto found = output_index_.find(name);
    if (found == output_index_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model has no output '", base::Shorten(name),
                       "'; it has ", Names(outputs_)));
    }
    // At most quadratic in the model's outputs: a repeated name ends the
    // search.
    if (std::find(bound.outputs.begin(), bound.outputs.end(), found->second) !=
        bound.outputs.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("output '", name, "' is requested twice"));
    }
    bound.outputs.push_back(found->second);
  }
  if (request.outputs.empty()) {
    for (size_t i = 0; i < outputs_.size(); ++i) bound.outputs.push_back(i);
  }
  return absl::OkStatus();
}

}  // namespace refract::cpu_node
