#include "partitioner/costs/step_shares.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "models/graph/op_traits.h"
#include "models/repository/split_plan.h"
#include "partitioner/costs/work.h"

namespace refract::partitioner {

using models::Graph;
using models::NodeId;

bool IsFree(const Graph& graph, NodeId node) {
  const models::OpClass op_class = models::ClassOf(graph, graph.nodes[node]);
  return op_class == models::OpClass::kView ||
         op_class == models::OpClass::kSize;
}

namespace {

// The values that some nodes of `step` compute and others read, grouped by
// memory: views have none of their own.
std::vector<std::vector<models::ValueId>> InnerValues(
    const Graph& graph, const std::vector<NodeId>& step) {
  const auto inside = [&](NodeId node) {
    return node != models::kNoNode &&
           std::find(step.begin(), step.end(), node) != step.end();
  };
  std::vector<models::ValueId> read;
  for (const NodeId node : step) {
    for (const models::ValueId id : models::InputsOf(graph.nodes[node])) {
      if (inside(graph.value(id).producer) &&
          models::MayCross(graph.value(id))) {
        read.push_back(id);
      }
    }
  }
  std::sort(read.begin(), read.end());
  read.erase(std::unique(read.begin(), read.end()), read.end());
  std::vector<std::vector<models::ValueId>> memories;
  // `memories`: one group of values per buffer. A view joins the group of its
  // operand if that is an inner value as well.
  std::map<models::ValueId, size_t> memory_of;
  for (const models::ValueId id : read) {
    const NodeId maker = graph.value(id).producer;
    models::ValueId base = models::kNoValue;
    if (IsFree(graph, maker)) {
      for (const models::ValueId from : models::InputsOf(graph.nodes[maker])) {
        if (memory_of.count(from) > 0) base = from;
      }
    }
    const size_t memory =
        base == models::kNoValue ? memories.size() : memory_of.at(base);
    if (memory == memories.size()) memories.emplace_back();
    memories[memory].push_back(id);
    memory_of[id] = memory;
  }
  return memories;
}

}  // namespace

void ShareExcess(const Graph& graph, const std::vector<NodeId>& step,
                 const models::SymbolBindings& sizes, double excess,
                 std::vector<double>& cut_s) {
  const auto memories = InnerValues(graph, step);
  std::vector<double> bytes;
  // The first value of a group owns the buffer. At least 1 byte, so that groups
  // of unknown size still carry a part of the excess.
  for (const std::vector<models::ValueId>& memory : memories) {
    bytes.push_back(
        std::max(1.0, BytesOf(graph.value(memory.front()), sizes).value_or(1)));
  }
  const double all = std::accumulate(bytes.begin(), bytes.end(), 0.0);
  for (size_t m = 0; m < memories.size(); ++m) {
    // Each view is charged the whole price of its buffer, whichever of them
    // crosses.
    for (const models::ValueId id : memories[m]) {
      cut_s[id] += excess * bytes[m] / all;
    }
  }
}

}  // namespace refract::partitioner
