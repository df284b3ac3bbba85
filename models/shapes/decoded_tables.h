#ifndef REFRACT_MODELS_SHAPES_DECODED_TABLES_H_
#define REFRACT_MODELS_SHAPES_DECODED_TABLES_H_

// Tables in row formats as float32 tables, for LibTorch's look-ups in probes at
// import. Address space is reserved for the whole decoded table; a row gets
// memory when an id asks for it, so that a table larger than memory costs a
// page for each row that a probe reads.

#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/weights.h"

namespace refract::models {

// For one thread at a time.
class DecodedTables {
 public:
  DecodedTables() = default;
  ~DecodedTables();
  DecodedTables(const DecodedTables&) = delete;
  DecodedTables& operator=(const DecodedTables&) = delete;

  // Finds the look-ups of `graph` in tables that `weights` (by ValueId; empty
  // for other values) holds in row formats, and replaces those views by float32
  // views. Rows are zeros until Read(). ResourceExhausted: no address space.
  absl::Status Replace(const Graph& graph, std::vector<WeightView>& weights);

  // Decodes the rows of every table that looks up ids in value `ids`. Ids
  // outside the table are left to the operator, which refuses them.
  void Read(ValueId ids, const base::TensorView& tensor) const;

 private:
  struct Table {
    WeightView stored;
    float* values = nullptr;
    size_t bytes = 0;
  };
  std::vector<Table> tables_;
  absl::flat_hash_map<ValueId, std::vector<size_t>> readers_;  // of ids
};

}  // namespace refract::models

#endif  // REFRACT_MODELS_SHAPES_DECODED_TABLES_H_
