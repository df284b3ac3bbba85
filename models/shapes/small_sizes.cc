// Sizes of 0 and 1 in exported graphs.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "models/shapes/infer.h"
#include "models/shapes/interpreter.h"
#include "models/shapes/probe.h"

namespace refract::models {
namespace {

// The limit that torch.export gives every dynamic size, because PyTorch treats
// 0 and 1 as constants.
constexpr int64_t kExportersMin = 2;
// First size of the other symbols while one symbol is small. The sizes differ,
// so that a shape made of the wrong symbol does not agree by chance.
constexpr int64_t kFirstSmallSize = 4;

// "dimension 0 of ids": the first place of `symbol`, alone or in an expression.
std::string PlaceOf(const Graph& graph, const std::string& symbol) {
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    for (size_t dim = 0; dim < input.shape.size(); ++dim) {
      const std::vector<std::string> symbols = input.shape[dim].Symbols();
      if (std::find(symbols.begin(), symbols.end(), symbol) != symbols.end()) {
        return absl::StrCat("dimension ", dim, " of ", input.name);
      }
    }
  }
  return "";
}

// Whether `symbol` is the length of vectors only, such as ids of bags. Clients
// send requests without ids, but not without a step of a sequence.
bool IsLength(const Graph& graph, const std::string& symbol) {
  return std::all_of(graph.inputs.begin(), graph.inputs.end(), [&](ValueId id) {
    const Value& input = graph.value(id);
    for (const SymExpr& size : input.shape) {
      const std::vector<std::string> symbols = size.Symbols();
      if (std::find(symbols.begin(), symbols.end(), symbol) != symbols.end() &&
          input.shape.size() != 1) {
        return false;
      }
    }
    return true;
  });
}

class Relaxer {
 public:
  Relaxer(const Graph& graph, const ProbeMaker& maker,
          const Interpreter& interpreter)
      : graph_(graph), maker_(maker), interpreter_(interpreter) {}

  // Whether every shape that the graph computes at these sizes is the shape
  // that the export predicts.
  bool Holds(const SymbolBindings& sizes) const {
    InputDims dims;
    for (const ValueId id : graph_.inputs) {
      base::Dims input;
      for (const SymExpr& size : graph_.value(id).shape) {
        const absl::StatusOr<int64_t> value = size.Evaluate(sizes);
        if (!value.ok() || *value < 0) return false;
        input.push_back(*value);
      }
      dims.push_back(std::move(input));
    }
    InterpreterRun run;
    if (!Prober(interpreter_, maker_).Run(dims, run).ok()) return false;
    for (size_t id = 0; id < graph_.values.size(); ++id) {
      if (!Follows(graph_.values[id], run.values[id], sizes)) return false;
    }
    return true;
  }

 private:
  static bool Follows(const Value& value, const Observation& seen,
                      const SymbolBindings& sizes) {
    if (!seen.seen || !value.has_shape || value.is_weight()) return true;
    if (seen.spec.dims.size() != value.shape.size()) return false;
    for (size_t d = 0; d < value.shape.size(); ++d) {
      const absl::StatusOr<int64_t> size = value.shape[d].Evaluate(sizes);
      // Sizes that data decide contain no symbol of an input.
      if (size.ok() && *size != seen.spec.dims[d]) return false;
    }
    return true;
  }

  const Graph& graph_;
  const ProbeMaker& maker_;
  const Interpreter& interpreter_;
};

// Whether every size of `goals` may be 1 and, where its goal is 0, may be 0. A
// run for each size takes minutes where a model has hundreds of tables. So half
// of the sizes are small in a run, by a bit of their position: for each two
// sizes one run has the first small and the second as in `base`.
bool AllHold(const Relaxer& relaxer, const SymbolBindings& base,
             absl::Span<const std::pair<SymbolRange*, int64_t>> goals) {
  for (const int64_t least : {1, 0}) {
    size_t bit = 1;
    do {
      for (const size_t small : {size_t{0}, bit}) {
        SymbolBindings sizes = base;
        for (size_t i = 0; i < goals.size(); ++i) {
          if ((i & bit) != small) continue;
          sizes[goals[i].first->symbol] = std::max(goals[i].second, least);
        }
        if (!relaxer.Holds(sizes)) return false;
      }
      bit <<= 1;
    } while (bit < goals.size());
  }
  return true;
}

// Values for the tensors of a request of any size.
struct Contents {
  std::vector<base::Tensor> owned;
  std::unique_ptr<const ProbeMaker> maker;
};

template <typename T>
void FillWithOnes(absl::Span<T> elements) {
  std::fill(elements.begin(), elements.end(), T{1});
}

// Values of the sample, if given: lengths and offsets fit its ids. Otherwise
// zeros, which are ids of every table, and ones, which are valid lengths.
absl::StatusOr<std::vector<Contents>> ContentsFor(
    absl::Span<const NamedTensor> sample, const Graph& graph,
    const SymbolBindings& sizes) {
  std::vector<Contents> all;
  const auto add = [&](std::vector<base::Tensor> owned,
                       absl::Span<const NamedTensor> named) -> absl::Status {
    REFRACT_ASSIGN_OR_RETURN(ProbeMaker maker,
                             ProbeMaker::Create(graph, named));
    all.push_back({std::move(owned),
                   std::make_unique<const ProbeMaker>(std::move(maker))});
    return absl::OkStatus();
  };
  if (!sample.empty()) REFRACT_RETURN_IF_ERROR(add({}, sample));
  for (const bool ones : {false, true}) {
    absl::StatusOr<std::vector<base::Tensor>> made = ZeroInputs(graph, sizes);
    if (!made.ok()) break;
    std::vector<NamedTensor> named;
    for (size_t i = 0; i < made->size(); ++i) {
      base::Tensor& tensor = (*made)[i];
      if (ones && tensor.dtype() == base::DType::kInt64) {
        FillWithOnes(tensor.as<int64_t>());
      } else if (ones && tensor.dtype() == base::DType::kInt32) {
        FillWithOnes(tensor.as<int32_t>());
      }
      named.push_back({graph.value(graph.inputs[i]).name, tensor.view()});
    }
    REFRACT_RETURN_IF_ERROR(add(*std::move(made), named));
  }
  return all;
}

// The sample's own sizes: the model may relate some of them in a way that the
// export does not say. `others` if the sample does not show them.
SymbolBindings SampleSizes(absl::Span<const NamedTensor> sample,
                           const Graph& graph, SymbolBindings others) {
  for (const NamedTensor& named : sample) {
    const ValueId id = graph.FindValue(named.name);
    if (id == kNoValue) continue;
    const std::vector<SymExpr>& shape = graph.value(id).shape;
    const base::Dims& dims = named.tensor.dims;
    for (size_t d = 0; d < std::min(shape.size(), dims.size()); ++d) {
      if (const auto symbol = shape[d].symbol()) {
        others[*symbol] = std::max(dims[d], kExportersMin);
      }
    }
  }
  return others;
}

}  // namespace

absl::Status RelaxSmallSizes(absl::Span<const NamedTensor> sample,
                             const WeightStore& weights, Graph& graph,
                             std::vector<std::string>& notes) {
  SymbolBindings distinct;
  std::vector<SymbolRange*> limited;
  int64_t next = kFirstSmallSize;
  for (SymbolRange& range : graph.symbols) {
    if (PlaceOf(graph, range.symbol).empty()) continue;
    distinct[range.symbol] = std::clamp(next++, range.min, range.max);
    if (range.symbol != graph.batch_symbol && range.min == kExportersMin) {
      limited.push_back(&range);
    }
  }
  if (limited.empty()) return absl::OkStatus();
  const auto keep = [&](const SymbolRange& range) {
    notes.push_back(absl::StrCat(
        "the export guards ", PlaceOf(graph, range.symbol), " >= ", range.min));
  };
  REFRACT_ASSIGN_OR_RETURN(const std::vector<Contents> contents,
                           ContentsFor(sample, graph, distinct));
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<const Interpreter> interpreter,
                           Interpreter::Create(graph, weights));
  SymbolBindings base;
  std::optional<Relaxer> relaxer;
  for (const Contents& each : contents) {
    for (const SymbolBindings& sizes :
         {distinct, SampleSizes(sample, graph, distinct)}) {
      const Relaxer tried(graph, *each.maker, *interpreter);
      if (relaxer || !tried.Holds(sizes)) continue;
      relaxer.emplace(tried);
      base = sizes;
    }
  }
  if (!relaxer) {
    for (const SymbolRange* range : limited) keep(*range);
    return absl::OkStatus();
  }
  std::vector<std::pair<SymbolRange*, int64_t>> found;
  for (SymbolRange* range : limited) {
    found.push_back({range, IsLength(graph, range->symbol) ? 0 : 1});
  }
  if (!AllHold(*relaxer, base, found)) {
    for (auto& [range, min] : found) {
      const int64_t goal = std::exchange(min, range->min);
      while (min > goal) {
        SymbolBindings small = base;
        small[range->symbol] = min - 1;
        if (!relaxer->Holds(small)) break;
        --min;
      }
    }
  }
  SymbolBindings smallest = base;
  for (const auto& [range, min] : found) smallest[range->symbol] = min;
  // Limits that are right one by one may be wrong together.
  const bool together = relaxer->Holds(smallest);
  for (const auto& [range, min] : found) {
    if (together) range->min = min;
    if (range->min == kExportersMin) keep(*range);
  }
  return absl::OkStatus();
}

}  // namespace refract::models
