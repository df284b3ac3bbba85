#ifndef REFRACT_MODELS_SHAPES_SYMBOLS_H_
#define REFRACT_MODELS_SHAPES_SYMBOLS_H_

// Which sizes of a model's inputs may change, and which change together: found
// by trying.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/graph/graph.h"
#include "models/shapes/interpreter.h"
#include "models/shapes/probe.h"

namespace refract::models {

// The name of the size that counts rows.
inline constexpr absl::string_view kBatchSymbol = "B";

// The most that FitShapes() adds to a size that counts no rows.
inline constexpr int64_t kMaxGrowth = 12;

// A size that a request may choose. Every member is factor × size + offset.
struct SizeSymbol {
  struct Member {
    Place place;
    int64_t factor = 1;
    int64_t offset = 0;
  };
  std::string name;
  int64_t base = 0;  // in the example
  std::vector<Member> members;
};

struct FoundSymbols {
  std::vector<SizeSymbol> symbols;
  // The example's sizes, or slightly larger sizes where the example has one
  // row: a size of 1 broadcasts, and would seem free.
  InputDims base;
  // When no symbol counts rows: the attempt that came closest, and how many
  // rows `base` has.
  InputDims attempt;
  int64_t base_rows = 0;
};

// The dimensions when symbol i has the value values[i].
InputDims DimsAt(const FoundSymbols& found, const std::vector<int64_t>& values);
std::vector<int64_t> BaseValues(const FoundSymbols& found);

// The symbol that leads the first output is named "B"; other leading sizes
// "N0", …, others "T0", …. InvalidArgument: the example itself does not run.
absl::StatusOr<FoundSymbols> FindSymbols(const Graph& graph,
                                         const Prober& prober);

}  // namespace refract::models

#endif  // REFRACT_MODELS_SHAPES_SYMBOLS_H_
