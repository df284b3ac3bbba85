#include "partitioner/costs.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "models/op_traits.h"
#include "models/script_region.h"
#include "partitioner/coloring.h"

namespace refract::partitioner {

double RooflineSeconds(const Hardware& hardware, const Work& work) {
  return hardware.operator_s + work.rows * hardware.row_s.value_or(0) +
         std::max(work.flops / hardware.flops_per_s,
                  work.bytes / hardware.bytes_per_s);
}

double RegionSeconds(const models::Graph& graph, const models::Node& node,
                     const models::SymbolBindings& sizes,
                     const Hardware& hardware) {
  double operators = 1;
  const models::Argument* names = node.FindArg(models::kRegionOperatorsArg);
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
                            const Hardware& cn, const Hardware& hn) {
  const NodeSet varies = Topology(graph).DependingOnInputs();
  OperatorCosts costs;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const models::Node& node = graph.nodes[n];
    const models::OpClass op_class = models::ClassOf(graph, node);
    if (!varies[n] || op_class == models::OpClass::kView ||
        op_class == models::OpClass::kSize) {
      costs.cn_s.push_back(0);
      costs.hn_s.push_back(0);
      continue;
    }
    if (models::IsScriptRegion(node)) {
      costs.regions.push_back(static_cast<models::NodeId>(n));
      costs.cn_s.push_back(RegionSeconds(graph, node, sizes, cn));
      costs.hn_s.push_back(RegionSeconds(graph, node, sizes, hn));
      continue;
    }
    const std::optional<Work> work = WorkOf(graph, node, sizes);
    if (!work) costs.unknown.push_back(static_cast<models::NodeId>(n));
    costs.cn_s.push_back(RooflineSeconds(cn, work.value_or(Work())));
    costs.hn_s.push_back(RooflineSeconds(hn, work.value_or(Work())));
  }
  return costs;
}

}  // namespace refract::partitioner
