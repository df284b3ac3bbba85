#include "cpu_node/shadow/shadow.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/process/idle_thread.h"
#include "base/process/within_memory.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "models/repository/requests/request_files.h"
#include "models/shapes/interpreter.h"

namespace refract::cpu_node {
namespace {

// An interpreter keeps decoded rows of quantized tables. A new interpreter
// starts without them and so bounds that memory.
constexpr int kRunsOfAnInterpreter = 256;

// Largest difference in a histogram's sum; NaN against a number counts as this.
constexpr double kMostDifference = 1000;
constexpr double kUnit = 1e9;

constexpr int kLinesPerSecond = 1;

size_t BytesOf(const std::vector<base::Tensor>& tensors) {
  size_t bytes = 0;
  for (const base::Tensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

}  // namespace

// -------------------------------------------------------------------- version

ShadowVersion::ShadowVersion(std::shared_ptr<const models::LoadedModel> model,
                             std::optional<double> share)
    : model_(std::move(model)),
      padding_(model_->graph),
      tolerance_(runtime::ToleranceOf(
          model_->config,
          model_->plan.has_value() && model_->plan->uses_hn() ? &*model_->plan
                                                              : nullptr,
          share)) {}

ShadowVersion::~ShadowVersion() = default;

absl::Status ShadowVersion::Score(absl::Span<const base::TensorView> inputs,
                                  absl::Span<const base::TensorView> answers) {
  if (runs_++ % kRunsOfAnInterpreter == 0) interpreter_.reset();
  if (interpreter_ == nullptr) {
    REFRACT_ASSIGN_OR_RETURN(
        interpreter_,
        models::Interpreter::Create(model_->graph, *model_->weights));
  }
  // The first scoring padded batches that are too small for the model, too.
  REFRACT_RETURN_IF_ERROR(padding_.Pad(inputs, padded_));
  models::InterpreterRun run;
  absl::Status ran = interpreter_->Run(padded_.inputs(), run);
  if (!ran.ok()) {
    // A failed run is not a difference, whatever its code.
    return absl::InternalError(ran.message());
  }
  std::vector<base::TensorView> wanted = models::ViewsOf(run.outputs);
  padding_.Trim(padded_, absl::MakeSpan(wanted));
  double largest = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (answers[i].dtype == base::DType::kUnknown) {
      wanted[i].dtype = base::DType::kUnknown;
      continue;
    }
    if (answers[i].dtype != wanted[i].dtype) continue;  // reported below
    largest =
        std::max(largest, runtime::Compare(answers[i], wanted[i]).largest);
  }
  differences_.Record(
      static_cast<uint64_t>(kUnit * std::min(largest, kMostDifference)));
  return runtime::CompareWithRecorded(model_->graph, answers, wanted,
                                      tolerance_);
}

// --------------------------------------------------------------------- shadow

Shadow::Shadow(const ShadowOptions& options)
    : options_(options),
      step_(static_cast<uint64_t>(
          std::llround(std::clamp(options.rate, 0.0, 1.0) * 0x1p32))),
      log_(kLinesPerSecond, *options.clock),
      places_(options.max_requests, "--shadow-rate"),
      bytes_(options.max_bytes, "--shadow-rate") {
  thread_ = std::thread([this] { Run(); });
}

Shadow::~Shadow() {
  stop_.store(true, std::memory_order_relaxed);
  waiting_.Close();
  thread_.join();
}

bool Shadow::Sample() {
  const uint64_t before = drawn_.fetch_add(step_, std::memory_order_relaxed);
  // `drawn_` counts in units of 2^-32: the request is drawn when its share
  // makes the sum pass a whole number.
  return ((before + step_) >> 32) != (before >> 32);
}

bool Shadow::HasRoom(size_t bytes) const {
  return places_.held() < places_.bytes() &&
         bytes_.held() + bytes <= bytes_.bytes();
}

void Shadow::Add(Request request) {
  absl::StatusOr<base::ByteBudget::Hold> place = places_.Take(1);
  absl::StatusOr<base::ByteBudget::Hold> bytes =
      bytes_.Take(BytesOf(request.inputs) + BytesOf(request.answers));
  if (!place.ok() || !bytes.ok()) {
    request.version->Count(ShadowOutcome::kDropped);
    return;
  }
  waiting_.Push({*std::move(place), *std::move(bytes), std::move(request),
                 options_.clock->Now()});
}

void Shadow::Run() {
  base::TakeIdleTimeOnly();
  while (std::optional<Waiting> waiting = waiting_.Next()) {
    if (stop_.load(std::memory_order_relaxed)) return;
    if (options_.clock->Now() - waiting->since > options_.max_wait) {
      waiting->request.version->Count(ShadowOutcome::kDropped);
      continue;
    }
    Score(waiting->request);
  }
}

void Shadow::Score(const Request& request) {
  ShadowVersion& version = *request.version;
  const absl::Status status = base::WithinMemory([&] {
    return version.Score(models::ViewsOf(request.inputs),
                         models::ViewsOf(request.answers));
  });
  const bool differs = absl::IsFailedPrecondition(status);
  version.Count(status.ok() ? ShadowOutcome::kAgrees
                : differs   ? ShadowOutcome::kDiffers
                            : ShadowOutcome::kFailed);
  if (status.ok()) return;
  const auto held_back = log_.Admit();
  if (!held_back.has_value()) return;
  LOG(WARNING) << "shadow: request '" << base::Shorten(request.id)
               << "' of model '" << version.model().name << "' version "
               << version.model().version
               << (differs ? " has another answer from LibTorch: "
                           : " was not scored by LibTorch: ")
               << status.message() << *held_back;
}

}  // namespace refract::cpu_node
