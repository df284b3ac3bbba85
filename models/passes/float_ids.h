#ifndef REFRACT_MODELS_PASSES_FLOAT_IDS_H_
#define REFRACT_MODELS_PASSES_FLOAT_IDS_H_

// Ids that arrive as floats. CTR code often packs dense features and ids into
// one matrix of float32 and casts columns back to integers. A float with p
// bits of significand represents every integer up to 2^p and only some above
// (IEEE 754: float32 24, float64 53, float16 11; bfloat16 8): a larger table
// has rows that no request can name, and asking for such a row answers with
// another row.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/graph/graph.h"

namespace refract::models {

struct FloatIds {
  std::string node;   // the look-up
  std::string table;  // weight name
  int64_t rows = 0;
  std::string input;
  int64_t column = -1;  // of a matrix input; -1: not a single column
  base::DType dtype = base::DType::kUnknown;  // narrowest type on the way
  int64_t limit = 0;                          // exact ids: 0 … limit
};

// Every look-up whose ids come from a float input through slices, views, joins,
// rounding, bounds and casts, once per input column. Arithmetic ends the
// search: its results are not a client's ids.
std::vector<FloatIds> FindFloatIds(const Graph& graph);

// InvalidArgument names table, column and limit of a look-up that floats cannot
// address.
absl::Status CheckFloatIds(const Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_PASSES_FLOAT_IDS_H_
