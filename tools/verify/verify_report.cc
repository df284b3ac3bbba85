#include "tools/verify/verify_report.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace refract::tools {
namespace {

using nlohmann::ordered_json;

std::string Milliseconds(double seconds) {
  return absl::StrFormat("%.3f", seconds * 1e3);
}

ordered_json NamesOf(const models::Graph& graph,
                     const std::vector<models::ValueId>& ids) {
  ordered_json names = ordered_json::array();
  for (const models::ValueId id : ids) names.push_back(graph.value(id).name);
  return names;
}

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

ordered_json FormsToJson(absl::Span<const partitioner::Prediction::Sent> sent) {
  ordered_json forms = ordered_json::array();
  for (const partitioner::Prediction::Sent& one : sent) {
    forms.push_back(
        absl::StrCat(models::Name(one.form.type),
                     one.form.unique_rows ? ", equal rows once" : ""));
  }
  return forms;
}

}  // namespace

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
      kLeastRatio, kLargestRatio, absl::StrJoin(outside, ", "));
}

void PrintVerification(const Verification& verification,
                       const Calibration& calibration, std::ostream& out) {
  out << absl::StreamFormat(
      "verified over %s with %d request(s) of %d items, %d rounds; answers of "
      "all cuts are %s\n",
      verification.transport.empty() ? "no link" : verification.transport,
      verification.requests, verification.batch, verification.rounds,
      IsLossy(verification) ? "as far off as stands there, as expected"
                            : "the same bytes");
  size_t width = 3;
  for (const VerifiedCut& cut : verification.cuts) {
    width = std::max(width, cut.cut.name.size());
  }
  const int w = static_cast<int>(width);
  out << absl::StreamFormat("  %-*s  %12s  %27s  %9s  %12s  %12s  %9s\n", w,
                            "cut", "predicted ms", "measured ms [quartiles]",
                            "pred/meas", "bytes up", "bytes down",
                            "/predicted");
  for (const VerifiedCut& cut : verification.cuts) {
    const std::optional<double> bytes = cut.bytes_ratio();
    out << absl::StreamFormat(
        "  %-*s  %12s  %27s  %9.2f  %12.0f  %12.0f  %9s%s\n", w, cut.cut.name,
        Milliseconds(cut.predicted_s()),
        absl::StrCat(Milliseconds(cut.measured.median), " [",
                     Milliseconds(cut.measured.q25), ", ",
                     Milliseconds(cut.measured.q75), "]"),
        cut.ratio(), cut.bytes_up, cut.bytes_down,
        bytes ? absl::StrFormat("%.4f", *bytes) : "-",
        cut.errors.empty() ? ""
                           : absl::StrFormat("  error %.3g", WorstOf(cut)));
  }
  const Ranking& ranking = verification.ranking;
  if (ranking.rank_correlation && ranking.rank_correlation_of_medians) {
    out << absl::StreamFormat(
        "rank correlation (Spearman) %.3f, the rounds' drift taken out; %.3f "
        "of the medians above\n",
        *ranking.rank_correlation, *ranking.rank_correlation_of_medians);
    out << absl::StreamFormat(
        "%d of %d pairs of cuts can be told apart (95 %%), %d of them are in "
        "the predicted order\n",
        ranking.told_apart, ranking.pairs, ranking.in_order);
  }
  if (verification.other_processors.value_or(0) > kMostOtherProcessors) {
    out << absl::StreamFormat(
        "other programs kept %.2f processors busy meanwhile: verify again "
        "where "
        "nothing else runs\n",
        *verification.other_processors);
  }
  if (!verification.transport.empty() &&
      calibration.transport != verification.transport) {
    out << "the link was calibrated over " << calibration.transport
        << ", the cuts ran over " << verification.transport
        << ": calibrate with the same --transport\n";
  }
  const std::string advice = Advice(verification);
  if (!advice.empty()) out << advice << "\n";
}

ordered_json VerificationToJson(const models::Graph& graph,
                                const Verification& verification,
                                const Calibration& calibration) {
  ordered_json cuts = ordered_json::array();
  for (size_t c = 0; c < verification.cuts.size(); ++c) {
    const VerifiedCut& cut = verification.cuts[c];
    const partitioner::Prediction& prediction = cut.cut.prediction;
    const std::optional<double> bytes = cut.bytes_ratio();
    ordered_json json = {
        {"name", cut.cut.name},
        {"forced", cut.cut.forced},
        {"predicted_s", cut.predicted_s()},
        {"measured_s",
         {{"median", cut.measured.median},
          {"q25", cut.measured.q25},
          {"q75", cut.measured.q75},
          {"samples", cut.measured.used}}},
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

}  // namespace refract::tools
