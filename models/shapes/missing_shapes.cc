// Shapes that an exported graph lacks.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/shapes/fit.h"
#include "models/shapes/infer.h"
#include "models/shapes/interpreter.h"
#include "models/shapes/probe.h"
#include "models/shapes/symbols.h"

namespace refract::models {
namespace {

// Trial sizes differ for each symbol, so that no two are confused.
constexpr int64_t kFirstSize = 4;

// `size` = factor × its only symbol + offset.
std::optional<SizeSymbol::Member> AffineIn(const SymExpr& size,
                                           const std::string& symbol) {
  std::vector<int64_t> at;
  for (const int64_t value : {10, 11, 100}) {
    const auto size_there = size.Evaluate({{symbol, value}});
    if (!size_there.ok()) return std::nullopt;
    at.push_back(*size_there);
  }
  SizeSymbol::Member member;
  member.factor = at[1] - at[0];
  member.offset = at[0] - 10 * member.factor;
  if (at[2] != 100 * member.factor + member.offset) return std::nullopt;
  return member;
}

// Sizes of the inputs as the export declares them; nullopt when FoundSymbols
// cannot express them.
std::optional<FoundSymbols> SymbolsOf(const Graph& graph) {
  FoundSymbols found;
  SymbolBindings sizes;
  for (const SymbolRange& range : graph.symbols) {
    SizeSymbol symbol;
    symbol.name = range.symbol;
    symbol.base =
        std::clamp(kFirstSize + static_cast<int64_t>(found.symbols.size()),
                   range.min, range.max);
    sizes[range.symbol] = symbol.base;
    found.symbols.push_back(std::move(symbol));
  }
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const Value& input = graph.value(graph.inputs[i]);
    found.base.emplace_back();
    for (size_t d = 0; d < input.shape.size(); ++d) {
      const SymExpr& size = input.shape[d];
      const auto value = size.Evaluate(sizes);
      const std::vector<std::string> names = size.Symbols();
      if (!value.ok() || *value < 0 || names.size() > 1) return std::nullopt;
      found.base.back().push_back(*value);
      if (names.empty()) continue;
      auto member = AffineIn(size, names[0]);
      const auto symbol = std::find_if(
          found.symbols.begin(), found.symbols.end(),
          [&](const SizeSymbol& each) { return each.name == names[0]; });
      if (!member || symbol == found.symbols.end()) return std::nullopt;
      member->place = {i, d};
      symbol->members.push_back(*member);
    }
  }
  // Sizes that data decide belong to no input.
  std::erase_if(found.symbols, [](const SizeSymbol& symbol) {
    return symbol.members.empty();
  });
  return found;
}

// Whether a tensor lacks its shape.
bool Lacks(const Value& value) {
  return value.kind == ValueKind::kTensor && !value.has_shape;
}

}  // namespace

void FillShapes(const WeightStore& weights, Graph& graph) {
  if (std::none_of(graph.values.begin(), graph.values.end(), Lacks)) return;
  const std::optional<FoundSymbols> found = SymbolsOf(graph);
  if (!found) return;
  SymbolBindings sizes;
  for (const SizeSymbol& symbol : found->symbols) {
    sizes[symbol.name] = symbol.base;
  }
  const auto zeros = ZeroInputs(graph, sizes);
  if (!zeros.ok()) return;
  std::vector<NamedTensor> sample;
  for (size_t i = 0; i < zeros->size(); ++i) {
    sample.push_back({graph.value(graph.inputs[i]).name, (*zeros)[i].view()});
  }
  const auto maker = ProbeMaker::Create(graph, sample);
  const auto interpreter = Interpreter::Create(graph, weights);
  if (!maker.ok() || !interpreter.ok()) return;
  const Prober prober(**interpreter, *maker);
  InterpreterRun run;
  if (!prober.Run(found->base, run).ok()) return;
  Graph fitted = graph;
  if (FitShapes(prober, *found, run, fitted)) return;
  for (size_t id = 0; id < graph.values.size(); ++id) {
    Value& value = graph.values[id];
    const Value& seen = fitted.values[id];
    if (Lacks(value) && seen.has_shape) {
      value.dtype = seen.dtype;
      value.has_shape = true;
      value.shape = seen.shape;
    } else if (value.kind == ValueKind::kSymInt &&
               value.sym_value.is_unknown()) {
      value.sym_value = seen.sym_value;
    }
  }
}

}  // namespace refract::models
