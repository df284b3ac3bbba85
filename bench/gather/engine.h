#ifndef REFRACT_BENCH_GATHER_ENGINE_H_
#define REFRACT_BENCH_GATHER_ENGINE_H_

// The engine as the look-up benchmark runs it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor.h"
#include "bench/gather/tables.h"
#include "models/graph/graph.h"
#include "runtime/program.h"

namespace refract::bench {

// embedding_bag of every table, writing into the memory of a message. One
// thread; an error of a run ends the program.
class Engine {
 public:
  // `cat`: results side by side, else each in a tensor of its own.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const Tables& tables,
                                                        bool cat);
  void Run(const Request& request);
  // Of the last run, as of one table after the other in each item.
  std::vector<float> Result(int64_t batch) const;
  // Medians of the parts of a run, microseconds: inputs, each step, outputs.
  std::vector<double> PartsOf(const Request& request);

 private:
  models::Graph graph_;
  int64_t width_ = 0;
  std::unique_ptr<const runtime::Program> program_;
  std::optional<runtime::RunContext> context_;
  base::AlignedBuffer message_;
  size_t bytes_ = 0;
  std::vector<std::byte*> destinations_;
  std::vector<base::TensorView> outputs_;
};

}  // namespace refract::bench

#endif  // REFRACT_BENCH_GATHER_ENGINE_H_
