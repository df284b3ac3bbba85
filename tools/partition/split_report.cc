#include "tools/partition/split_report.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "models/graph/op_traits.h"
#include "tools/units_text.h"

namespace refract::tools {
namespace {

using models::Graph;
using partitioner::Alternative;
using partitioner::Objective;
using partitioner::OptimalSplit;
using partitioner::Prediction;

std::string Bytes(double bytes) {
  if (bytes < 1024) return absl::StrFormat("%.0f B", bytes);
  if (bytes < 0x1p20) return absl::StrFormat("%.4g KiB", bytes / 0x1p10);
  return absl::StrFormat("%.4g MiB", bytes / 0x1p20);
}

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

// Columns wide enough for their widest cell, all but the first and the last to
// the right.
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

}  // namespace

std::vector<const Alternative*> AlternativesOf(const OptimalSplit& split) {
  std::vector<const Alternative*> all = {&split.best};
  for (const Alternative& other : split.others) all.push_back(&other);
  return all;
}

void PrintSplit(const Graph& graph, const SplitConditions& conditions,
                const OptimalSplit& split, std::ostream& out) {
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
  for (const Alternative* alternative : AlternativesOf(split)) {
    const Prediction& prediction = alternative->prediction;
    rows.push_back(
        {alternative->plan.method, SecondsText(prediction.latency_s()),
         SecondsText(prediction.cn_pre_s), SecondsText(prediction.up_s),
         SecondsText(prediction.hn_s), SecondsText(prediction.down_s),
         SecondsText(prediction.cn_post_s),
         SecondsText(prediction.cn_crossing_s + prediction.hn_crossing_s),
         Bytes(prediction.bytes_up), Bytes(prediction.bytes_down),
         absl::StrFormat("%.4g", prediction.requests_per_s),
         alternative->over.empty()
             ? ""
             : absl::StrCat("over the limit on ", alternative->over)});
  }
  // Latency and the slowest station have columns already.
  if (objective == Objective::kPrice) {
    rows[0].insert(rows[0].begin() + 1, "price");
    size_t row = 1;
    for (const Alternative* alternative : AlternativesOf(split)) {
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
  if (split.proven) {
    out << "the plan is optimal for these costs, proven with " << split.cuts
        << (split.cuts == 1 ? " minimum cut\n" : " minimum cuts\n");
  } else {
    out << absl::StreamFormat(
        "stopped after %d minimum cuts: no plan costs less than %s, so this "
        "one is at most %.3g %% above the optimum\n",
        split.cuts, Cost(objective, split.lower_bound), 100 * split.gap());
  }
  if (!split.unknown_operators.empty()) {
    out << "operators of unknown work, taken for free but for their launch: "
        << Names(split.unknown_operators,
                 [&](models::NodeId id) {
                   return absl::StrCat(graph.nodes[id].name, " (",
                                       graph.nodes[id].op, ")");
                 })
        << "\n";
  }
  if (!split.unknown_sizes.empty()) {
    out << "values of unknown size, taken for as large as the largest known: "
        << Names(split.unknown_sizes,
                 [&](models::ValueId id) { return graph.value(id).name; })
        << "\n";
  }
}

}  // namespace refract::tools
