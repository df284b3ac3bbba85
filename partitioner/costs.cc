#include "partitioner/costs.h"

#include <algorithm>
#include <optional>

#include "models/op_traits.h"
#include "partitioner/coloring.h"

namespace refract::partitioner {

double RooflineSeconds(const Hardware& hardware, const Work& work) {
  return hardware.operator_s + work.rows * hardware.row_s.value_or(0) +
         std::max(work.flops / hardware.flops_per_s,
                  work.bytes / hardware.bytes_per_s);
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
    const std::optional<Work> work = WorkOf(graph, node, sizes);
    if (!work) costs.unknown.push_back(static_cast<models::NodeId>(n));
    costs.cn_s.push_back(RooflineSeconds(cn, work.value_or(Work())));
    costs.hn_s.push_back(RooflineSeconds(hn, work.value_or(Work())));
  }
  return costs;
}

}  // namespace refract::partitioner
