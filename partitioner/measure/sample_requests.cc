#include "partitioner/measure/sample_requests.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/repository/requests/request_files.h"
#include "partitioner/measure/request_source.h"

namespace refract::partitioner {
namespace {

constexpr size_t kMaxBytes = size_t{256} << 20;

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
  // First pass: dimensions that can be solved for a symbol bind it; the first
  // solution counts.
  for (size_t i = 0; i < inputs.size(); ++i) {
    const models::Value& value = graph.value(graph.inputs[i]);
    if (!value.has_shape) continue;
    if (value.shape.size() != inputs[i].dims().size()) return wrong(i);
    for (size_t d = 0; d < value.shape.size(); ++d) {
      const auto solved = value.shape[d].Solve(inputs[i].dims()[d]);
      if (solved) sizes.try_emplace(solved->symbol, solved->value);
    }
  }
  // Second pass: every dimension must agree with these bindings.
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

absl::StatusOr<SampleRequests> ReadSamples(
    const std::vector<std::string>& paths, const models::Graph& graph) {
  SampleRequests samples{.description = absl::StrJoin(paths, ", ")};
  for (const std::string& path : paths) {
    auto inputs = models::ReadInputs(path, graph);
    if (!inputs.ok()) return base::Annotate(inputs.status(), "--sample");
    samples.requests.push_back({path, *std::move(inputs)});
  }
  return samples;
}

absl::StatusOr<SampleRequests> DrawRequests(
    const models::Graph& graph, int64_t batch,
    const absl::flat_hash_map<std::string, int64_t>& per_item, int count,
    uint64_t seed) {
  const auto source = RandomRequests(graph, per_item, seed);
  if (!source.ok()) {
    return absl::Status(
        source.status().code(),
        absl::StrCat("--sample: missing, and random requests cannot be made: ",
                     source.status().message()));
  }
  SampleRequests samples{.description = absl::StrCat(
                             "random, ", batch, " items each, seed ", seed)};
  size_t bytes = 0;  // of one request
  // `bytes` is the size of the request before, and all requests are about as
  // large: fewer than `count` requests are drawn where they would exceed
  // kMaxBytes together.
  for (int i = 0; i < count && bytes * (i + 1) <= kMaxBytes; ++i) {
    REFRACT_ASSIGN_OR_RETURN(std::vector<base::Tensor> inputs,
                             (*source)->Make(batch));
    bytes = 0;
    for (const base::Tensor& input : inputs) bytes += input.bytes();
    samples.requests.push_back(
        {absl::StrCat("random request ", i), std::move(inputs)});
  }
  return samples;
}

absl::StatusOr<models::SymbolBindings> CommonSizes(
    const models::Graph& graph, const SampleRequests& samples) {
  models::SymbolBindings common;
  for (const SampleRequest& request : samples.requests) {
    const auto sizes = BindSizes(graph, request.inputs);
    if (!sizes.ok()) return base::Annotate(sizes.status(), request.name);
    if (&request == &samples.requests.front()) common = *sizes;
    if (*sizes != common) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--sample ", request.name, ": its sizes differ from those of ",
          samples.requests.front().name,
          "; with --verify all samples must have the same sizes"));
    }
  }
  return common;
}

}  // namespace refract::partitioner
