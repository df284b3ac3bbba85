#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "partitioner/report/graph_text.h"
#include "partitioner/report/split_report.h"

namespace refract::partitioner {
namespace {

using models::SplitPlan;
using models::ValueId;
using models::WireForm;
using nlohmann::ordered_json;

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
  for (const VerifiedCut& cut : verification.cuts) {
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
    // Only cuts that were given wire forms have errors (VerifySplit).
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
      // A verification exists only if answers have the same bits, or with lossy
      // forms errors within the expected bound.
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
  result["rank_correlation"] =
      verification.rank_correlation
          ? ordered_json(*verification.rank_correlation)
          : ordered_json();
  return result;
}

ordered_json WireToJson(const models::Graph& graph, const SplitPlan& plan,
                        const WireReport& report) {
  const models::WireMeasurement& measured = *plan.measured;
  const auto values = [&](const std::vector<ValueId>& ids,
                          const std::vector<WireForm>& forms,
                          const std::vector<double>& bytes,
                          const std::vector<double>& plain_bytes,
                          const std::vector<std::optional<double>>& errors) {
    ordered_json list = ordered_json::array();
    for (size_t i = 0; i < ids.size(); ++i) {
      list.push_back({{"name", graph.value(ids[i]).name},
                      {"type", models::Name(forms[i].type)},
                      {"unique_rows", forms[i].unique_rows},
                      {"bytes", bytes[i]},
                      {"plain_bytes", plain_bytes[i]},
                      {"max_abs_error_alone", i < errors.size() && errors[i] &&
                                                      std::isfinite(*errors[i])
                                                  ? ordered_json(*errors[i])
                                                  : ordered_json()}});
    }
    return list;
  };
  // JSON has no infinity: null.
  const auto number = [](double value) {
    return std::isfinite(value) ? ordered_json(value) : ordered_json();
  };
  ordered_json outputs = ordered_json::array();
  for (const models::WireError& error : measured.errors) {
    outputs.push_back(
        {{"output", error.output},
         {"max_abs_error", number(error.max_abs)},
         {"largest_value", number(error.largest_value)},
         {"max_relative_error",
          error.largest_value > 0 ? number(error.max_abs / error.largest_value)
                                  : ordered_json()}});
  }
  return {
      {"sample", measured.sample},
      {"requests", measured.requests},
      {"error_bound",
       measured.bound ? ordered_json(*measured.bound) : ordered_json()},
      {"outputs", std::move(outputs)},
      {"message_bytes_up", report.chosen.message_bytes_up},
      {"message_bytes_down", report.chosen.message_bytes_down},
      {"plain_message_bytes_up", report.plain.message_bytes_up},
      {"plain_message_bytes_down", report.plain.message_bytes_down},
      {"up", values(plan.up, report.forms.up, report.chosen.up_bytes,
                    report.plain.up_bytes, report.up_errors)},
      {"down", values(plan.down, report.forms.down, report.chosen.down_bytes,
                      report.plain.down_bytes, report.down_errors)},
  };
}

}  // namespace refract::partitioner
