#include "gpu_node/device/compile_for_cuda.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "gpu_node/device/cuda_batch.h"
#include "models/rows/row_dependence.h"
#include "runtime/compile/bag_inputs.h"
#include "runtime/cuda/instance/instance.h"
#include "runtime/cuda_plan/translate.h"
#include "runtime/executor.h"

namespace refract::gpu_node {
namespace {

namespace cuda = runtime::cuda;
using base::TensorView;
using runtime::RunContext;
using runtime::cuda_plan::SizeValues;
using runtime::cuda_plan::Translator;

class CudaProgram final : public runtime::Program {
 public:
  // `cpu`: the same part compiled for the CPU, for all methods but execution.
  CudaProgram(std::shared_ptr<cuda::DeviceApi> device,
              std::unique_ptr<const Program> cpu,
              std::unique_ptr<Translator> translator, bool may_cut,
              const CompileForCudaOptions& options)
      : options_(options),
        device_(std::move(device)),
        cpu_(std::move(cpu)),
        translator_(std::move(translator)),
        may_cut_(may_cut) {}

  // Errors that are known before any request: a part that cannot be translated,
  // or a program for all sizes that does not fit.
  absl::Status Load() const {
    absl::MutexLock lock(&mu_);
    const runtime::cuda_plan::FreeSizes& sizes = translator_->sizes();
    if (sizes.empty()) {
      return LoadFor({}, sizes.has_batch() ? 1 : options_.max_rows);
    }
    return translator_->Translate(sizes.Smallest()).status();
  }

  const runtime::Part& part() const override { return cpu_->part(); }
  absl::StatusOr<std::vector<std::optional<base::TensorSpec>>> OutputSpecs(
      absl::Span<const TensorView> inputs) const override {
    return cpu_->OutputSpecs(inputs);
  }
  absl::Status OutputSpecs(
      absl::Span<const TensorView> inputs, RunContext& context,
      std::vector<std::optional<base::TensorSpec>>& specs) const override {
    return cpu_->OutputSpecs(inputs, context, specs);
  }
  std::optional<int64_t> BatchOf(
      absl::Span<const TensorView> inputs) const override {
    return cpu_->BatchOf(inputs);
  }
  // One step for the whole part: the program does not know which nodes a kernel
  // computes.
  std::vector<runtime::StepInfo> steps() const override {
    return std::vector<runtime::StepInfo>(1, {part().nodes, options_.device});
  }
  std::vector<std::string> Describe() const override {
    absl::MutexLock lock(&mu_);
    return translation_.steps;
  }
  size_t packed_weight_bytes() const override { return 0; }
  std::unique_ptr<RunContext::State> NewState() const override {
    return cpu_->NewState();
  }

  absl::Status Run(absl::Span<const TensorView> inputs,
                   absl::Span<std::byte* const> destinations,
                   RunContext& context, std::vector<TensorView>& outputs,
                   runtime::RunStats* stats) const override {
    REFRACT_ASSIGN_OR_RETURN(const auto specs, cpu_->OutputSpecs(inputs));
    // One run at a time: all runs share one instance with one slot.
    absl::MutexLock lock(&mu_);
    const int64_t rows = translator_->sizes().has_batch()
                             ? 1
                             : cpu_->BatchOf(inputs).value_or(1);
    REFRACT_ASSIGN_OR_RETURN(const SizeValues sizes,
                             translator_->sizes().Of(inputs));
    if (AnyIsZero(sizes)) {
      return cpu_->Run(inputs, destinations, context, outputs, stats);
    }
    if (instance_ == nullptr || sizes != loaded_for_) {
      // Reserves the rows of this request only: with large sizes few rows fit.
      REFRACT_RETURN_IF_ERROR(
          LoadFor(sizes, std::clamp<int64_t>(rows, 1, options_.max_rows)));
    } else if (!sizes.empty() && rows > loaded_rows_ &&
               loaded_rows_ < options_.max_rows) {
      REFRACT_RETURN_IF_ERROR(
          LoadFor(sizes, std::min(rows, options_.max_rows)));
    }
    REFRACT_RETURN_IF_ERROR(
        runtime::cuda_plan::CheckBags(translation_.bag_checks, inputs));
    REFRACT_ASSIGN_OR_RETURN(
        const std::vector<int64_t> pieces,
        PiecesOf(translation_, inputs, rows, loaded_rows_,
                 may_cut_ && GoesByRows(translation_), options_.device));
    MemberData request;
    for (const std::optional<base::TensorSpec>& spec : specs) {
      if (!spec)
        return absl::InternalError(
            "the size of an output depends on data, which a GPU cannot reserve "
            "memory for");
      REFRACT_ASSIGN_OR_RETURN(base::Tensor result,
                               base::Tensor::Allocate(spec->dtype, spec->dims));
      request.results.push_back(std::move(result));
    }
    int64_t first = 0;
    for (const int64_t end : pieces) {
      REFRACT_RETURN_IF_ERROR(RunPiece(inputs, first, end - first, request));
      first = end;
    }
    // Outputs without a destination stay valid until the next run of this
    // program.
    results_ = std::move(request.results);
    outputs.clear();
    for (size_t i = 0; i < results_.size(); ++i) {
      outputs.push_back(results_[i].view());
      if (i >= destinations.size() || destinations[i] == nullptr) continue;
      std::memcpy(destinations[i], results_[i].data(), results_[i].bytes());
      outputs.back().data = destinations[i];
    }
    if (stats != nullptr) *stats = {};
    return absl::OkStatus();
  }
  // The whole program is one step.
  absl::Status RunTimed(absl::Span<const TensorView> inputs,
                        absl::Span<std::byte* const> destinations,
                        RunContext& context, std::vector<TensorView>& outputs,
                        runtime::StepTimes& times,
                        runtime::TickClock clock) const override {
    times = {};
    const int64_t begin = clock();
    REFRACT_RETURN_IF_ERROR(
        Run(inputs, destinations, context, outputs, nullptr));
    times.steps.push_back(clock() - begin);
    return absl::OkStatus();
  }

 private:
  // Loads the program for these sizes in place of the previous program.
  absl::Status LoadFor(const SizeValues& sizes, int64_t max_rows) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    instance_.reset();
    // Ends before the translation changes, because it reads the weights there;
    // its memory is free for the next instance.
    REFRACT_ASSIGN_OR_RETURN(translation_, translator_->Translate(sizes));
    auto instance = cuda::Instance::Create(
        *device_, translation_.program, translation_.weights,
        {.max_batch = max_rows, .num_slots = 1});
    if (!instance.ok()) return ToAbsl(instance.status());
    REFRACT_RETURN_IF_ERROR(ToAbsl((*instance)->Load()));
    instance_ = *std::move(instance);
    loaded_for_ = sizes;
    loaded_rows_ = max_rows;
    return absl::OkStatus();
  }

  absl::Status RunPiece(absl::Span<const TensorView> inputs, int64_t first,
                        int64_t count, MemberData& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto slot = instance_->Acquire(count);
    if (!slot.ok()) return ToAbsl(slot.status());
    const absl::Status filled =
        FillSlot(translation_, *instance_, *slot, inputs, 0, first, count);
    if (!filled.ok()) {
      instance_->Release(*slot);
      return filled;
    }
    cuda::Status status = instance_->Submit(*slot);
    if (status.ok()) status = instance_->Wait(*slot);
    if (status.ok()) {
      CopyResults(translation_, *instance_, *slot, first, count, request);
    }
    instance_->Release(*slot);
    return ToAbsl(status);
  }

  const CompileForCudaOptions options_;
  const std::shared_ptr<cuda::DeviceApi> device_;
  const std::unique_ptr<const Program> cpu_;
  const std::unique_ptr<Translator> translator_ ABSL_PT_GUARDED_BY(mu_);
  const bool may_cut_;  // rows are independent
  mutable absl::Mutex mu_;
  mutable runtime::cuda_plan::Translation translation_ ABSL_GUARDED_BY(mu_);
  mutable SizeValues loaded_for_ ABSL_GUARDED_BY(mu_);
  mutable int64_t loaded_rows_ ABSL_GUARDED_BY(mu_) = 0;
  // Destroyed before the members below, from which it reads.
  mutable std::unique_ptr<cuda::Instance> instance_ ABSL_GUARDED_BY(mu_);
  mutable std::vector<base::Tensor> results_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<const runtime::Program>> CompileForCuda(
    std::shared_ptr<cuda::DeviceApi> device, const models::Graph& graph,
    const runtime::Part& part,
    std::shared_ptr<const models::WeightStore> weights,
    const CompileForCudaOptions& options) {
  CompileForCudaOptions fitting = options;
  for (const models::SymbolRange& range : graph.symbols) {
    if (range.symbol == graph.batch_symbol) {
      fitting.max_rows =
          std::min(fitting.max_rows, std::max<int64_t>(range.max, 1));
    }
  }
  REFRACT_ASSIGN_OR_RETURN(
      auto cpu,
      runtime::Program::Compile(graph, part, weights, options.compile));
  // An empty part has nothing to run.
  if (part.nodes.empty() || part.outputs.empty()) return cpu;
  runtime::cuda_plan::TranslateOptions translate;
  translate.model = options.model;
  translate.device = options.device;
  translate.precision =
      PrecisionOf(options.compile.config.serving.gpu_precision);
  translate.max_batch = fitting.max_rows;
  translate.entry_memory = options.entry_memory;
  translate.compile = options.compile;
  translate.foreign = options.foreign.get();
  // Memory is allocated for the sizes of each request.
  translate.max_size = std::numeric_limits<int32_t>::max();
  const bool alone =
      models::FindRowDependence(graph).use == models::RowUse::kAlone;
  REFRACT_ASSIGN_OR_RETURN(
      auto translator, Translator::CreateForSingleRequests(graph, part, weights,
                                                           translate, alone));
  const bool may_cut =
      alone && runtime::FindBagInputs(graph, part).why_not.empty();
  auto program =
      std::make_unique<CudaProgram>(std::move(device), std::move(cpu),
                                    std::move(translator), may_cut, fitting);
  REFRACT_RETURN_IF_ERROR(
      base::Annotate(program->Load(), absl::StrCat("model ", options.model)));
  return program;
}

}  // namespace refract::gpu_node
