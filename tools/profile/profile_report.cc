#include "tools/profile/profile_report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "partitioner/report/graph_text.h"

namespace refract::tools {
namespace {

using models::Graph;
using models::NodeId;
using partitioner::Profile;
using partitioner::SecondsText;
using partitioner::Timing;

// The sample with the largest distance from the line.
const Timing::Sample* WorstFit(const Timing& timing) {
  const auto worst = std::max_element(
      timing.samples.begin(), timing.samples.end(),
      [&](const Timing::Sample& a, const Timing::Sample& b) {
        return std::abs(timing.Residual(a)) < std::abs(timing.Residual(b));
      });
  return worst == timing.samples.end() ? nullptr : &*worst;
}

std::string WorstFitText(const Timing& timing) {
  // The line decides the price of batches between the measured ones; its
  // largest relative error tells how far such a price can be trusted.
  const Timing::Sample* worst = WorstFit(timing);
  if (worst == nullptr) return "";
  return absl::StrFormat("%+.0f %% at %d", 100 * timing.Residual(*worst),
                         worst->batch);
}

nlohmann::ordered_json ToJson(const Timing& timing) {
  nlohmann::ordered_json samples = nlohmann::ordered_json::array();
  for (const Timing::Sample& sample : timing.samples) {
    samples.push_back({{"batch", sample.batch},
                       {"least_s", sample.seconds.least},
                       {"q1_s", sample.seconds.q1},
                       {"median_s", sample.seconds.median},
                       {"q3_s", sample.seconds.q3},
                       {"residual", timing.Residual(sample)}});
  }
  return {{"fixed_s", timing.line.fixed_s},
          {"item_s", timing.line.item_s},
          {"samples", std::move(samples)}};
}

nlohmann::ordered_json Names(const Graph& graph,
                             const std::vector<NodeId>& nodes) {
  nlohmann::ordered_json names = nlohmann::ordered_json::array();
  for (const NodeId node : nodes) names.push_back(graph.nodes[node].name);
  return names;
}

// "per item: 1 s8 in every request; 1 s0, s1 and 24 more; 20 s7"
void PrintSizes(const Profile& profile, std::ostream& out) {
  constexpr size_t kShown = 4;
  std::map<int64_t, std::vector<std::string>> symbols;
  for (const auto& [symbol, per_item] : profile.sizes) {
    symbols[per_item].push_back(symbol);
  }
  if (symbols.empty()) return;
  std::vector<std::string> groups;
  for (auto& [per_item, names] : symbols) {
    const size_t more = names.size() - std::min(names.size(), kShown);
    names.resize(names.size() - more);
    groups.push_back(absl::StrCat(
        std::abs(per_item), " ", absl::StrJoin(names, ", "),
        more > 0 ? absl::StrCat(" and ", more, " more") : std::string(),
        per_item < 0 ? " in every request" : ""));
  }
  out << "per item: " << absl::StrJoin(groups, "; ") << "\n";
}

}  // namespace

void PrintProfile(const Graph& graph, const Profile& profile,
                  std::ostream& out) {
  constexpr size_t kShown = 12;
  const int64_t largest = profile.batches.back();
  const double at = static_cast<double>(largest);
  out << absl::StreamFormat(
      "%d operators in %d steps, %d free; batch %s, %d repetitions each\n"
      "requests: %s\n",
      graph.nodes.size() - profile.free_nodes.size(), profile.operators.size(),
      profile.free_nodes.size(), absl::StrJoin(profile.batches, ", "),
      profile.repetitions, profile.inputs);
  PrintSizes(profile, out);
  std::vector<const Profile::Operator*> order;
  for (const Profile::Operator& op : profile.operators) order.push_back(&op);
  std::stable_sort(order.begin(), order.end(),
                   [&](const auto* a, const auto* b) {
                     return a->timing.At(at) > b->timing.At(at);
                   });
  // Shares are of the operators and the run around them, at the largest batch.
  const double sum = profile.SumAt(at);
  out << absl::StreamFormat("  %11s %6s %11s %11s  %-16s %s\n",
                            absl::StrCat("at ", largest), "share", "fixed",
                            "per item", "worst fit", "operator (kernel)");
  const auto print = [&](const Timing& timing, const std::string& name) {
    out << absl::StreamFormat(
        "  %11s %5.1f%% %11s %11s  %-16s %s\n", SecondsText(timing.At(at)),
        sum > 0 ? 100 * timing.At(at) / sum : 0,
        SecondsText(timing.line.fixed_s), SecondsText(timing.line.item_s),
        WorstFitText(timing), name);
  };
  double rest = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i >= kShown) {
      rest += order[i]->timing.At(at);
      continue;
    }
    print(order[i]->timing,
          absl::StrCat(partitioner::StepName(graph, *order[i]), " (",
                       order[i]->kernel, ")"));
  }
  if (order.size() > kShown) {
    out << absl::StreamFormat("  %11s %5.1f%% %42s %d more\n",
                              SecondsText(rest), sum > 0 ? 100 * rest / sum : 0,
                              "", order.size() - kShown);
  }
  print(profile.run, "the run besides its operators");
  // What fusion saves: the time of fused steps against the sum of their pieces,
  // which were measured with the values between them written to memory.
  double together = 0;
  double apart = 0;
  for (const Profile::Operator& op : profile.operators) {
    if (op.pieces.empty()) continue;
    together += op.timing.At(at);
    for (const Profile::Operator::Piece& piece : op.pieces) {
      apart += piece.timing.At(at);
    }
  }
  if (together > 0) {
    out << absl::StreamFormat(
        "steps of several operators: %s; cut between all of them %s\n",
        SecondsText(together), SecondsText(apart));
  }
  for (const Timing::Sample& sample : profile.whole.samples) {
    const double median = sample.seconds.median;
    out << absl::StreamFormat(
        "batch %d: whole run %s (quartiles %s, %s); sum of operators / whole "
        "run %.3f%s\n",
        sample.batch, SecondsText(median), SecondsText(sample.seconds.q1),
        SecondsText(sample.seconds.q3),
        median > 0 ? profile.SumAt(static_cast<double>(sample.batch)) / median
                   : 1.0,
        // The least time is that of an undisturbed run; a median twice as long
        // was measured on a busy machine.
        median > 2 * sample.seconds.least
            ? "; NOISY: the median is over twice the least"
            : "");
  }
}

void PrintDrift(const ProfileDrift& drift, std::ostream& out) {
  constexpr size_t kShown = 5;
  for (const ProfileDrift::AtBatch& at : drift.batches) {
    out << absl::StreamFormat(
        "batch %d: measured / predicted by the former profile %.3f; %d "
        "operators outside [%g, %g], with %.1f %% of the time\n",
        at.batch, at.drift.ratio, at.drift.left.size(),
        partitioner::kLeastRatio, partitioner::kMostRatio,
        100 * at.drift.share);
    for (size_t i = 0; i < at.drift.left.size() && i < kShown; ++i) {
      const partitioner::Compared& left = at.drift.left[i];
      out << absl::StreamFormat("  %s: predicted %s, measured %s\n", left.name,
                                SecondsText(left.predicted_s),
                                SecondsText(left.measured_s));
    }
  }
  out << (drift.reprofile
              ? "the former profile no longer holds: run refract partition "
                "again with this one\n"
              : "the former profile still holds\n");
}

nlohmann::ordered_json ProfileToJson(const Graph& graph,
                                     const Profile& profile) {
  nlohmann::ordered_json operators = nlohmann::ordered_json::array();
  for (const Profile::Operator& op : profile.operators) {
    nlohmann::ordered_json entry = {{"nodes", Names(graph, op.nodes)},
                                    {"op", graph.nodes[op.nodes.front()].op},
                                    {"kernel", op.kernel}};
    entry.update(ToJson(op.timing));
    if (!op.pieces.empty()) {
      nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
      for (const Profile::Operator::Piece& piece : op.pieces) {
        nlohmann::ordered_json one = {{"nodes", Names(graph, piece.nodes)}};
        one.update(ToJson(piece.timing));
        pieces.push_back(std::move(one));
      }
      entry["pieces"] = std::move(pieces);
    }
    operators.push_back(std::move(entry));
  }
  nlohmann::ordered_json wire = nlohmann::ordered_json::object();
  for (const auto& [form, rate] : profile.wire) {
    wire[form] = {{"encode_bytes_per_s", rate.encode_bytes_per_s},
                  {"decode_bytes_per_s", rate.decode_bytes_per_s}};
  }
  nlohmann::ordered_json sums = nlohmann::ordered_json::array();
  for (const Timing::Sample& sample : profile.whole.samples) {
    sums.push_back({{"batch", sample.batch},
                    {"sum_s", profile.SumAt(static_cast<double>(sample.batch))},
                    {"whole_s", sample.seconds.median}});
  }
  return {{"model", profile.model_name},
          {"digest", profile.model.ToHex()},
          {"device", profile.device},
          {"inputs", profile.inputs},
          {"sizes", profile.sizes},
          {"batches", profile.batches},
          {"repetitions", profile.repetitions},
          {"clock_s", profile.clock_s},
          {"operators", std::move(operators)},
          {"free_nodes", Names(graph, profile.free_nodes)},
          {"run", ToJson(profile.run)},
          {"whole", ToJson(profile.whole)},
          {"sums", std::move(sums)},
          {"wire", std::move(wire)}};
}

nlohmann::ordered_json DriftToJson(const ProfileDrift& drift) {
  nlohmann::ordered_json batches = nlohmann::ordered_json::array();
  for (const ProfileDrift::AtBatch& at : drift.batches) {
    nlohmann::ordered_json left = nlohmann::ordered_json::array();
    for (const partitioner::Compared& item : at.drift.left) {
      left.push_back({{"name", item.name},
                      {"predicted_s", item.predicted_s},
                      {"measured_s", item.measured_s}});
    }
    nlohmann::ordered_json entry = {{"batch", at.batch},
                                    {"share", at.drift.share},
                                    {"reprofile", at.drift.reprofile},
                                    {"left", std::move(left)}};
    // JSON has no infinity, which means that nothing was predicted.
    entry["ratio"] = std::isfinite(at.drift.ratio)
                         ? nlohmann::ordered_json(at.drift.ratio)
                         : nlohmann::ordered_json();
    batches.push_back(std::move(entry));
  }
  return {{"reprofile", drift.reprofile}, {"batches", std::move(batches)}};
}

}  // namespace refract::tools
