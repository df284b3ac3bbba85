#include "models/shapes/fit.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "models/graph/script_region.h"

namespace refract::models {
namespace {

// Sizes that depend on more symbols than this are not tried as products.
constexpr size_t kMaxFactors = 6;

// Trial batches beside the example's: small ones, its neighbours, and a batch
// for which no buffer of the example suffices. CheckRows() tries 1.
std::vector<int64_t> Batches(int64_t base) {
  std::vector<int64_t> batches = {2, 3, 7, base + 1, base - 1, 33};
  std::sort(batches.begin(), batches.end());
  batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
  std::erase_if(batches, [base](int64_t b) { return b < 2 || b == base; });
  return batches;
}

// A dimension's size in a run, or a number; nullopt if there is none.
struct Quantity {
  ValueId id = kNoValue;
  int dim = -1;  // −1: the number of a kSymInt

  std::optional<int64_t> In(const InterpreterRun& run) const {
    const Observation& seen = run.values[id];
    if (!seen.seen) return std::nullopt;
    if (dim < 0) return seen.number;
    if (static_cast<size_t>(dim) >= seen.spec.dims.size()) return std::nullopt;
    return seen.spec.dims[dim];
  }
};

class Fitter {
 public:
  Fitter(const Prober& prober, const FoundSymbols& found,
         const InterpreterRun& base_run, Graph& graph)
      : prober_(prober), found_(found), base_run_(base_run), graph_(graph) {}

  std::optional<FailedProbe> Run() {
    // One run per symbol, moved by one: these give the slopes.
    const std::vector<int64_t> base = BaseValues(found_);
    for (size_t s = 0; s < base.size(); ++s) {
      std::vector<int64_t> values = base;
      ++values[s];
      InterpreterRun run;
      if (auto failed = Probe(values, run)) return failed;
      moved_.push_back(std::move(run));
    }
    // All symbols at once, each at a new value.
    // Runs at other values check the fitted expressions. A symbol's step
    // differs from run to run and from symbol to symbol, so that no wrong slope
    // cancels another.
    for (int64_t batch : Batches(BatchBase())) {
      if (batch < graph_.min_batch) continue;
      std::vector<int64_t> values = base;
      for (size_t s = 0; s < base.size(); ++s) {
        if (found_.symbols[s].name == kBatchSymbol) {
          values[s] = batch;
        } else {
          values[s] += 2 + static_cast<int64_t>(3 * s + checks_.size()) %
                               (kMaxGrowth - 1);
        }
      }
      InterpreterRun run;
      // The first run takes other rows of the sample, because a size that
      // depends on data must not look constant. A model may insist on the
      // sample's order (falling lengths).
      const auto shift = static_cast<int64_t>(checks_.size() + 1);
      std::optional<FailedProbe> failed = Probe(values, run, shift);
      if (failed) failed = Probe(values, run);
      if (failed) {
        std::vector<int64_t> spread = AsInExample(values, batch);
        InterpreterRun other;
        if (!Probe(spread, other)) {
          values = std::move(spread);
          run = std::move(other);
          failed.reset();
        }
      }
      if (failed) {
        // A batch above the example's must run, since the example ran.
        if (batch > BatchBase() || !NeedsRows(*failed)) return failed;
        graph_.min_batch = batch + 1;
        continue;
      }
      checks_.push_back({std::move(values), std::move(run)});
    }
    // The example's sizes with other contents, which need not be valid: a size
    // that changes is not fitted.
    for (const ProbeContents contents :
         {ProbeContents::kOpposite, ProbeContents::kEqual}) {
      InterpreterRun run;
      if (prober_.Run(DimsAt(found_, base), run, 0, contents).ok()) {
        checks_.push_back({base, std::move(run)});
      }
    }
    for (size_t id = 0; id < graph_.values.size(); ++id) {
      Describe(static_cast<ValueId>(id));
    }
    return std::nullopt;
  }

 private:
  struct Check {
    std::vector<int64_t> values;
    InterpreterRun run;
  };

  int64_t BatchBase() const {
    for (const SizeSymbol& symbol : found_.symbols) {
      if (symbol.name == kBatchSymbol) return symbol.base;
    }
    return 2;
  }

  std::optional<FailedProbe> Probe(const std::vector<int64_t>& values,
                                   InterpreterRun& run,
                                   int64_t shift = 0) const {
    const absl::Status status = prober_.Run(DimsAt(found_, values), run, shift);
    if (status.ok()) return std::nullopt;
    FailedProbe failed;
    failed.run = std::move(run);
    failed.status = status;
    for (size_t s = 0; s < values.size(); ++s) {
      if (found_.symbols[s].name == kBatchSymbol) failed.rows = values[s];
    }
    return failed;
  }

  // `values` with about as many entries per row as in the example: a model that
  // pads rows to a fixed number of steps refuses more.
  std::vector<int64_t> AsInExample(std::vector<int64_t> values,
                                   int64_t batch) const {
    for (size_t s = 0; s < values.size(); ++s) {
      const SizeSymbol& symbol = found_.symbols[s];
      if (symbol.name[0] != 'N') continue;
      // Not proportional to the batch: sizes must not be taken for the other's.
      const auto fewer = static_cast<int64_t>(checks_.size() % 3);
      values[s] =
          std::max<int64_t>(symbol.base * batch / BatchBase() - fewer, 1);
    }
    return values;
  }

  // Whether an operator refuses a request for having fewer rows than its
  // documented minimum, which is no sign of a specialised trace.
  bool NeedsRows(const FailedProbe& failed) const {
    if (failed.run.failed == kNoNode) return false;
    const std::string& op = graph_.nodes[failed.run.failed].op;
    return op == "aten.topk.default" || op == "aten.kthvalue.default";
  }

  void Describe(ValueId id) {
    Value& value = graph_.values[id];
    const Observation& seen = base_run_.values[id];
    if (!seen.seen || value.is_weight()) return;
    if (value.kind == ValueKind::kSymInt) {
      if (!IsDatum(value)) value.sym_value = Fit({id, -1});
      return;
    }
    if (value.kind != ValueKind::kTensor) return;
    value.dtype = seen.spec.dtype;
    const size_t rank = seen.spec.dims.size();
    for (const InterpreterRun& run : moved_) {
      // A rank that differs between runs has no shape.
      if (run.values[id].spec.dims.size() != rank) return;
    }
    for (const Check& check : checks_) {
      if (check.run.values[id].spec.dims.size() != rank) return;
    }
    value.has_shape = true;
    value.shape.clear();
    for (size_t d = 0; d < rank; ++d) {
      value.shape.push_back(Fit({id, static_cast<int>(d)}));
    }
  }

  // A number read from a tensor's contents: it varies with the data, even if
  // the sample has equal numbers everywhere.
  bool IsDatum(const Value& value) const {
    if (value.producer == kNoNode) return false;
    const Node& node = graph_.nodes[value.producer];
    return node.op == "aten.item.default" || IsRegion(node);
  }

  // Newton's form around the example: f0 + Σ slope·Δs + Σ mixed·Δs·Δt.
  struct Form {
    int64_t origin = 0;
    std::vector<int64_t> slopes;
    std::map<std::pair<size_t, size_t>, int64_t> mixed;
  };

  SymExpr Fit(const Quantity& quantity) {
    Form form;
    form.origin = *quantity.In(base_run_);
    std::vector<size_t> factors;
    for (size_t s = 0; s < moved_.size(); ++s) {
      const auto size = quantity.In(moved_[s]);
      if (!size) return SymExpr();
      form.slopes.push_back(*size - form.origin);
      if (form.slopes[s] != 0) factors.push_back(s);
    }
    // Affine first: most sizes are, and each pair of symbols costs a run.
    if (!Holds(quantity, form)) {
      if (factors.size() < 2 || factors.size() > kMaxFactors) return SymExpr();
      for (size_t a = 0; a < factors.size(); ++a) {
        for (size_t b = a + 1; b < factors.size(); ++b) {
          const InterpreterRun* run = MovedBoth(factors[a], factors[b]);
          if (run == nullptr) return SymExpr();
          const auto size = quantity.In(*run);
          if (!size) return SymExpr();
          form.mixed[{factors[a], factors[b]}] = *size - form.origin -
                                                 form.slopes[factors[a]] -
                                                 form.slopes[factors[b]];
        }
      }
      if (!Holds(quantity, form)) return SymExpr();
    }
    return Expression(form);
  }

  // The run with both symbols one step from the example, made once for all
  // quantities; nullptr where it fails.
  const InterpreterRun* MovedBoth(size_t a, size_t b) {
    const auto [it, inserted] = both_.try_emplace({a, b});
    if (inserted) {
      std::vector<int64_t> values = BaseValues(found_);
      ++values[a];
      ++values[b];
      it->second.emplace();
      if (Probe(values, *it->second)) it->second.reset();
    }
    return it->second ? &*it->second : nullptr;
  }

  bool Holds(const Quantity& quantity, const Form& form) const {
    for (const Check& check : checks_) {
      int64_t size = form.origin;
      for (size_t s = 0; s < form.slopes.size(); ++s) {
        size += form.slopes[s] * Delta(check, s);
      }
      for (const auto& [pair, factor] : form.mixed) {
        size += factor * Delta(check, pair.first) * Delta(check, pair.second);
      }
      if (quantity.In(check.run) != size) return false;
    }
    return true;
  }

  int64_t Delta(const Check& check, size_t s) const {
    return check.values[s] - found_.symbols[s].base;
  }

  // Multiplies the form out: f0 + Σ slope·(s − s0) + Σ mixed·(s − s0)·(t − t0)
  // as a polynomial of the symbols.
  SymExpr Expression(const Form& form) const {
    int64_t constant = form.origin;
    std::vector<int64_t> linear = form.slopes;
    for (size_t s = 0; s < linear.size(); ++s) {
      constant -= form.slopes[s] * found_.symbols[s].base;
    }
    SymExpr expression(0);
    for (const auto& [pair, factor] : form.mixed) {
      if (factor == 0) continue;
      const auto& [a, b] = pair;
      const SizeSymbol& first = found_.symbols[a];
      const SizeSymbol& second = found_.symbols[b];
      linear[a] -= factor * second.base;
      linear[b] -= factor * first.base;
      constant += factor * first.base * second.base;
      expression = expression + SymExpr(factor) * SymExpr::Symbol(first.name) *
                                    SymExpr::Symbol(second.name);
    }
    for (size_t s = 0; s < linear.size(); ++s) {
      if (linear[s] == 0) continue;
      expression = expression +
                   SymExpr(linear[s]) * SymExpr::Symbol(found_.symbols[s].name);
    }
    return expression + SymExpr(constant);
  }

  const Prober& prober_;
  const FoundSymbols& found_;
  const InterpreterRun& base_run_;
  Graph& graph_;
  std::vector<InterpreterRun> moved_;  // each symbol one step from base
  std::vector<Check> checks_;
  std::map<std::pair<size_t, size_t>, std::optional<InterpreterRun>> both_;
};

}  // namespace

std::optional<FailedProbe> FitShapes(const Prober& prober,
                                     const FoundSymbols& found,
                                     const InterpreterRun& base_run,
                                     Graph& graph) {
  return Fitter(prober, found, base_run, graph).Run();
}

}  // namespace refract::models
