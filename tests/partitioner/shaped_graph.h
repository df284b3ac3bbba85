#ifndef REFRACT_TESTS_PARTITIONER_SHAPED_GRAPH_H_
#define REFRACT_TESTS_PARTITIONER_SHAPED_GRAPH_H_

#include <random>

#include "models/graph/graph.h"
#include "partitioner/costs/conditions.h"
#include "tests/partitioner/graph_builder.h"

namespace refract::partitioner {

// A random graph (graph_builder.h) whose tensors have sizes, and costs for it.
inline models::Graph RandomShapedGraph(std::mt19937& random,
                                       const RandomGraphOptions& options) {
  models::Graph graph = RandomGraph(random, options);
  for (models::Value& value : graph.values) {
    if (value.kind != models::ValueKind::kTensor) continue;
    value.has_shape = true;
    const int64_t size =
        std::uniform_int_distribution<int64_t>(1, 5000)(random);
    value.shape = {models::SymExpr(size)};
  }
  return graph;
}

inline Conditions RandomConditions(std::mt19937& random,
                                   const models::Graph& graph) {
  std::uniform_real_distribution<double> up_to_1(0, 1);
  Conditions conditions;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    conditions.costs.cn_s.push_back(1e-4 * up_to_1(random));
    conditions.costs.hn_s.push_back(3e-5 * up_to_1(random));
  }
  conditions.costs.cn_run_s = 1e-5 * up_to_1(random);
  conditions.costs.hn_run_s = 1e-5 * up_to_1(random);
  conditions.link.bytes_per_s = 1e8 + 1e9 * up_to_1(random);
  conditions.link.latency_s = 3e-5 * up_to_1(random);
  conditions.link.tensor_s = 2e-6 * up_to_1(random);
  conditions.cn_units_per_hn = 1 + 3 * up_to_1(random);
  conditions.prices = Prices{.cn_unit_s = up_to_1(random),
                             .hn_unit_s = 5 * up_to_1(random),
                             .byte = 1e-8 * up_to_1(random)};
  conditions.front_end = {.request_s = 1e-5 * up_to_1(random),
                          .tensor_s = 1e-6 * up_to_1(random)};
  if (random() % 2 == 0) return conditions;
  // Forms on the wire, other ones up than down, and operators that cost more
  // where they are cut apart.
  for (std::vector<WirePrice>* prices :
       {&conditions.wire.up, &conditions.wire.down}) {
    for (size_t id = 0; id < graph.values.size(); ++id) {
      WirePrice price;
      if (random() % 2 == 0) price.form.type = models::WireType::kFloat16;
      price.bytes = 4000 * up_to_1(random);
      price.encode_s = 1e-5 * up_to_1(random);
      price.decode_s = 1e-5 * up_to_1(random);
      prices->push_back(price);
    }
  }
  for (size_t id = 0; id < graph.values.size(); ++id) {
    conditions.costs.cn_cut_s.push_back(1e-5 * up_to_1(random));
    conditions.costs.hn_cut_s.push_back(1e-5 * up_to_1(random));
  }
  return conditions;
}

}  // namespace refract::partitioner

#endif  // REFRACT_TESTS_PARTITIONER_SHAPED_GRAPH_H_
