#include "tools/partition/print.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "models/graph/op_traits.h"
#include "partitioner/report/graph_text.h"

namespace refract::tools {
namespace {

using models::Graph;
using models::SplitPlan;
using models::ValueId;
using models::WireForm;
using models::WireType;
using partitioner::Alternative;
using partitioner::BytesText;
using partitioner::Calibration;
using partitioner::Objective;
using partitioner::OptimalSplit;
using partitioner::Prediction;
using partitioner::SecondsText;
using partitioner::SplitConditions;
using partitioner::Verification;
using partitioner::VerifiedCut;
using partitioner::WireReport;

std::string Cost(Objective objective, double cost) {
  return objective == Objective::kPrice ? absl::StrFormat("%.4g", cost)
                                        : SecondsText(cost);
}

absl::string_view ObjectiveText(Objective objective) {
  switch (objective) {
    case Objective::kLatency:
      return "the latency of one request";
    case Objective::kThroughput:
      return "the time of the slowest of CN, link and HN per request";
    case Objective::kPrice:
      return "the price of one request";
  }
  return "";
}

// Prints columns as wide as their widest cell. All but the first and the last
// are aligned to the right.
void PrintTable(const std::vector<std::vector<std::string>>& rows,
                std::ostream& out) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  for (const auto& row : rows) {
    out << " ";
    for (size_t c = 0; c < row.size(); ++c) {
      if (c + 1 == row.size()) {
        if (!row[c].empty()) out << "  " << row[c];
        break;
      }
      const int width = static_cast<int>(widths[c]);
      out << absl::StreamFormat(c == 0 ? " %-*s" : "  %*s", width, row[c]);
    }
    out << "\n";
  }
}

// The first few names, and how many more there are.
template <typename Id, typename NameOf>
std::string Names(const std::vector<Id>& ids, NameOf name_of) {
  constexpr size_t kShown = 5;
  std::vector<std::string> names;
  for (size_t i = 0; i < ids.size() && i < kShown; ++i) {
    names.push_back(name_of(ids[i]));
  }
  std::string text = absl::StrJoin(names, ", ");
  if (ids.size() > kShown) {
    absl::StrAppend(&text, " and ", ids.size() - kShown, " more");
  }
  return text;
}

// Tables that are looked up on the HN, by name.
std::vector<std::string> TablesOnHn(const Graph& graph,
                                    const models::SplitPlan& plan) {
  std::set<std::string> tables;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const models::Node& node = graph.nodes[n];
    if (plan.stages[n] != models::Stage::kHn ||
        models::ClassOf(graph, node) != models::OpClass::kEmbedding) {
      continue;
    }
    for (const models::ValueId id : models::InputsOf(node)) {
      if (graph.value(id).is_weight()) tables.insert(graph.value(id).weight);
    }
  }
  return {tables.begin(), tables.end()};
}

std::string FormText(WireForm form) {
  return absl::StrCat(
      form.type == WireType::kAsIs ? "as is" : models::Name(form.type),
      form.unique_rows ? ", equal rows once" : "");
}

// Prints a line per tensor: wire form, bytes with and without the form, error
// of this form alone.
void PrintLargest(const models::Graph& graph, const SplitPlan& plan,
                  const WireReport& report, std::ostream& out) {
  constexpr size_t kShown = 10;
  struct Line {
    std::string text;
    // The sort key: bytes without a wire form, largest first.
    double plain_bytes;
  };
  std::vector<Line> lines;
  const auto add = [&](const char* direction, const std::vector<ValueId>& ids,
                       const std::vector<WireForm>& forms,
                       const std::vector<double>& bytes,
                       const std::vector<double>& plain_bytes,
                       const std::vector<std::optional<double>>& errors) {
    // `ids` are the plan's values in wire order; the other lists go with them.
    for (size_t i = 0; i < ids.size() && i < forms.size(); ++i) {
      // The line would say that the tensor crosses as it is.
      if (forms[i].is_plain()) continue;
      std::string text =
          absl::StrFormat("    %-4s %s: %s, %.0f of %.0f bytes", direction,
                          graph.value(ids[i]).name, FormText(forms[i]),
                          bytes[i], plain_bytes[i]);
      if (i < errors.size() && errors[i]) {
        absl::StrAppend(
            &text, *errors[i] == 0
                       ? std::string(", exact")
                       : absl::StrFormat(", alone off by %.4g", *errors[i]));
      }
      lines.push_back({std::move(text), plain_bytes[i]});
    }
  };
  add("up", plan.up, report.forms.up, report.chosen.up_bytes,
      report.plain.up_bytes, report.up_errors);
  add("down", plan.down, report.forms.down, report.chosen.down_bytes,
      report.plain.down_bytes, report.down_errors);
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) {
                     return a.plain_bytes > b.plain_bytes;
                   });
  for (size_t i = 0; i < lines.size() && i < kShown; ++i) {
    out << lines[i].text << "\n";
  }
  if (lines.size() > kShown) {
    out << "    and " << lines.size() - kShown << " more\n";
  }
}

// How good the chosen plan is: the optimum, or compared with another plan.
void PrintVerdict(const partitioner::SplitReport& report, std::ostream& out) {
  const OptimalSplit& split = report.split;
  const Objective objective = report.conditions.goal.objective;
  // --method may choose another plan than the optimum: the line compares both
  // costs.
  const bool other = report.chosen != "optimal";
  if (other) {
    for (const Alternative* plan : partitioner::AlternativesOf(split)) {
      if (plan->plan.method != report.chosen) continue;
      out << "the chosen plan, " << report.chosen << ", costs "
          << Cost(objective, plan->cost);
      if (split.best.cost > 0) {
        out << absl::StreamFormat(", %.3g times", plan->cost / split.best.cost);
      } else {
        out << " beside";
      }
      out << " the " << Cost(objective, split.best.cost)
          << " of the plan 'optimal'\n";
    }
  }
  const absl::string_view plan = other ? "plan 'optimal'" : "plan";
  if (split.proven) {
    out << "the " << plan << " is optimal for these costs, proven with "
        << split.cuts
        << (split.cuts == 1 ? " minimum cut\n" : " minimum cuts\n");
    return;
  }
  out << absl::StreamFormat(
      "stopped after %d minimum cuts: no plan costs less than %s, so the %s is "
      "at most %.3g %% above the optimum\n",
      split.cuts, Cost(objective, split.lower_bound), plan, 100 * split.gap());
}

std::string Milliseconds(double seconds) {
  return absl::StrFormat("%.3f", seconds * 1e3);
}

}  // namespace

void PrintSplit(const Graph& graph, const partitioner::SplitReport& report,
                std::ostream& out) {
  const SplitConditions& conditions = report.conditions;
  const OptimalSplit& split = report.split;
  const Objective objective = conditions.goal.objective;
  out << "minimised: " << ObjectiveText(objective) << "; batch "
      << conditions.options.batch << ", CN " << conditions.cn.name << ", HN "
      << conditions.hn.name
      << absl::StreamFormat(", link %g Gbit/s + %g us one way",
                            conditions.options.link_gbps,
                            conditions.options.link_latency_us)
      << "\n";
  for (const std::string& note : conditions.notes) out << note << "\n";
  if (conditions.calibration) {
    out << "the front end adds "
        << SecondsText(split.best.prediction.front_end_s)
        << " to every latency below\n";
  }
  std::vector<std::vector<std::string>> rows = {
      {"plan", "latency", "CN-pre", "up", "HN", "down", "CN-post", "crossing",
       "sent up", "sent down", "requests/s per GPU", ""}};
  for (const Alternative* alternative : partitioner::AlternativesOf(split)) {
    const Prediction& prediction = alternative->prediction;
    rows.push_back(
        {alternative->plan.method, SecondsText(prediction.latency_s()),
         SecondsText(prediction.cn_pre_s), SecondsText(prediction.up_s),
         SecondsText(prediction.hn_s), SecondsText(prediction.down_s),
         SecondsText(prediction.cn_post_s),
         SecondsText(prediction.cn_crossing_s + prediction.hn_crossing_s),
         BytesText(prediction.bytes_up), BytesText(prediction.bytes_down),
         absl::StrFormat("%.4g", prediction.requests_per_s),
         alternative->over.empty()
             ? ""
             : absl::StrCat("over the limit on ", alternative->over)});
  }
  // The price is an extra column. The other objectives, latency and the slowest
  // station, have columns already.
  if (objective == Objective::kPrice) {
    rows[0].insert(rows[0].begin() + 1, "price");
    size_t row = 1;
    for (const Alternative* alternative : partitioner::AlternativesOf(split)) {
      rows[row].insert(rows[row].begin() + 1,
                       Cost(objective, alternative->cost));
      ++row;
    }
  }
  PrintTable(rows, out);
  const std::vector<std::string> on_hn = TablesOnHn(graph, split.best.plan);
  if (!on_hn.empty()) {
    out << "tables on the HN: "
        << Names(on_hn, [](const std::string& name) { return name; }) << "\n";
  }
  PrintVerdict(report, out);
  if (!split.unknown_operators.empty()) {
    out << "operators of unknown work, priced as one launch: "
        << Names(split.unknown_operators,
                 [&](models::NodeId id) {
                   return absl::StrCat(graph.nodes[id].name, " (",
                                       graph.nodes[id].op, ")");
                 })
        << "\n";
  }
  if (!split.unknown_sizes.empty()) {
    out << "values of unknown size, priced as the largest known value: "
        << Names(split.unknown_sizes,
                 [&](models::ValueId id) { return graph.value(id).name; })
        << "\n";
  }
}

void PrintWire(const models::Graph& graph, const SplitPlan& plan,
               const WireReport& report, std::ostream& out) {
  const models::WireMeasurement& measured = *plan.measured;
  out << "on the wire (" << measured.requests << " requests, "
      << measured.sample << ")\n";
  out << absl::StrFormat("  a request: %.0f bytes up, %.0f down",
                         report.chosen.message_bytes_up,
                         report.chosen.message_bytes_down)
      << absl::StrFormat("; %.0f and %.0f without wire forms\n",
                         report.plain.message_bytes_up,
                         report.plain.message_bytes_down);
  // A count per form: hundreds of tensors may cross.
  std::vector<std::pair<std::string, int>> counts;
  const auto count = [&](const char* direction, WireForm form) {
    const std::string text = absl::StrCat(direction, ": ", FormText(form));
    for (auto& [known, number] : counts) {
      if (known == text) return void(++number);
    }
    counts.emplace_back(text, 1);
  };
  for (const WireForm form : report.forms.up) count("up", form);
  for (const WireForm form : report.forms.down) count("down", form);
  for (const auto& [text, number] : counts) {
    out << absl::StrFormat("  %4d %s\n", number, text);
  }
  PrintLargest(graph, plan, report, out);
  for (const models::WireError& error : measured.errors) {
    out << absl::StrFormat("  output %s: off by up to %.4g", error.output,
                           error.max_abs);
    if (error.largest_value > 0) {
      out << absl::StrFormat(" (%.2g of the largest, %.4g)",
                             error.max_abs / error.largest_value,
                             error.largest_value);
    }
    if (measured.bound) {
      out << absl::StrFormat("; absolute bound %g", *measured.bound);
    }
    out << "\n";
  }
}

void PrintCalibration(const Calibration& calibration, std::ostream& out) {
  const partitioner::FrontEnd& front_end = calibration.front_end;
  const partitioner::Link& link = calibration.link;
  out << absl::StreamFormat(
      "front end: %.4g us + %.4g us per input and output + %.4g ns per KiB in "
      "+ %.4g ns per KiB out\n",
      front_end.request_s * 1e6, front_end.tensor_s * 1e6,
      front_end.input_byte_s * 1e9 * 1024,
      front_end.output_byte_s * 1e9 * 1024);
  out << absl::StreamFormat(
      "link (%s): %.4g us one way + %.4g us per tensor + %.4g GB/s\n",
      calibration.transport, link.latency_s * 1e6, link.tensor_s * 1e6,
      link.bytes_per_s / 1e9);
  if (calibration.samples.empty()) return;
  out << absl::StreamFormat(
      "half of the %d kinds of requests are within %.2g %% of this fit\n",
      calibration.samples.size(), 100 * calibration.TypicalError());
}

void PrintVerification(const Verification& verification,
                       const Calibration& calibration, std::ostream& out) {
  out << absl::StreamFormat(
      "verified over %s with %d request(s) of %d items, %d rounds; answers of "
      "all cuts are %s\n",
      verification.transport.empty() ? "no link" : verification.transport,
      verification.requests, verification.batch, verification.rounds,
      partitioner::IsLossy(verification)
          ? "off by the errors below, as expected"
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
                     Milliseconds(cut.measured.q1), ", ",
                     Milliseconds(cut.measured.q3), "]"),
        cut.ratio(), cut.bytes_up, cut.bytes_down,
        bytes ? absl::StrFormat("%.4f", *bytes) : "-",
        cut.errors.empty()
            ? ""
            : absl::StrFormat("  error %.3g", partitioner::WorstOf(cut)));
  }
  if (verification.rank_correlation) {
    out << absl::StreamFormat(
        "rank correlation (Spearman) of predicted and measured times %.3f, "
        "without the drift between rounds\n",
        *verification.rank_correlation);
  }
  if (!verification.transport.empty() &&
      calibration.transport != verification.transport) {
    out << "the link was calibrated over " << calibration.transport
        << ", the cuts ran over " << verification.transport
        << ": calibrate with the same --transport\n";
  }
  const std::string advice = partitioner::Advice(verification);
  if (!advice.empty()) out << advice << "\n";
}

}  // namespace refract::tools
