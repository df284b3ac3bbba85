#include "runtime/split_run.h"

#include <utility>

#include "base/status_macros.h"

namespace refract::runtime {

using base::TensorView;

absl::Status RequestRunner::Add(
    const models::Graph& graph, const Part& part,
    std::shared_ptr<const models::WeightStore> weights,
    const CompileOptions& options, const Compiler& compile) {
  REFRACT_ASSIGN_OR_RETURN(auto program,
                           compile(graph, part, std::move(weights), options));
  RunContext context(*program);
  parts_.push_back({std::move(program), std::move(context), {}});
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RequestRunner>> RequestRunner::Whole(
    const models::Graph& graph,
    std::shared_ptr<const models::WeightStore> weights,
    const CompileOptions& options, const Compiler& compile) {
  auto runner = std::unique_ptr<RequestRunner>(new RequestRunner(graph));
  REFRACT_RETURN_IF_ERROR(runner->Add(graph, Part::Whole(graph),
                                      std::move(weights), options, compile));
  return runner;
}

absl::StatusOr<std::unique_ptr<RequestRunner>> RequestRunner::Split(
    const models::Graph& graph, const models::SplitPlan& plan,
    std::shared_ptr<const models::WeightStore> weights,
    const CompileOptions& options, const Compiler& compile_hn) {
  auto runner = std::unique_ptr<RequestRunner>(new RequestRunner(graph));
  REFRACT_RETURN_IF_ERROR(runner->Add(graph, Part::CnPre(graph, plan), weights,
                                      options, Program::Compile));
  REFRACT_RETURN_IF_ERROR(
      runner->Add(graph, Part::Hn(graph, plan), weights, options, compile_hn));
  REFRACT_RETURN_IF_ERROR(runner->Add(graph, Part::CnPost(graph, plan), weights,
                                      options, Program::Compile));
  runner->UseForms(graph, plan);
  return runner;
}

std::vector<const Program*> RequestRunner::programs() const {
  std::vector<const Program*> programs;
  for (const CompiledPart& part : parts_) {
    programs.push_back(part.program.get());
  }
  return programs;
}

void RequestRunner::UseForms(const models::Graph& graph,
                             const models::SplitPlan& plan) {
  up_ = std::make_unique<Crossing>(graph, plan.up, plan.up_forms);
  down_ = std::make_unique<Crossing>(graph, plan.down, plan.down_forms);
}

// Encodes and decodes the values as the two nodes do, so that a run in one
// process has the rounding of the wire forms. If all values are sent unchanged,
// they pass as they are.
absl::StatusOr<absl::Span<const TensorView>> RequestRunner::Crossing::Pass(
    absl::Span<const TensorView> values) {
  REFRACT_ASSIGN_OR_RETURN(const absl::Span<const base::TensorSpec> specs,
                           encoder.Prepare(values));
  tensors.assign(specs.begin(), specs.end());
  if (codec.plain()) return values;
  message.clear();
  std::vector<TensorView> views;
  for (const base::TensorSpec& spec : tensors) {
    REFRACT_ASSIGN_OR_RETURN(base::Tensor tensor,
                             base::Tensor::Allocate(spec.dtype, spec.dims));
    message.push_back(std::move(tensor));
    views.push_back(message.back().view());
  }
  encoder.WriteTo([&](size_t tensor) { return message[tensor].data(); });
  return decoder.Decode(views);
}

absl::Status RequestRunner::RunSplit(absl::Span<const TensorView> inputs,
                                     RunStats* stats) {
  CompiledPart& pre = parts_[0];
  CompiledPart& hn = parts_[1];
  CompiledPart& post = parts_[2];
  REFRACT_RETURN_IF_ERROR(
      pre.program->Run(inputs, {}, pre.context, pre.outputs, stats));
  // Part::CnPre() orders the outputs: first the values that cross, then the
  // values that only CN-post reads.
  const size_t num_up = hn.program->part().inputs.size();
  REFRACT_ASSIGN_OR_RETURN(
      const absl::Span<const TensorView> up,
      up_->Pass(absl::MakeConstSpan(pre.outputs).subspan(0, num_up)));
  // No value comes down: CN-post needs nothing of the HN part.
  if (hn.program->part().outputs.empty()) {
    hn.outputs.clear();
  } else {
    REFRACT_RETURN_IF_ERROR(
        hn.program->Run(up, {}, hn.context, hn.outputs, stats));
  }
  // The order of Part::CnPost(): values of CN-pre, then results of the HN part.
  std::vector<TensorView> post_inputs(pre.outputs.begin() + num_up,
                                      pre.outputs.end());
  REFRACT_ASSIGN_OR_RETURN(const absl::Span<const TensorView> down,
                           down_->Pass(hn.outputs));
  post_inputs.insert(post_inputs.end(), down.begin(), down.end());
  return post.program->Run(post_inputs, {}, post.context, post.outputs, stats);
}

absl::StatusOr<std::vector<base::Tensor>> RequestRunner::Run(
    absl::Span<const TensorView> inputs, RunStats* stats) {
  REFRACT_RETURN_IF_ERROR(padding_.Pad(inputs, batch_));
  CompiledPart& last = parts_.back();
  if (parts_.size() == 1) {
    REFRACT_RETURN_IF_ERROR(last.program->Run(batch_.inputs(), {}, last.context,
                                              last.outputs, stats));
  } else {
    REFRACT_RETURN_IF_ERROR(RunSplit(batch_.inputs(), stats));
  }
  padding_.Trim(batch_, absl::MakeSpan(last.outputs));
  std::vector<base::Tensor> outputs;
  for (const TensorView& view : last.outputs) {
    REFRACT_ASSIGN_OR_RETURN(base::Tensor output, base::Tensor::CopyOf(view));
    outputs.push_back(std::move(output));
  }
  return outputs;
}

}  // namespace refract::runtime
