#include "tools/plan/model_costs.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "partitioner/conditions/cost_profiles.h"
#include "partitioner/conditions/split_conditions.h"
#include "partitioner/costs/prediction.h"
#include "runtime/batch_padding.h"
#include "tools/common_options.h"
#include "tools/sizes.h"

namespace refract::tools {
namespace {

// Times of whole runs around their median, as the standard deviation of their
// logarithm: quartiles of a normal distribution lie 1.349 of it apart. The
// result is the median over the batches.
double SigmaOf(const partitioner::Profile& profile) {
  std::vector<double> sigmas;
  for (const partitioner::Timing::Sample& sample : profile.whole.samples) {
    if (sample.seconds.q1 <= 0) continue;
    sigmas.push_back(std::log(sample.seconds.q3 / sample.seconds.q1) / 1.349);
  }
  if (sigmas.empty()) return 0;
  std::nth_element(sigmas.begin(), sigmas.begin() + sigmas.size() / 2,
                   sigmas.end());
  return sigmas[sigmas.size() / 2];
}

}  // namespace

absl::StatusOr<placement::ModelCosts> CostsOfVersion(
    const placement::ModelSource& source) {
  REFRACT_ASSIGN_OR_RETURN(const auto model, LoadModel(source.path));
  if (!model->plan.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source.path, ": has no split plan; refract partition makes one"));
  }
  const bool hn_is_profiled = source.hn == "profile";
  REFRACT_ASSIGN_OR_RETURN(
      partitioner::CostProfiles profiles,
      partitioner::LoadCostProfiles({.cn = source.cn.empty() ? "" : "none",
                                     .hn = hn_is_profiled ? "model" : "",
                                     .cn_hardware_given = !source.cn.empty()},
                                    *model));
  partitioner::FindSteps(*model, profiles);
  REFRACT_ASSIGN_OR_RETURN(const AssumedSizes sizes,
                           AssumeSizes({}, *model, &profiles));
  partitioner::ConditionOptions options;
  if (!source.cn.empty()) options.cn = source.cn;
  options.cn_given = !source.cn.empty();
  if (!hn_is_profiled) options.hn = source.hn;
  options.hn_given = !hn_is_profiled;
  options.calibration = source.calibration;
  placement::ModelCosts costs;
  const models::RowDependence& rows = model->plan->hn_rows;
  // The GPU node does not merge requests of such a model, whatever the batching
  // window.
  if (!rows.may_coalesce) {
    costs.never_merged =
        rows.why.empty() ? "no proof that each row is scored alone" : rows.why;
  }
  // One point of the cost curve per batch size; the planner interpolates
  // between them.
  const int64_t least = runtime::SmallestBatch(model->graph);
  for (const int64_t batch : source.batches) {
    if (batch < least) continue;
    options.batch = batch;
    REFRACT_ASSIGN_OR_RETURN(
        const partitioner::SplitConditions conditions,
        partitioner::MakeConditions(options, model->graph, model->config,
                                    sizes.per_item, profiles));
    const partitioner::Prediction prediction =
        partitioner::Predict(model->graph, *model->plan, conditions.conditions);
    costs.points.push_back({
        .rows = static_cast<double>(batch),
        // The front end's time is mostly decoding, coding's mostly encoding.
        .cn_pre_s = prediction.front_end_s + prediction.cn_pre_s +
                    prediction.cn_crossing_s,
        .cn_post_s = prediction.cn_post_s,
        .hn_s = prediction.hn_s + prediction.hn_crossing_s,
        .up_bytes = prediction.message_bytes_up,
        .down_bytes = prediction.message_bytes_down,
    });
    costs.round_trip_s = std::max(costs.round_trip_s, prediction.round_trip_s);
    costs.cn_memory_bytes = prediction.cn_memory_bytes;
    costs.hn_memory_bytes = prediction.hn_memory_bytes;
  }
  if (costs.points.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source.path, ": batches: the model needs ", least, " items or more"));
  }
  if (profiles.cn) costs.cn.sigma = SigmaOf(profiles.cn->profile);
  if (profiles.hn) costs.hn.sigma = SigmaOf(profiles.hn->profile);
  costs.source = absl::StrCat(
      source.path, ", version ", model->version, ": CN ",
      profiles.cn ? absl::StrCat("measured (", profiles.cn->path, ")")
                  : absl::StrCat("by the description ", options.cn),
      ", HN ",
      profiles.hn ? absl::StrCat("measured (", profiles.hn->path, ")")
                  : absl::StrCat("by the description ", options.hn),
      source.calibration.empty() ? ", without the front end's time"
                                 : absl::StrCat(", ", source.calibration),
      sizes.all.empty() ? ""
                        : absl::StrCat(", sizes per item: ", sizes.Text()));
  return costs;
}

}  // namespace refract::tools
