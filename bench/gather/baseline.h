#ifndef REFRACT_BENCH_GATHER_BASELINE_H_
#define REFRACT_BENCH_GATHER_BASELINE_H_

// The baselines of the merged look-up, on the same bytes. No LibTorch type
// appears here. One thread each; errors end the program.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "bench/gather/tables.h"

namespace refract::bench {

class Baseline {
 public:
  virtual ~Baseline() = default;
  // Pooled vectors of every table, side by side: [batch, tables × dim].
  virtual void Run(const Request& request) = 0;
  // Results of the last run.
  virtual std::vector<float> Result() const = 0;
};

// at::embedding_bag of every table (fp32), then at::cat.
std::unique_ptr<Baseline> MakeEmbeddingBags(const Tables& tables);
// The same with PyTorch's operator for the rows (fused-8bit, fused-4bit); null
// for formats without an operator.
std::unique_ptr<Baseline> MakeQuantizedBags(const Tables& tables);
// FBGEMM's table-batched embedding for inference: one call for all tables;
// tbe-int8, tbe-int4, fp16, fp32. Its ids and offsets are joined outside the
// timed run. Null for other formats. Its operators must have been loaded.
std::unique_ptr<Baseline> MakeTableBatched(const Tables& tables);

}  // namespace refract::bench

#endif  // REFRACT_BENCH_GATHER_BASELINE_H_
