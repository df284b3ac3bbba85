#include "partitioner/verify/verify.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/tensor.h"
#include "models/table_ids.h"
#include "partitioner/measure/scratch_folder.h"
#include "partitioner/verify/cut_repository.h"
#include "partitioner/verify/ranking.h"
#include "partitioner/verify/requester.h"
#include "partitioner/wire/meter.h"

namespace refract::partitioner {
namespace {

// The name under which the nodes serve a cut.
std::string ServedName(size_t cut) { return absl::StrCat("cut", cut); }

// Compares the answers of the CN alone and of a cut, and raises the cut's
// errors to the largest difference.
absl::Status CheckSame(const loadgen::RecordedResponse& whole,
                       const loadgen::RecordedResponse& split,
                       VerifiedCut& cut) {
  const std::string& name = cut.cut.name;
  const auto differs = [&](const std::string& what) {
    return absl::DataLossError(
        absl::StrCat("cut '", name, "': ", what,
                     " differs from the answer of the CN alone; not timed"));
  };
  if (whole.names != split.names) return differs("the list of outputs");
  for (size_t i = 0; i < whole.outputs.size(); ++i) {
    const base::Tensor& a = whole.outputs[i];
    const base::Tensor& b = split.outputs[i];
    // Lossy forms: the error may be as large as ChooseWireForms() measured in
    // this process on the same requests. The negated comparison refuses NaN.
    if (i < cut.errors.size()) {
      const models::WireError found = ErrorBetween(b.view(), a.view());
      models::WireError& worst = cut.errors[i];
      worst.max_abs = std::max(worst.max_abs, found.max_abs);
      worst.largest_value = std::max(worst.largest_value, found.largest_value);
      if (!(worst.max_abs <= cut.cut.errors[i].max_abs)) {
        return differs(absl::StrFormat(
            "output %s: %.6g, expected at most %.6g,", whole.names[i],
            worst.max_abs, cut.cut.errors[i].max_abs));
      }
      continue;
    }
    if (a.dtype() != b.dtype() || a.dims() != b.dims() ||
        (a.bytes() > 0 && std::memcmp(a.data(), b.data(), a.bytes()) != 0)) {
      return differs(absl::StrCat("output ", whole.names[i]));
    }
  }
  return absl::OkStatus();
}

class Verifier {
 public:
  Verifier(const models::LoadedModel& model, std::vector<Cut> cuts,
           const SampleRequests& samples, const VerifyOptions& options,
           const ProgressFn& progress, NodePair& nodes)
      : model_(model),
        graph_(model.graph),
        samples_(samples),
        options_(options),
        progress_(progress),
        nodes_(nodes),
        requests_(cuts.size()) {
    for (Cut& cut : cuts) {
      VerifiedCut& verified = result_.cuts.emplace_back();
      verified.cut = std::move(cut);
      for (const models::WireError& error : verified.cut.errors) {
        verified.errors.push_back({.output = error.output});
      }
    }
  }

  absl::StatusOr<Verification> Run() {
    REFRACT_ASSIGN_OR_RETURN(requester_, Requester::Connect(&nodes_));
    progress_("verifying: loading the cuts");
    for (size_t c = 0; c < result_.cuts.size(); ++c) {
      // A cut is served when both nodes have loaded its part.
      REFRACT_RETURN_IF_ERROR(requester_->AwaitModel(ServedName(c)));
      for (const SampleRequest& request : samples_.requests) {
        // Nodes take ids; samples, which are also run offline, row numbers.
        std::vector<base::Tensor> inputs;
        for (const base::Tensor& input : request.inputs) {
          REFRACT_ASSIGN_OR_RETURN(inputs.emplace_back(),
                                   base::Tensor::CopyOf(input.view()));
        }
        REFRACT_RETURN_IF_ERROR(base::Annotate(
            models::RowNumbersToIds(model_, absl::MakeSpan(inputs)),
            request.name));
        requests_[c].push_back(
            requester_->Prepare(ServedName(c), graph_, inputs));
      }
    }
    // In this order: wrong answers are not timed, and counting bytes needs
    // single requests, before rounds mix the cuts.
    REFRACT_RETURN_IF_ERROR(CheckAnswers());
    for (size_t c = 0; c < result_.cuts.size(); ++c) {
      REFRACT_RETURN_IF_ERROR(CountBytes(c));
    }
    REFRACT_RETURN_IF_ERROR(Time());
    result_.requests = static_cast<int>(samples_.requests.size());
    result_.rounds = options_.rounds;
    return std::move(result_);
  }

 private:
  absl::Status CheckAnswers() {
    const auto whole = std::find_if(
        result_.cuts.begin(), result_.cuts.end(),
        [](const VerifiedCut& cut) { return !cut.cut.plan.uses_hn(); });
    if (whole == result_.cuts.end()) {
      return absl::InternalError(
          "none of the cuts to verify runs on the CN alone");
    }
    // The cut without HN is the reference for all others.
    const size_t reference = static_cast<size_t>(whole - result_.cuts.begin());
    for (size_t r = 0; r < samples_.requests.size(); ++r) {
      progress_(absl::StrCat("verifying: comparing answers, request ", r + 1,
                             " of ", samples_.requests.size()));
      REFRACT_ASSIGN_OR_RETURN(const loadgen::RecordedResponse expected,
                               requester_->Ask(requests_[reference][r]));
      for (size_t c = 0; c < result_.cuts.size(); ++c) {
        if (c == reference) continue;
        REFRACT_ASSIGN_OR_RETURN(const loadgen::RecordedResponse answer,
                                 requester_->Ask(requests_[c][r]));
        REFRACT_RETURN_IF_ERROR(CheckSame(expected, answer, result_.cuts[c]));
      }
    }
    return absl::OkStatus();
  }

  // All requests of a cut have the same sizes, except in forms whose size
  // depends on the data.
  absl::Status CountBytes(size_t c) {
    VerifiedCut& cut = result_.cuts[c];
    const std::vector<models::WireForm>& forms = cut.cut.plan.up_forms;
    const bool all = std::any_of(forms.begin(), forms.end(), [](auto form) {
      return form.size_depends_on_data();
    });
    const size_t count = all ? requests_[c].size() : 1;
    // Differences of the CN's counters around the requests of this cut.
    REFRACT_ASSIGN_OR_RETURN(const LinkCounts before, nodes_.Counts());
    for (size_t r = 0; r < count; ++r) {
      REFRACT_RETURN_IF_ERROR(requester_->Time(requests_[c][r]).status());
    }
    REFRACT_ASSIGN_OR_RETURN(const LinkCounts after, nodes_.Counts());
    // A retry would count the bytes of its request twice.
    if (after.requests - before.requests !=
        (cut.cut.plan.uses_hn() ? count : 0u)) {
      return absl::InternalError(absl::StrCat(
          "cut '", cut.cut.name, "': ", count, " request(s) led to ",
          after.requests - before.requests, " message(s) to the HN"));
    }
    result_.transport = after.path;
    cut.bytes_up = static_cast<double>(after.bytes_up - before.bytes_up) /
                   static_cast<double>(count);
    cut.bytes_down = static_cast<double>(after.bytes_down - before.bytes_down) /
                     static_cast<double>(count);
    return absl::OkStatus();
  }

  absl::Status Time() {
    // The CN's sums before and after the rounds give the mean of each stage.
    std::vector<loadgen::ServerTimes> before;
    for (size_t c = 0; c < requests_.size(); ++c) {
      REFRACT_ASSIGN_OR_RETURN(const loadgen::ServerTimes times,
                               requester_->Statistics(ServedName(c)));
      before.push_back(times);
    }
    REFRACT_ASSIGN_OR_RETURN(
        const std::vector<std::vector<double>> times,
        requester_->TimeInRounds(requests_, options_.rounds, "verifying",
                                 progress_));
    Rank(times);
    for (size_t c = 0; c < requests_.size(); ++c) {
      VerifiedCut& cut = result_.cuts[c];
      cut.measured = base::QuartilesOf(times[c]);
      cut.samples = times[c].size();
      REFRACT_ASSIGN_OR_RETURN(const loadgen::ServerTimes after,
                               requester_->Statistics(ServedName(c)));
      // Requests of the rounds, the untimed first request of each turn
      // included.
      const double n = static_cast<double>(after.requests - before[c].requests);
      const auto mean = [n](absl::Duration a, absl::Duration b) {
        return absl::ToDoubleSeconds(a - b) / n;
      };
      cut.stages = {.queue = mean(after.queue, before[c].queue),
                    .cn_pre = mean(after.before, before[c].before),
                    .remote = mean(after.remote, before[c].remote),
                    .cn_post = mean(after.after, before[c].after)};
    }
    return absl::OkStatus();
  }

  // A turn's time is the median of its requests.
  void Rank(const std::vector<std::vector<double>>& times) {
    std::vector<double> predicted;
    std::vector<std::vector<double>> turns(times.size());
    for (size_t c = 0; c < times.size(); ++c) {
      predicted.push_back(result_.cuts[c].predicted_s());
      const size_t timed = times[c].size() / options_.rounds;
      for (int round = 0; round < options_.rounds; ++round) {
        turns[c].push_back(
            base::QuartilesOf({times[c].begin() + round * timed,
                               times[c].begin() + (round + 1) * timed})
                .median);
      }
    }
    result_.rank_correlation = RankCorrelation(predicted, RelativeTimes(turns));
  }

  const models::LoadedModel& model_;
  const models::Graph& graph_;
  const SampleRequests& samples_;
  const VerifyOptions& options_;
  const ProgressFn& progress_;
  NodePair& nodes_;
  std::unique_ptr<Requester> requester_;
  std::vector<std::vector<size_t>> requests_;  // of each cut
  Verification result_;
};

}  // namespace

double WorstOf(const VerifiedCut& cut) {
  double worst = 0;
  for (const models::WireError& error : cut.errors) {
    worst = std::max(worst, error.max_abs);
  }
  return worst;
}

bool IsLossy(const Verification& verification) {
  return std::any_of(verification.cuts.begin(), verification.cuts.end(),
                     [](const VerifiedCut& cut) { return WorstOf(cut) > 0; });
}

std::string Advice(const Verification& verification) {
  std::vector<std::string> outside;
  for (const VerifiedCut& cut : verification.cuts) {
    if (!cut.reprofile()) continue;
    outside.push_back(absl::StrFormat("%s (%.2f)", cut.cut.name, cut.ratio()));
  }
  if (outside.empty()) return "";
  return absl::StrFormat(
      "profile this model anew (refract profile) and calibrate (refract "
      "calibrate): predicted / measured is outside [%g, %g] for %s",
      kLeastRatio, kMostRatio, absl::StrJoin(outside, ", "));
}

std::optional<double> VerifiedCut::bytes_ratio() const {
  const double predicted =
      cut.prediction.message_bytes_up + cut.prediction.message_bytes_down;
  if (predicted == 0) return std::nullopt;
  return (bytes_up + bytes_down) / predicted;
}

absl::StatusOr<Verification> Verify(const models::LoadedModel& model,
                                    std::vector<Cut> cuts,
                                    const SampleRequests& samples,
                                    const VerifyOptions& options,
                                    const ProgressFn& progress,
                                    std::ostream& err) {
  REFRACT_ASSIGN_OR_RETURN(const ScratchFolder folder,
                           ScratchFolder::Create("refract-verify"));
  const std::string repository = folder / "models";
  for (size_t c = 0; c < cuts.size(); ++c) {
    REFRACT_RETURN_IF_ERROR(
        AddCut(model, ServedName(c), cuts[c].plan, repository));
  }
  progress("verifying: starting nodes");
  REFRACT_ASSIGN_OR_RETURN(
      const std::unique_ptr<NodePair> nodes,
      NodePair::Start(options.nodes, repository, folder.path()));
  absl::StatusOr<Verification> result =
      Verifier(model, std::move(cuts), samples, options, progress, *nodes)
          .Run();
  if (!result.ok() && !absl::IsCancelled(result.status())) {
    err << nodes->Logs();
  }
  return result;
}

}  // namespace refract::partitioner
