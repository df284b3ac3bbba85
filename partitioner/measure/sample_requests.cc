#include "partitioner/measure/sample_requests.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/repository/request_files.h"
#include "partitioner/measure/request_source.h"

namespace refract::partitioner {
namespace {

constexpr size_t kMaxBytes = size_t{256} << 20;
// Whoever repeats a measurement wants the same requests.
constexpr uint64_t kSeed = 1;

std::vector<std::string> NamesOf(const models::Graph& graph) {
  std::vector<std::string> names;
  for (const models::ValueId id : graph.inputs) {
    names.push_back(graph.value(id).name);
  }
  return names;
}

absl::StatusOr<SampleRequests> Start(const models::Graph& graph,
                                     std::vector<base::Tensor> first) {
  SampleRequests result;
  result.names = NamesOf(graph);
  REFRACT_ASSIGN_OR_RETURN(result.sizes, BindSizes(graph, first));
  const auto batch = result.sizes.find(graph.batch_symbol);
  result.batch = batch == result.sizes.end() ? 1 : batch->second;
  result.requests.push_back(std::move(first));
  return result;
}

}  // namespace

absl::StatusOr<models::SymbolBindings> BindSizes(
    const models::Graph& graph, absl::Span<const base::Tensor> inputs) {
  models::SymbolBindings sizes;
  const auto wrong = [&](size_t i) {
    const models::Value& value = graph.value(graph.inputs[i]);
    return absl::InvalidArgumentError(absl::StrCat(
        "input ", value.name, ": shape ", base::DimsToString(inputs[i].dims()),
        " does not fit the model or the other inputs"));
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const models::Value& value = graph.value(graph.inputs[i]);
    if (!value.has_shape) continue;
    if (value.shape.size() != inputs[i].dims().size()) return wrong(i);
    for (size_t d = 0; d < value.shape.size(); ++d) {
      const auto solved = value.shape[d].Solve(inputs[i].dims()[d]);
      if (solved) sizes.try_emplace(solved->symbol, solved->value);
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const models::Value& value = graph.value(graph.inputs[i]);
    for (size_t d = 0; value.has_shape && d < value.shape.size(); ++d) {
      const auto size = value.shape[d].Evaluate(sizes);
      if (size.ok() ? *size != inputs[i].dims()[d]
                    : !value.shape[d].is_unknown()) {
        return wrong(i);
      }
    }
  }
  return sizes;
}

absl::StatusOr<SampleRequests> ReadSample(const std::string& path,
                                          const models::LoadedModel& model) {
  REFRACT_ASSIGN_OR_RETURN(std::vector<base::Tensor> inputs,
                           models::ReadInputs(path, model.graph));
  absl::StatusOr<SampleRequests> result = Start(model.graph, std::move(inputs));
  if (!result.ok()) return base::Annotate(result.status(), path);
  return result;
}

absl::StatusOr<SampleRequests> DrawRequests(
    const models::LoadedModel& model, int64_t batch,
    const absl::flat_hash_map<std::string, int64_t>& per_item, int count) {
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<RequestSource> source,
                           RandomRequests(model.graph, per_item, kSeed));
  REFRACT_ASSIGN_OR_RETURN(std::vector<base::Tensor> first,
                           source->Make(batch));
  size_t bytes = 0;
  for (const base::Tensor& tensor : first) bytes += tensor.bytes();
  REFRACT_ASSIGN_OR_RETURN(SampleRequests result,
                           Start(model.graph, std::move(first)));
  for (int i = 1; i < count && bytes * (i + 1) <= kMaxBytes; ++i) {
    REFRACT_ASSIGN_OR_RETURN(std::vector<base::Tensor> next,
                             source->Make(batch));
    result.requests.push_back(std::move(next));
  }
  return result;
}

}  // namespace refract::partitioner
