#ifndef REFRACT_RUNTIME_SPLIT_RUN_H_
#define REFRACT_RUNTIME_SPLIT_RUN_H_

// Runs a whole request in one process, with and without a split, for `refract
// run --mode whole|split` and tests. The nodes do the same over a transport.

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/split_plan.h"
#include "models/repository/weights.h"
#include "runtime/batch_padding.h"
#include "runtime/program.h"
#include "runtime/wire/codec.h"

namespace refract::runtime {

// Takes request inputs and returns the graph's outputs, in the graph's orders;
// pads small batches. Not thread-safe: one per thread.
class RequestRunner {
 public:
  // Compiles the program of the whole graph, or of the HN part of a split, for
  // example for another device.
  using Compiler = std::function<decltype(Program::Compile)>;

  // Errors as Program::Compile.
  static absl::StatusOr<std::unique_ptr<RequestRunner>> Whole(
      const models::Graph& graph,
      std::shared_ptr<const models::WeightStore> weights,
      const CompileOptions& options,
      const Compiler& compile = Program::Compile);
  // Runs CN-pre, HN and CN-post one after the other, with crossing values
  // encoded and decoded as the nodes do it. `plan` must be valid for `graph`;
  // its HN part may be empty.
  static absl::StatusOr<std::unique_ptr<RequestRunner>> Split(
      const models::Graph& graph, const models::SplitPlan& plan,
      std::shared_ptr<const models::WeightStore> weights,
      const CompileOptions& options,
      const Compiler& compile_hn = Program::Compile);

  // Errors as Program::Run.
  absl::StatusOr<std::vector<base::Tensor>> Run(
      absl::Span<const base::TensorView> inputs, RunStats* stats = nullptr);

  // Uses the wire forms of `plan` from now on. Apart from its forms `plan` must
  // be the plan of Split().
  void UseForms(const models::Graph& graph, const models::SplitPlan& plan);

  // The message that the last Run() of a split sent in one direction.
  struct Sent {
    const wire::Codec* codec;
    absl::Span<const base::TensorSpec> tensors;
  };
  Sent sent_up() const { return {&up_->codec, up_->tensors}; }
  Sent sent_down() const { return {&down_->codec, down_->tensors}; }

  // The compiled parts: one, or CN-pre, HN, CN-post.
  std::vector<const Program*> programs() const;

 private:
  struct CompiledPart {
    std::unique_ptr<const Program> program;
    RunContext context;
    std::vector<base::TensorView> outputs;
  };
  explicit RequestRunner(const models::Graph& graph) : padding_(graph) {}
  absl::Status Add(const models::Graph& graph, const Part& part,
                   std::shared_ptr<const models::WeightStore> weights,
                   const CompileOptions& options, const Compiler& compile);
  absl::Status RunSplit(absl::Span<const base::TensorView> inputs,
                        RunStats* stats);

  // The values that cross in one direction, and the memory of their message.
  struct Crossing {
    Crossing(const models::Graph& graph, absl::Span<const models::ValueId> ids,
             absl::Span<const models::WireForm> forms)
        : codec(graph, ids, forms), encoder(codec), decoder(codec) {}
    Crossing(const Crossing&) = delete;
    // Encodes and decodes `values`.
    absl::StatusOr<absl::Span<const base::TensorView>> Pass(
        absl::Span<const base::TensorView> values);

    wire::Codec codec;
    wire::Encoder encoder;
    wire::Decoder decoder;
    std::vector<base::TensorSpec> tensors;
    std::vector<base::Tensor> message;
  };

  BatchPadding padding_;
  std::vector<CompiledPart> parts_;
  std::unique_ptr<Crossing> up_;
  std::unique_ptr<Crossing> down_;
  PaddedBatch batch_;
};

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_SPLIT_RUN_H_
