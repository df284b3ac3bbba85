#include "partitioner/split/hn_look_ups.h"

#include <optional>

#include "models/graph/op_traits.h"
#include "partitioner/costs/work.h"

namespace refract::partitioner {
namespace {

// The table of `node`; nullptr unless it is a look-up of one stored table.
const models::Value* TableOf(const models::Graph& graph,
                             const models::Node& node) {
  const models::EmbeddingArgs args = models::EmbeddingArgsOf(node.op);
  if (args.weight.empty()) return nullptr;
  const models::ValueId table = node.ValueArg(args.weight);
  if (table == models::kNoValue) return nullptr;
  const models::Value& value = graph.value(table);
  return value.is_weight() ? &value : nullptr;
}

}  // namespace

std::vector<bool> HnLookUps(const models::Graph& graph,
                            const models::ModelConfig& config,
                            double max_table_bytes) {
  std::vector<bool> result(graph.nodes.size(), false);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const models::Value* table = TableOf(graph, graph.nodes[n]);
    if (table == nullptr || table->row_bytes != 0) continue;
    const auto policy = config.id_policies.find(table->weight);
    const models::IdPolicy unknown_ids = policy == config.id_policies.end()
                                             ? config.default_id_policy
                                             : policy->second;
    const std::optional<double> bytes = BytesOf(*table, {});
    // Only policy "error" moves: the CN counts the ids that other policies
    // replace, and the HN does not.
    result[n] = unknown_ids == models::IdPolicy::kError && bytes &&
                *bytes > 0 && *bytes <= max_table_bytes;
  }
  return result;
}

}  // namespace refract::partitioner
