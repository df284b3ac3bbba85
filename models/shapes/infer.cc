#include "models/shapes/infer.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/passes/functionalize.h"
#include "models/shapes/fit.h"
#include "models/shapes/interpreter.h"
#include "models/shapes/probe.h"
#include "models/shapes/specialised.h"
#include "models/shapes/symbols.h"

namespace refract::models {
namespace {

// A run at other sizes that proves the specialisation.
struct Evidence {
  const InterpreterRun& good;
  int64_t rows;
  const InterpreterRun& bad;
  int64_t bad_rows;
  ValueId output;  // kNoValue when the run failed
  std::string what;
};

absl::Status Specialised(const Graph& graph, const Evidence& evidence) {
  const NodeId culprit =
      FindCulprit(graph, evidence.good, evidence.rows, evidence.bad,
                  evidence.bad_rows, evidence.output);
  return absl::InvalidArgumentError(absl::StrCat(
      "the trace is specialised to its batch of ", evidence.rows, ": ",
      culprit == kNoNode ? "its output" : DescribeNode(graph, culprit),
      " does not follow the batch (", evidence.what, " with ",
      evidence.bad_rows,
      " rows); compute sizes from tensors (x.shape[0], not len(x) or a number) "
      "or use torch.export, and trace again. If this size rightly stays the "
      "same at any batch, give a --sample with another batch"));
}

// The number of output rows depends on no variable size.
absl::Status ExplainNoBatch(const Graph& graph, const Prober& prober,
                            const FoundSymbols& found,
                            const InterpreterRun& base_run) {
  InputDims dims = found.attempt;
  int64_t rows = found.base_rows;
  // No attempt is recorded: take the size that most inputs share, as the
  // likeliest batch, one step further.
  if (dims.empty() && !found.symbols.empty()) {
    const auto largest =
        std::max_element(found.symbols.begin(), found.symbols.end(),
                         [](const SizeSymbol& a, const SizeSymbol& b) {
                           return a.members.size() < b.members.size();
                         });
    std::vector<int64_t> values = BaseValues(found);
    ++values[largest - found.symbols.begin()];
    dims = DimsAt(found, values);
    rows = largest->base;
  }
  if (dims.empty()) {
    return absl::InvalidArgumentError(
        "the model runs at no other size of any input, so its batch dimension "
        "is not found; give a --sample with two rows or more, in which no "
        "other size equals the number of rows by chance");
  }
  InterpreterRun bad;
  const absl::Status status = prober.Run(dims, bad);
  Evidence evidence{base_run, rows, bad, rows + 1, kNoValue, ""};
  if (status.ok()) {
    evidence.output = graph.outputs[0];
    evidence.what = absl::StrCat(
        "output_0 has the shape ",
        base::DimsToString(bad.values[graph.outputs[0]].spec.dims));
  } else {
    evidence.what = std::string(status.message());
  }
  return Specialised(graph, evidence);
}

// For a model without an output of the batch's rows (the best of all rows, a
// mean over them): takes the size that leads most inputs for the batch, as in
// an export (torch_export::ChooseBatchSymbol()). False if no size leads an
// input, or if a size of an output may be the fixed batch of the trace.
bool ChooseBatch(const Graph& graph, const Prober& prober,
                 const InterpreterRun& base_run, FoundSymbols& found) {
  const auto leads = [](const SizeSymbol& symbol) {
    return std::count_if(
        symbol.members.begin(), symbol.members.end(),
        [](const SizeSymbol::Member& each) { return each.place.dim == 0; });
  };
  const auto most =
      std::max_element(found.symbols.begin(), found.symbols.end(),
                       [&leads](const SizeSymbol& a, const SizeSymbol& b) {
                         return leads(a) < leads(b);
                       });
  if (most == found.symbols.end() || leads(*most) == 0) return false;
  // A near and a far batch: a size of an output that stays at the example's
  // number of rows may be the trace's fixed batch.
  for (const int64_t further : {most->base + 1, 7 * most->base + 1}) {
    std::vector<int64_t> values = BaseValues(found);
    values[most - found.symbols.begin()] = further;
    InterpreterRun run;
    if (!prober.Run(DimsAt(found, values), run).ok()) return false;
    for (const ValueId output : graph.outputs) {
      const base::Dims& good = base_run.values[output].spec.dims;
      const base::Dims& other = run.values[output].spec.dims;
      if (good.size() != other.size()) return false;
      for (size_t d = 0; d < good.size(); ++d) {
        if (good[d] == most->base && other[d] == good[d]) return false;
      }
    }
  }
  most->name = std::string(kBatchSymbol);
  return true;
}

// Whether an output's leading size belongs to another input, whose number of
// rows equals the batch only in the example.
bool FollowsAnother(const Prober& prober, const FoundSymbols& found,
                    size_t batch, ValueId output) {
  for (size_t s = 0; s < found.symbols.size(); ++s) {
    if (s == batch) continue;
    std::vector<int64_t> values = BaseValues(found);
    values[s] = 7 * values[s] + 1;
    InterpreterRun run;
    if (!prober.Run(DimsAt(found, values), run).ok()) continue;
    const base::Dims& dims = run.values[output].spec.dims;
    if (!dims.empty() && dims[0] == values[s]) return true;
  }
  return false;
}

// Each output that has the example's batch as a size must follow the batch.
absl::Status CheckOutputs(const Graph& graph, const Prober& prober,
                          const FoundSymbols& found,
                          const InterpreterRun& base_run) {
  std::vector<int64_t> values = BaseValues(found);
  size_t batch = 0;
  while (found.symbols[batch].name != kBatchSymbol) ++batch;
  // A batch that is no multiple of the example's, and far from it.
  values[batch] = 7 * values[batch] + 1;
  InterpreterRun run;
  const absl::Status status = prober.Run(DimsAt(found, values), run);
  const int64_t rows = found.symbols[batch].base;
  if (!status.ok()) {
    return Specialised(graph, {base_run, rows, run, values[batch], kNoValue,
                               std::string(status.message())});
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const base::Dims& good = base_run.values[graph.outputs[i]].spec.dims;
    const base::Dims& bad = run.values[graph.outputs[i]].spec.dims;
    if (!good.empty() && good[0] == rows &&
        (bad.empty() || bad[0] != values[batch]) &&
        !FollowsAnother(prober, found, batch, graph.outputs[i])) {
      return Specialised(graph,
                         {base_run, rows, run, values[batch], graph.outputs[i],
                          absl::StrCat(graph.output_names[i], " has the shape ",
                                       base::DimsToString(bad))});
    }
  }
  return absl::OkStatus();
}

void DescribeInputs(const FoundSymbols& found, const ProbeMaker& maker,
                    Graph& graph) {
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    Value& value = graph.values[graph.inputs[i]];
    value.dtype = maker.sample()[i].dtype;
    value.has_shape = true;
    value.shape.assign(found.base[i].begin(), found.base[i].end());
  }
  graph.symbols.clear();
  for (const SizeSymbol& symbol : found.symbols) {
    // A ragged length may be 0: all bags empty.
    const bool ragged = symbol.name[0] == 'N';
    graph.symbols.push_back({symbol.name, ragged ? 0 : 1, INT64_MAX});
    if (symbol.name == kBatchSymbol) graph.batch_symbol = symbol.name;
    for (const SizeSymbol::Member& member : symbol.members) {
      graph.values[graph.inputs[member.place.input]].shape[member.place.dim] =
          SymExpr(member.factor) * SymExpr::Symbol(symbol.name) +
          SymExpr(member.offset);
    }
  }
}

}  // namespace

absl::Status InferShapes(absl::Span<const NamedTensor> sample,
                         const WeightStore& weights, Graph& graph) {
  REFRACT_ASSIGN_OR_RETURN(const ProbeMaker maker,
                           ProbeMaker::Create(graph, sample));
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<const Interpreter> interpreter,
                           Interpreter::Create(graph, weights));
  const Prober prober(*interpreter, maker);
  REFRACT_ASSIGN_OR_RETURN(FoundSymbols found, FindSymbols(graph, prober));
  InterpreterRun base_run;
  REFRACT_RETURN_IF_ERROR(prober.Run(found.base, base_run));
  const auto find_batch = [&found] {
    return std::find_if(
        found.symbols.begin(), found.symbols.end(),
        [](const SizeSymbol& symbol) { return symbol.name == kBatchSymbol; });
  };
  if (find_batch() == found.symbols.end() &&
      !ChooseBatch(graph, prober, base_run, found)) {
    return ExplainNoBatch(graph, prober, found, base_run);
  }
  const auto batch = find_batch();
  REFRACT_RETURN_IF_ERROR(CheckOutputs(graph, prober, found, base_run));
  if (const auto failed = FitShapes(prober, found, base_run, graph)) {
    return Specialised(
        graph, {base_run, batch->base, failed->run, failed->rows, kNoValue,
                std::string(failed->status.message())});
  }
  DescribeInputs(found, maker, graph);
  RemoveNoOpCasts(graph);
  return ValidateGraph(graph);
}

}  // namespace refract::models
