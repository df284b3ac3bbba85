#ifndef REFRACT_TESTS_PARTITIONER_PLAN_ORACLE_H_
#define REFRACT_TESTS_PARTITIONER_PLAN_ORACLE_H_

// Legality of a split told from the definition, by walking every path. Shares
// no code with the partitioner or the validator but the graph itself; operators
// are known by the names that graph_builder.h uses. Exponential: small graphs
// only.

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "models/graph/graph.h"
#include "models/repository/split_plan.h"

namespace refract::partitioner {

class PlanOracle {
 public:
  // `look_ups_on_hn`: embeddings may be on the HN as well as before it.
  explicit PlanOracle(const models::Graph& graph, bool look_ups_on_hn = false)
      : graph_(graph), look_ups_on_hn_(look_ups_on_hn) {
    // Nodes that are the same for every request and may run anywhere.
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      bool constant = !BarredFromHn(graph.nodes[n].op);
      for (const models::ValueId id : Operands(n)) {
        const models::Value& value = graph.values[id];
        constant = constant && (!value.weight.empty() ||
                                (value.producer >= 0 && IsConstant(id)));
      }
      constants_.push_back(constant);
    }
  }

  // Made by whoever reads it, on either side.
  bool IsConstant(size_t id) const {
    const models::NodeId maker = graph_.values[id].producer;
    return maker >= 0 && constants_[maker];
  }

  // The weights that `id` is, or is computed from as a constant.
  std::set<models::ValueId> WeightsBehind(models::ValueId id) const {
    if (!graph_.values[id].weight.empty()) return {id};
    std::set<models::ValueId> result;
    if (!IsConstant(id)) return result;
    for (const models::ValueId operand : Operands(graph_.values[id].producer)) {
      result.merge(WeightsBehind(operand));
    }
    return result;
  }

  // Empty when legal, else what is wrong.
  std::string Check(const models::SplitPlan& plan) const {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const std::string& op = graph_.nodes[n].op;
      const int stage = static_cast<int>(plan.stages[n]);
      if (IsEmbedding(op)) {
        if (stage > (look_ups_on_hn_ ? 1 : 0)) return op + " too late";
      } else if (stage == 1 && BarredFromHn(op)) {
        return op + " on the HN";
      }
    }
    std::string wrong;
    ForEachPath([&](const std::vector<int>& path) {
      for (size_t i = 1; i < path.size(); ++i) {
        if (plan.stages[path[i - 1]] > plan.stages[path[i]]) {
          wrong = "stage falls after " + graph_.nodes[path[i - 1]].name;
        }
      }
    });
    if (!wrong.empty()) return wrong;
    if (Up(plan) != plan.up) return "up differs";
    if (Down(plan) != plan.down) return "down differs";
    for (const models::ValueId id : plan.up) {
      if (!Sendable(id)) return "unsendable value goes up";
    }
    for (const models::ValueId id : plan.down) {
      if (!Sendable(id)) return "unsendable value goes down";
    }
    return "";
  }

  std::vector<models::ValueId> Up(const models::SplitPlan& plan) const {
    std::vector<models::ValueId> result;
    for (size_t id = 0; id < graph_.values.size(); ++id) {
      if (!graph_.values[id].weight.empty() || IsConstant(id)) continue;
      if (StageOfMaker(plan, id) == 0 && ReadInStage(plan, id, 1)) {
        result.push_back(static_cast<models::ValueId>(id));
      }
    }
    return result;
  }

  std::vector<models::ValueId> Down(const models::SplitPlan& plan) const {
    std::vector<models::ValueId> result;
    for (size_t id = 0; id < graph_.values.size(); ++id) {
      if (StageOfMaker(plan, id) != 1 || IsConstant(id)) continue;
      const bool is_output =
          std::count(graph_.outputs.begin(), graph_.outputs.end(),
                     static_cast<models::ValueId>(id)) > 0;
      if (is_output || ReadInStage(plan, id, 2)) {
        result.push_back(static_cast<models::ValueId>(id));
      }
    }
    return result;
  }

  // Nodes from which an embedding can be reached, embeddings included.
  std::set<int> FeedingEmbeddings() const {
    std::set<int> result;
    ForEachPath([&](const std::vector<int>& path) {
      size_t last = path.size();
      for (size_t i = 0; i < path.size(); ++i) {
        if (IsEmbedding(graph_.nodes[path[i]].op)) last = i;
      }
      for (size_t i = 0; last < path.size() && i <= last; ++i) {
        result.insert(path[i]);
      }
    });
    return result;
  }

  // Nodes that a request input reaches.
  std::set<int> Varying() const {
    std::set<int> result;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      for (const models::ValueId id : Operands(n)) {
        const models::Value& value = graph_.values[id];
        if (!value.weight.empty()) continue;
        if (value.producer < 0 || result.count(value.producer) > 0) {
          result.insert(static_cast<int>(n));
        }
      }
    }
    return result;
  }

  static bool IsDense(const std::string& op) {
    return op == "aten.linear.default" || op == "aten.bmm.default";
  }
  static bool IsEmbedding(const std::string& op) {
    return op.find("embedding") != std::string::npos;
  }
  static bool BarredFromHn(const std::string& op) {
    return IsEmbedding(op) || op.find("topk") != std::string::npos ||
           op.find("secret") != std::string::npos;
  }

 private:
  std::vector<models::ValueId> Operands(size_t n) const {
    return std::get<models::ValueList>(graph_.nodes[n].args[0].value);
  }

  int StageOfMaker(const models::SplitPlan& plan, size_t id) const {
    const models::NodeId maker = graph_.values[id].producer;
    return maker < 0 ? 0 : static_cast<int>(plan.stages[maker]);
  }

  bool ReadInStage(const models::SplitPlan& plan, size_t id, int stage) const {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      // A constant's own operands are computed beside it.
      if (static_cast<int>(plan.stages[n]) != stage || constants_[n]) continue;
      const std::vector<models::ValueId> operands = Operands(n);
      if (std::count(operands.begin(), operands.end(),
                     static_cast<models::ValueId>(id)) > 0) {
        return true;
      }
    }
    return false;
  }

  bool Sendable(models::ValueId id) const {
    const models::Value& value = graph_.values[id];
    return value.kind == models::ValueKind::kSymInt ||
           (value.kind == models::ValueKind::kTensor &&
            value.dtype != base::DType::kUnknown);
  }

  // Every maximal path, as node ids.
  void ForEachPath(
      const std::function<void(const std::vector<int>&)>& visit) const {
    std::vector<int> path;
    const std::function<void(int)> walk = [&](int n) {
      path.push_back(n);
      bool is_end = true;
      for (size_t next = 0; next < graph_.nodes.size(); ++next) {
        const std::vector<models::ValueId> operands = Operands(next);
        const bool reads = std::any_of(
            operands.begin(), operands.end(),
            [&](auto id) { return graph_.values[id].producer == n; });
        if (!reads) continue;
        is_end = false;
        walk(static_cast<int>(next));
      }
      if (is_end) visit(path);
      path.pop_back();
    };
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      walk(static_cast<int>(n));
    }
  }

  const models::Graph& graph_;
  const bool look_ups_on_hn_;
  std::vector<bool> constants_;  // per node
};

}  // namespace refract::partitioner

#endif  // REFRACT_TESTS_PARTITIONER_PLAN_ORACLE_H_
