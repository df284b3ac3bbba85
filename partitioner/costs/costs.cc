#include "partitioner/costs/costs.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "models/graph/op_traits.h"
#include "models/graph/script_region.h"
#include "models/repository/split_plan.h"
#include "partitioner/costs/step_shares.h"
#include "partitioner/split/coloring.h"

namespace refract::partitioner {

namespace {

using models::Graph;
using models::kNoValue;
using models::NodeId;
using models::ValueId;

using Step = std::vector<NodeId>;

// The inputs of operator costs, independent of the hardware.
class Operators {
 public:
  Operators(const Graph& graph, const models::SymbolBindings& sizes)
      : graph_(graph), sizes_(sizes), users_(models::UsersOf(graph)) {
    const NodeSet varies = Topology(graph).DependingOnInputs();
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const auto node = static_cast<NodeId>(n);
      const bool costs = varies[n] && !IsFree(graph, node);
      costs_.push_back(costs);
      works_.push_back(costs ? WorkOf(graph, graph.nodes[n], sizes)
                             : std::optional<Work>());
      if (!costs || !works_.back()) continue;
      // Bytes that every request touches: weights that are read in full, and
      // results; table rows differ. They decide how much the cache keeps
      // (CachedShare).
      touched_bytes_ += works_.back()->weight_bytes;
      for (const ValueId id : graph.nodes[n].outputs)
        touched_bytes_ += Bytes(id);
    }
    is_result_.resize(graph.values.size(), false);
    for (const ValueId id : graph.outputs) is_result_[id] = true;
  }

  bool Costs(NodeId node) const { return costs_[node]; }
  bool IsRegion(NodeId node) const {
    return models::IsScriptRegion(graph_.nodes[node]);
  }
  bool IsUnknown(NodeId node) const {
    return costs_[node] && !IsRegion(node) && !works_[node];
  }
  double touched_bytes() const { return touched_bytes_; }

  double Alone(NodeId node, const Hardware& hardware) const {
    if (!costs_[node]) return 0;
    if (IsRegion(node)) {
      return RegionSeconds(graph_, graph_.nodes[node], sizes_, hardware);
    }
    return RooflineSeconds(hardware, works_[node].value_or(Work()),
                           CachedShare(hardware, touched_bytes_));
  }

  // Time of all operators of `step`, which has at least one operator with a
  // cost.
  double Together(const Step& step, const Hardware& hardware) const {
    Work work;
    int launches = 0;
    for (const NodeId node : step) {
      if (!costs_[node]) continue;
      // An operator of unknown work adds nothing to a step; alone it costs
      // `operator_s`.
      if (works_[node]) work += *works_[node];
      launches += IsLookUp(node) ? 1 : 0;
    }
    work.bytes = std::max(0.0, work.bytes - InnerBytes(step));
    // RooflineSeconds() adds one fixed time for the step. Each look-up beyond
    // the first is a launch of its own.
    return std::max(0, launches - 1) * hardware.operator_s +
           RooflineSeconds(hardware, work,
                           CachedShare(hardware, touched_bytes_));
  }

 private:
  static bool Has(const Step& step, NodeId node) {
    return std::find(step.begin(), step.end(), node) != step.end();
  }
  bool IsLookUp(NodeId node) const {
    return models::ClassOf(graph_, graph_.nodes[node]) ==
           models::OpClass::kEmbedding;
  }
  double Bytes(ValueId id) const {
    if (id == kNoValue || graph_.value(id).kind != models::ValueKind::kTensor) {
      return 0;
    }
    return BytesOf(graph_.value(id), sizes_).value_or(0);
  }
  // The value of which `id` is a view, by views of `step`.
  ValueId RootOf(ValueId id, const Step& step) const {
    // Follows views from result to operand. A view has the memory of its first
    // tensor operand.
    for (;;) {
      const NodeId maker = graph_.value(id).producer;
      if (maker == models::kNoNode || !Has(step, maker) ||
          !IsFree(graph_, maker)) {
        return id;
      }
      const std::vector<ValueId> inputs = models::InputsOf(graph_.nodes[maker]);
      const auto tensor =
          std::find_if(inputs.begin(), inputs.end(), [&](ValueId input) {
            return graph_.value(input).kind == models::ValueKind::kTensor;
          });
      if (tensor == inputs.end()) return id;
      id = *tensor;
    }
  }
  // Whether an operator outside of `step` reads `id` or one of its views.
  bool Leaves(ValueId id, const Step& step) const {
    if (is_result_[id]) return true;
    for (const NodeId user : users_[id]) {
      // A view inside the step has no memory: its readers decide.
      if (!Has(step, user)) return true;
      if (!IsFree(graph_, user)) continue;
      for (const ValueId view : graph_.nodes[user].outputs) {
        if (view != kNoValue && Leaves(view, step)) return true;
      }
    }
    return false;
  }
  // Bytes that the separate works count but the fused step neither reads nor
  // writes: values between its operators.
  double InnerBytes(const Step& step) const {
    double bytes = 0;
    for (const NodeId node : step) {
      if (!costs_[node] || !works_[node]) continue;
      for (const ValueId id : graph_.nodes[node].outputs) {
        if (id == kNoValue || users_[id].empty() || Leaves(id, step)) continue;
        // Written by the separate operator, kept in registers by the fused
        // step.
        bytes += Bytes(id);
      }
      if (IsLookUp(node)) continue;  // counts ids and rows alone
      std::vector<ValueId> read = models::InputsOf(graph_.nodes[node]);
      // WorkOf() counts an operand once per operator, however often it appears.
      std::sort(read.begin(), read.end());
      read.erase(std::unique(read.begin(), read.end()), read.end());
      for (const ValueId id : read) {
        const NodeId maker = graph_.value(RootOf(id, step)).producer;
        // An operand that another operator of the step computed, directly or
        // through views.
        if (maker != models::kNoNode && Has(step, maker) && costs_[maker]) {
          bytes += Bytes(id);
        }
      }
    }
    return bytes;
  }

  const Graph& graph_;
  const models::SymbolBindings& sizes_;
  const std::vector<std::vector<NodeId>> users_;
  std::vector<bool> costs_;
  std::vector<std::optional<Work>> works_;
  std::vector<bool> is_result_;
  double touched_bytes_ = 0;
};

// Costs on one kind of node.
void PriceSide(const Graph& graph, const models::SymbolBindings& sizes,
               const Operators& operators, absl::Span<const Step> steps,
               const Hardware& hardware, std::vector<double>& node_s,
               std::vector<double>& cut_s) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    node_s.push_back(operators.Alone(static_cast<NodeId>(n), hardware));
  }
  // First every operator as if it stood alone. Then each step takes the time of
  // its operators together: the operators share it in proportion to their
  // separate times, and the difference is the price of a cut through the step.
  if (!steps.empty()) cut_s.assign(graph.values.size(), 0);
  for (const Step& step : steps) {
    double apart = 0;
    int number = 0;
    for (const NodeId node : step) {
      apart += node_s[node];
      number += operators.Costs(node) ? 1 : 0;
    }
    // Steps of one operator with a cost have nothing to share. A region is
    // priced by assumption (RegionSeconds) and shares nothing.
    if (number < 2 || apart <= 0 ||
        std::any_of(step.begin(), step.end(),
                    [&](NodeId node) { return operators.IsRegion(node); })) {
      continue;
    }
    // A step with look-ups has all its bytes priced at the memory's bandwidth
    // (RooflineSeconds), which may exceed the sum.
    const double together = std::min(apart, operators.Together(step, hardware));
    for (const NodeId node : step) node_s[node] *= together / apart;
    ShareExcess(graph, step, sizes, apart - together, cut_s);
  }
}

}  // namespace

double RooflineSeconds(const Hardware& hardware, const Work& work,
                       double cached_share) {
  // Work with table rows is priced at the memory's bandwidth alone, because
  // rows differ between requests.
  double byte_s = 1 / hardware.bytes_per_s;
  if (hardware.cache && work.rows == 0) {
    byte_s = cached_share / hardware.cache->bytes_per_s +
             (1 - cached_share) / hardware.bytes_per_s;
  }
  return hardware.operator_s + work.rows * hardware.row_s.value_or(0) +
         std::max(work.flops / hardware.flops_per_s, work.bytes * byte_s);
}

double CachedShare(const Hardware& hardware, double touched_bytes) {
  if (!hardware.cache) return 0;
  // Touched data that exceeds the cache is assumed to be kept in proportion.
  return touched_bytes <= hardware.cache->bytes
             ? 1
             : hardware.cache->bytes / touched_bytes;
}

double RegionSeconds(const models::Graph& graph, const models::Node& node,
                     const models::SymbolBindings& sizes,
                     const Hardware& hardware) {
  double operators = 1;
  const models::Argument* names = node.FindArg(models::kRegionOperatorsArg);
  // Without the list of its operators a region counts as one operator.
  if (names != nullptr) {
    if (const auto* list = std::get_if<models::StringList>(names)) {
      operators = std::max<double>(1, static_cast<double>(list->size()));
    }
  }
  double largest = 0;
  const auto look_at = [&](models::ValueId id) {
    if (id == models::kNoValue) return;
    largest = std::max(largest, BytesOf(graph.value(id), sizes).value_or(0));
  };
  for (const models::ValueId id : models::InputsOf(node)) look_at(id);
  for (const models::ValueId id : node.outputs) look_at(id);
  return operators * (kRegionLaunches * hardware.operator_s +
                      largest / hardware.bytes_per_s);
}

OperatorCosts RooflineCosts(const models::Graph& graph,
                            const models::SymbolBindings& sizes,
                            const Hardware& cn, const Hardware& hn,
                            absl::Span<const Step> steps) {
  const Operators operators(graph, sizes);
  OperatorCosts costs;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto node = static_cast<NodeId>(n);
    if (!operators.Costs(node)) continue;
    if (operators.IsRegion(node)) costs.regions.push_back(node);
    if (operators.IsUnknown(node)) costs.unknown.push_back(node);
  }
  PriceSide(graph, sizes, operators, steps, cn, costs.cn_s, costs.cn_cut_s);
  PriceSide(graph, sizes, operators, steps, hn, costs.hn_s, costs.hn_cut_s);
  return costs;
}

}  // namespace refract::partitioner
