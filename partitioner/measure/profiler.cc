#include "partitioner/measure/profiler.h"

#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/quantile.h"
#include "base/status_macros.h"
#include "models/graph/constants.h"
#include "models/repository/requests/request_files.h"
#include "models/repository/split_plan.h"
#include "runtime/batch_padding.h"

namespace refract::partitioner {
namespace {

constexpr double kNanosecond = 1e-9;

// The time that reading the clock adds to an interval.
int64_t ClockTicks(runtime::TickClock clock) {
  // The median of back-to-back readings; single readings may be interrupted.
  constexpr int kLooks = 2001;
  std::vector<int64_t> ticks;
  int64_t last = clock();
  for (int i = 0; i < kLooks; ++i) {
    const int64_t now = clock();
    ticks.push_back(now - std::exchange(last, now));
  }
  std::nth_element(ticks.begin(), ticks.begin() + kLooks / 2, ticks.end());
  return ticks[kLooks / 2];
}

// Brings every page of the weights in, by volatile reads, which no compiler
// removes.
void TouchWeights(const models::LoadedModel& model) {
  constexpr size_t kPage = 4096;
  for (const models::WeightEntry& entry : model.weights->table().entries) {
    const auto view = model.weights->GetAsStored(entry.name);
    if (!view.ok() || !view->is_contiguous()) continue;
    const size_t bytes = view->bytes();
    const volatile std::byte* const data = view->data;
    for (size_t at = 0; at < bytes; at += kPage) {
      static_cast<void>(data[at]);
    }
  }
}

// Seconds of one quantity: per batch, per repetition.
using Series = std::vector<std::vector<double>>;

Timing ToTiming(const std::vector<int64_t>& batches, const Series& series) {
  std::vector<Timing::Sample> samples;
  for (size_t b = 0; b < batches.size(); ++b) {
    samples.push_back({batches[b], base::QuartilesOf(series[b])});
  }
  return MakeTiming(std::move(samples));
}

class Profiler {
 public:
  // `apart`: the same program with the values between operators of one step
  // written out; null if no step has such values.
  Profiler(const models::LoadedModel& model, RequestSource& source,
           const ProfilerOptions& options, const runtime::Program& program,
           const runtime::Program* apart)
      : source_(source),
        options_(options),
        program_(program),
        apart_(apart),
        padding_(model.graph),
        context_(program),
        clock_ticks_(ClockTicks(options.clock)),
        steps_(program.steps().size(), Empty()),
        run_(Empty()),
        whole_(Empty()) {
    if (apart_ == nullptr) return;
    apart_context_.emplace(*apart_);
    apart_steps_.assign(apart_->steps().size(), Empty());
  }

  absl::Status Measure() {
    const int rounds = options_.repetitions + 1;
    const int batches = static_cast<int>(options_.batches.size());
    for (int round = 0; round < rounds; ++round) {
      for (int turn = 0; turn < batches; ++turn) {
        // Every round begins with another batch, so the caches that a batch
        // finds differ from round to round.
        const size_t batch = (turn + round) % batches;
        // The first round grows buffers and warms code.
        const absl::Status status = Repeat(batch, /*keep=*/round > 0);
        if (!status.ok()) {
          return base::Annotate(status, absl::StrCat("a request of batch ",
                                                     options_.batches[batch]));
        }
        if (options_.progress) {
          options_.progress(round * batches + turn + 1, rounds * batches);
        }
      }
    }
    return absl::OkStatus();
  }

  void Fill(const models::Graph& graph, Profile& profile) const {
    const std::vector<runtime::StepInfo> steps = program_.steps();
    std::vector<bool> covered(graph.nodes.size(), false);
    for (size_t i = 0; i < steps.size(); ++i) {
      for (const models::NodeId node : steps[i].nodes) covered[node] = true;
      profile.operators.push_back({steps[i].nodes, steps[i].kernel,
                                   ToTiming(options_.batches, steps_[i])});
    }
    // Nodes without a step: views, sizes and constants.
    for (size_t n = 0; n < covered.size(); ++n) {
      if (!covered[n]) {
        profile.free_nodes.push_back(static_cast<models::NodeId>(n));
      }
    }
    if (apart_ != nullptr) FillPieces(profile);
    profile.run = ToTiming(options_.batches, run_);
    profile.whole = ToTiming(options_.batches, whole_);
    profile.clock_s = static_cast<double>(clock_ticks_) * kNanosecond;
  }

 private:
  Series Empty() const { return Series(options_.batches.size()); }

  // Gives operators of several nodes the times of their parts in `apart`.
  void FillPieces(Profile& profile) const {
    const std::vector<runtime::StepInfo> steps = apart_->steps();
    for (Profile::Operator& op : profile.operators) {
      size_t found = 0;
      for (size_t i = 0; i < steps.size() && op.nodes.size() > 1; ++i) {
        const auto is_of_op = [&](models::NodeId node) {
          return std::binary_search(op.nodes.begin(), op.nodes.end(), node);
        };
        // A step of `apart` is a piece if all its nodes belong to this
        // operator.
        if (!std::all_of(steps[i].nodes.begin(), steps[i].nodes.end(),
                         is_of_op)) {
          continue;
        }
        op.pieces.push_back(
            {steps[i].nodes, ToTiming(options_.batches, apart_steps_[i])});
        found += steps[i].nodes.size();
      }
      // Values written out may change how `apart` is fused. Pieces count only
      // if they cover the operator.
      if (op.pieces.size() < 2 || found != op.nodes.size()) op.pieces.clear();
    }
  }

  // Runs `program` until a try is not interrupted; keeps the quickest times.
  absl::Status Quickest(const runtime::Program& program,
                        runtime::RunContext& context, size_t batch,
                        runtime::StepTimes& quickest) {
    quickest.steps.clear();
    return Try(batch,
               [&]() -> absl::StatusOr<int64_t> {
                 REFRACT_RETURN_IF_ERROR(
                     program.RunTimed(padded_.inputs(), {}, context, outputs_,
                                      times_, options_.clock));
                 if (quickest.steps.empty() ||
                     times_.total() < quickest.total()) {
                   quickest = times_;
                 }
                 return times_.total();
               })
        .status();
  }

  absl::Status Repeat(size_t batch, bool keep) {
    // A node gets similar requests one after the other. The request before and
    // the wait after it decide where dense weights and buffers are in the
    // caches; looked-up rows differ for each request.
    REFRACT_RETURN_IF_ERROR(MakeRequest(batch));
    REFRACT_RETURN_IF_ERROR(
        program_.Run(padded_.inputs(), {}, context_, outputs_));
    runtime::StepTimes quickest;
    REFRACT_RETURN_IF_ERROR(Quickest(program_, context_, batch, quickest));
    REFRACT_ASSIGN_OR_RETURN(
        const int64_t whole, Try(batch, [&]() -> absl::StatusOr<int64_t> {
          const int64_t begin = options_.clock();
          REFRACT_RETURN_IF_ERROR(
              program_.Run(padded_.inputs(), {}, context_, outputs_));
          return options_.clock() - begin;
        }));
    // The program of the pieces, in the same turn: a slow spell hits both
    // programs alike.
    if (apart_ != nullptr) {
      runtime::StepTimes times;
      REFRACT_RETURN_IF_ERROR(MakeRequest(batch));
      REFRACT_RETURN_IF_ERROR(
          apart_->Run(padded_.inputs(), {}, *apart_context_, outputs_));
      REFRACT_RETURN_IF_ERROR(Quickest(*apart_, *apart_context_, batch, times));
      for (size_t i = 0; keep && i < apart_steps_.size(); ++i) {
        apart_steps_[i][batch].push_back(Seconds(times.steps[i], 1));
      }
    }
    if (!keep) return absl::OkStatus();
    for (size_t i = 0; i < steps_.size(); ++i) {
      steps_[i][batch].push_back(Seconds(quickest.steps[i], 1));
    }
    // Each interval contains readings of the clock (Program::RunTimed): one per
    // step, two around them.
    run_[batch].push_back(Seconds(quickest.before + quickest.after, 2));
    whole_[batch].push_back(Seconds(whole, 0));
    return absl::OkStatus();
  }

  // The shortest time that `run` reports with a fresh request, of several tries
  // of which at least one was not interrupted.
  template <typename Run>
  absl::StatusOr<int64_t> Try(size_t batch, Run run) {
    int64_t least = INT64_MAX;
    for (int tries = 0; tries < kMostTries; ++tries) {
      REFRACT_RETURN_IF_ERROR(MakeRequest(batch));
      if (options_.wait) options_.wait();
      const int64_t before = options_.interruptions();
      REFRACT_ASSIGN_OR_RETURN(const int64_t took, run());
      least = std::min(least, took);
      if (options_.interruptions() == before) break;
    }
    return least;
  }

  absl::Status MakeRequest(size_t batch) {
    REFRACT_ASSIGN_OR_RETURN(request_, source_.Make(options_.batches[batch]));
    views_ = models::ViewsOf(request_);
    return padding_.Pad(views_, padded_);
  }

  // Subtracts the time of `looks` readings of the clock.
  double Seconds(int64_t ticks, int looks) const {
    return static_cast<double>(
               std::max<int64_t>(0, ticks - looks * clock_ticks_)) *
           kNanosecond;
  }

  RequestSource& source_;
  const ProfilerOptions& options_;
  const runtime::Program& program_;
  const runtime::Program* const apart_;
  const runtime::BatchPadding padding_;
  runtime::RunContext context_;
  std::optional<runtime::RunContext> apart_context_;
  const int64_t clock_ticks_;
  std::vector<Series> steps_;
  std::vector<Series> apart_steps_;
  Series run_;
  Series whole_;

  // The request of the current repetition.
  std::vector<base::Tensor> request_;
  std::vector<base::TensorView> views_;
  runtime::PaddedBatch padded_;
  std::vector<base::TensorView> outputs_;
  runtime::StepTimes times_;
};

// Values that the operators of one step hand to each other, where a plan could
// cut.
std::vector<models::ValueId> InnerValues(const models::Graph& graph,
                                         const runtime::Program& program) {
  std::set<models::ValueId> inner;
  const std::vector<bool> constant = models::ConstantNodes(graph);
  for (const runtime::StepInfo& step : program.steps()) {
    for (const models::NodeId node : step.nodes) {
      for (const models::ValueId id : models::InputsOf(graph.nodes[node])) {
        const models::Value& value = graph.value(id);
        if (value.producer != models::kNoNode && !constant[value.producer] &&
            models::MayCross(value) &&
            std::binary_search(step.nodes.begin(), step.nodes.end(),
                               value.producer)) {
          inner.insert(id);
        }
      }
    }
  }
  // Outputs of the graph are written anyway.
  for (const models::ValueId id : graph.outputs) inner.erase(id);
  return {inner.begin(), inner.end()};
}

}  // namespace

int64_t ThreadInterruptions() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

absl::StatusOr<Profile> MeasureProfile(const models::LoadedModel& model,
                                       RequestSource& source,
                                       const ProfilerOptions& options) {
  runtime::CompileOptions compile;
  compile.config = model.config;
  REFRACT_ASSIGN_OR_RETURN(
      const auto program,
      runtime::Program::Compile(model.graph, runtime::Part::Whole(model.graph),
                                model.weights, compile));
  runtime::Part part = runtime::Part::Whole(model.graph);
  const std::vector<models::ValueId> inner = InnerValues(model.graph, *program);
  // Inner values that are results must be written to memory, which ends the
  // fusion across them.
  part.outputs.insert(part.outputs.end(), inner.begin(), inner.end());
  std::unique_ptr<const runtime::Program> apart;
  if (!inner.empty()) {
    REFRACT_ASSIGN_OR_RETURN(
        apart,
        runtime::Program::Compile(model.graph, part, model.weights, compile));
  }
  TouchWeights(model);
  Profiler profiler(model, source, options, *program, apart.get());
  REFRACT_RETURN_IF_ERROR(profiler.Measure());
  Profile profile;
  profile.model = model.digest;
  profile.model_name = model.name;
  profile.inputs = source.description();
  profile.sizes = source.sizes();
  profile.batches = options.batches;
  profile.repetitions = static_cast<uint32_t>(options.repetitions);
  profiler.Fill(model.graph, profile);
  return profile;
}

}  // namespace refract::partitioner
