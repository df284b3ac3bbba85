#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "partitioner/costs/work.h"
#include "partitioner/measure/request_source.h"
#include "partitioner/measure/sample_requests.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::SymbolBindings;

// As RequestSource::sizes(). A symbol of RowSymbols() has a number per item or
// a number per request, whichever fits the samples better by least squares:
// requests of a single user have 1 user per request, however many candidates.
std::map<std::string, int64_t> SizesOf(const Graph& graph,
                                       const std::vector<SymbolBindings>& all) {
  const std::map<std::string, int64_t> rows = RowSymbols(graph);
  std::map<std::string, int64_t> sizes;
  for (const auto& [symbol, first] : all.front()) {
    if (symbol == graph.batch_symbol) continue;
    double sum = 0;
    double items = 0;
    for (const SymbolBindings& bindings : all) {
      sum += static_cast<double>(bindings.at(symbol));
      items += static_cast<double>(bindings.at(graph.batch_symbol));
    }
    const double mean = sum / static_cast<double>(all.size());
    const double per_item = sum / items;
    double error_of_mean = 0;
    double error_per_item = 0;
    for (const SymbolBindings& bindings : all) {
      const auto size = static_cast<double>(bindings.at(symbol));
      const auto batch = static_cast<double>(bindings.at(graph.batch_symbol));
      error_of_mean += (size - mean) * (size - mean);
      error_per_item += (size - per_item * batch) * (size - per_item * batch);
    }
    const auto rounded = [](double number) {
      return std::max<int64_t>(1, std::llround(number));
    };
    sizes[symbol] = !rows.contains(symbol)           ? rounded(mean)
                    : error_of_mean < error_per_item ? -rounded(mean)
                                                     : rounded(per_item);
  }
  return sizes;
}

class Whole final : public RequestSource {
 public:
  Whole(std::map<int64_t, std::vector<std::vector<base::Tensor>>> by_batch,
        std::map<std::string, int64_t> sizes)
      : by_batch_(std::move(by_batch)), sizes_(std::move(sizes)) {
    size_t files = 0;
    for (const auto& [batch, requests] : by_batch_) files += requests.size();
    description_ = absl::StrCat("whole requests of ", files,
                                files == 1 ? " file" : " files", " in turn");
  }

  absl::StatusOr<std::vector<base::Tensor>> Make(int64_t batch) override {
    const auto found = by_batch_.find(batch);
    if (found == by_batch_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("no file has a request of ", batch, " items"));
    }
    const auto& requests = found->second;
    std::vector<base::Tensor> copies;
    for (const base::Tensor& tensor : requests[next_++ % requests.size()]) {
      REFRACT_ASSIGN_OR_RETURN(copies.emplace_back(),
                               base::Tensor::CopyOf(tensor.view()));
    }
    return copies;
  }
  std::vector<int64_t> batches() const override {
    std::vector<int64_t> batches;
    for (const auto& [batch, requests] : by_batch_) batches.push_back(batch);
    return batches;
  }
  const std::map<std::string, int64_t>& sizes() const override {
    return sizes_;
  }
  const std::string& description() const override { return description_; }

 private:
  const std::map<int64_t, std::vector<std::vector<base::Tensor>>> by_batch_;
  const std::map<std::string, int64_t> sizes_;
  std::string description_;
  size_t next_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RequestSource>> WholeRequests(
    const Graph& graph, std::vector<std::vector<base::Tensor>> samples) {
  std::vector<SymbolBindings> sizes;
  std::map<int64_t, std::vector<std::vector<base::Tensor>>> by_batch;
  for (size_t i = 0; i < samples.size(); ++i) {
    auto bound = BindSizes(graph, samples[i]);
    if (!bound.ok()) {
      return base::Annotate(bound.status(), absl::StrCat("file ", i + 1));
    }
    const auto batch = bound->find(graph.batch_symbol);
    if (batch == bound->end() || batch->second < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("file ", i + 1, ": the request has no items"));
    }
    by_batch[batch->second].push_back(std::move(samples[i]));
    sizes.push_back(*std::move(bound));
  }
  return std::make_unique<Whole>(std::move(by_batch), SizesOf(graph, sizes));
}

}  // namespace refract::partitioner
