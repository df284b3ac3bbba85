#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "partitioner/report/split_report.h"

namespace refract::partitioner {
namespace {

using nlohmann::ordered_json;

ordered_json NamesOf(const models::Graph& graph,
                     const std::vector<models::ValueId>& ids) {
  ordered_json names = ordered_json::array();
  for (const models::ValueId id : ids) names.push_back(graph.value(id).name);
  return names;
}

ordered_json FormsToJson(absl::Span<const Prediction::Sent> sent) {
  ordered_json forms = ordered_json::array();
  for (const Prediction::Sent& one : sent) {
    forms.push_back(
        absl::StrCat(models::Name(one.form.type),
                     one.form.unique_rows ? ", equal rows once" : ""));
  }
  return forms;
}

}  // namespace

ordered_json VerificationToJson(const models::Graph& graph,
                                const Verification& verification,
                                const Calibration& calibration) {
  ordered_json cuts = ordered_json::array();
  for (size_t c = 0; c < verification.cuts.size(); ++c) {
    const VerifiedCut& cut = verification.cuts[c];
    const Prediction& prediction = cut.cut.prediction;
    const std::optional<double> bytes = cut.bytes_ratio();
    ordered_json json = {
        {"name", cut.cut.name},
        {"forced", cut.cut.forced},
        {"predicted_s", cut.predicted_s()},
        {"measured_s",
         {{"median", cut.measured.median},
          {"q25", cut.measured.q1},
          {"q75", cut.measured.q3},
          {"samples", cut.samples}}},
        {"steady_s", verification.ranking.steady_s.empty()
                         ? ordered_json()
                         : ordered_json(verification.ranking.steady_s[c])},
        {"predicted_over_measured", cut.ratio()},
        {"bytes_up", cut.bytes_up},
        {"bytes_down", cut.bytes_down},
        {"predicted_bytes_up", prediction.message_bytes_up},
        {"predicted_bytes_down", prediction.message_bytes_down},
    };
    json["bytes_over_predicted"] =
        bytes ? ordered_json(*bytes) : ordered_json();
    json["predicted_stages_s"] = {{"front_end", prediction.front_end_s},
                                  {"cn_pre", prediction.cn_pre_s},
                                  {"up", prediction.up_s},
                                  {"hn", prediction.hn_s},
                                  {"down", prediction.down_s},
                                  {"cn_post", prediction.cn_post_s},
                                  {"round_trip", prediction.round_trip_s},
                                  {"cn_crossing", prediction.cn_crossing_s},
                                  {"hn_crossing", prediction.hn_crossing_s}};
    json["measured_stages_s"] = {{"queue", cut.stages.queue},
                                 {"cn_pre", cut.stages.cn_pre},
                                 {"remote_or_whole", cut.stages.remote},
                                 {"cn_post", cut.stages.cn_post}};
    json["up"] = NamesOf(graph, cut.cut.plan.up);
    json["down"] = NamesOf(graph, cut.cut.plan.down);
    if (!cut.errors.empty()) {
      json["up_forms"] = FormsToJson(prediction.sent_up);
      json["down_forms"] = FormsToJson(prediction.sent_down);
      ordered_json errors = ordered_json::array();
      for (size_t i = 0; i < cut.errors.size(); ++i) {
        errors.push_back({{"output", cut.errors[i].output},
                          {"max_abs_error", cut.errors[i].max_abs},
                          {"expected_at_most", cut.cut.errors[i].max_abs}});
      }
      json["errors"] = std::move(errors);
    }
    cuts.push_back(std::move(json));
  }
  ordered_json result = {
      {"transport", verification.transport},
      {"batch", verification.batch},
      {"distinct_requests", verification.requests},
      {"rounds", verification.rounds},
      // Else there is no verification: the same bits, or with lossy forms no
      // further off than expected.
      {"answers_equal", !IsLossy(verification)},
      {"cuts", std::move(cuts)},
      {"advice", Advice(verification)},
      {"calibration",
       {{"machine", calibration.machine},
        {"transport", calibration.transport},
        {"revision", calibration.revision},
        {"request_s", calibration.front_end.request_s},
        {"io_tensor_s", calibration.front_end.tensor_s},
        {"input_byte_s", calibration.front_end.input_byte_s},
        {"output_byte_s", calibration.front_end.output_byte_s},
        {"link_latency_s", calibration.link.latency_s},
        {"link_tensor_s", calibration.link.tensor_s},
        {"link_bytes_per_s", calibration.link.bytes_per_s}}},
  };
  const Ranking& ranking = verification.ranking;
  const auto or_null = [](const std::optional<double>& value) {
    return value ? ordered_json(*value) : ordered_json();
  };
  result["other_processors"] = or_null(verification.other_processors);
  result["rank_correlation"] = or_null(ranking.rank_correlation);
  result["rank_correlation_of_medians"] =
      or_null(ranking.rank_correlation_of_medians);
  result["pairs"] = {{"all", ranking.pairs},
                     {"told_apart", ranking.told_apart},
                     {"in_predicted_order", ranking.in_order}};
  return result;
}

}  // namespace refract::partitioner
