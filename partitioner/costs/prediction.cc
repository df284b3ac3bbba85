#include "partitioner/costs/prediction.h"

#include <algorithm>
#include <array>

#include "models/graph/constants.h"
#include "partitioner/split/crossing.h"
#include "partitioner/costs/message_bytes.h"
#include "partitioner/costs/work.h"

namespace refract::partitioner {

using models::Graph;
using models::SplitPlan;
using models::Stage;
using models::ValueId;

ValueSizes SizesOf(const Graph& graph, const models::SymbolBindings& sizes) {
  ValueSizes result;
  // A value of unknown size counts as the largest known size, so that a cut
  // across it is not chosen for its small price.
  double largest = 8;
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const models::Value& value = graph.values[id];
    const std::optional<double> bytes = BytesOf(value, sizes);
    if (!bytes && models::MayCross(value)) {
      result.unknown.push_back(static_cast<ValueId>(id));
    }
    if (bytes && !value.is_weight()) largest = std::max(largest, *bytes);
    result.bytes.push_back(bytes.value_or(0));
  }
  for (const ValueId id : result.unknown) result.bytes[id] = largest;
  return result;
}

double FrontEndSeconds(const Graph& graph, const ValueSizes& sizes,
                       const FrontEnd& front_end) {
  double seconds =
      front_end.request_s +
      static_cast<double>(graph.inputs.size() + graph.outputs.size()) *
          front_end.tensor_s;
  for (const ValueId id : graph.inputs) {
    seconds += sizes.bytes[id] * front_end.input_byte_s;
  }
  for (const ValueId id : graph.outputs) {
    seconds += sizes.bytes[id] * front_end.output_byte_s;
  }
  return seconds;
}

Prediction Predict(const Graph& graph, const SplitPlan& plan,
                   const Conditions& conditions) {
  const ValueSizes sizes = SizesOf(graph, conditions.sizes);
  const OperatorCosts& costs = conditions.costs;
  Prediction result;
  std::vector<bool> on_cn(graph.values.size(), false);
  std::vector<bool> on_hn(graph.values.size(), false);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const bool hn = plan.stages[n] == Stage::kHn;
    (hn                                ? result.hn_s
     : plan.stages[n] == Stage::kCnPre ? result.cn_pre_s
                                       : result.cn_post_s) +=
        hn ? costs.hn_s[n] : costs.cn_s[n];
  }
  // Weights count once on each node that has a reader of them, and constants
  // count as the weights that they are made of.
  const std::vector<std::vector<models::NodeId>> weight_readers =
      models::ReadersOfWeights(graph);
  for (size_t id = 0; id < weight_readers.size(); ++id) {
    for (const models::NodeId n : weight_readers[id]) {
      (plan.stages[n] == Stage::kHn ? on_hn : on_cn)[id] = true;
    }
  }
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (on_cn[id]) result.cn_memory_bytes += sizes.bytes[id];
    if (on_hn[id]) result.hn_memory_bytes += sizes.bytes[id];
  }
  // Bytes, link time and coding of one value that crosses.
  const auto cross = [&](ValueId id, bool up) {
    const Crossing crossing = CrossingOf(conditions, id, up, sizes.bytes[id]);
    (up ? result.bytes_up : result.bytes_down) += crossing.bytes;
    (up ? result.up_s : result.down_s) += crossing.link_s;
    const std::vector<WirePrice>& prices =
        up ? conditions.wire.up : conditions.wire.down;
    (up ? result.sent_up : result.sent_down)
        .push_back({prices.empty() ? models::WireForm() : prices[id].form,
                    crossing.bytes});
    result.cn_crossing_s += crossing.cn_s;
    result.hn_crossing_s += crossing.hn_s;
  };
  for (const ValueId id : plan.up) cross(id, true);
  for (const ValueId id : plan.down) cross(id, false);
  // A plan without HN is one run on the CN; a split plan is a run of CN-pre, of
  // the HN part and of CN-post.
  result.cn_pre_s += costs.cn_run_s;
  if (plan.uses_hn()) {
    result.hn_s += costs.hn_run_s;
    result.cn_post_s += costs.cn_run_s;
    result.round_trip_s = 2 * conditions.link.latency_s;
    result.message_bytes_up =
        MessageBytes(graph, plan.up, sizes.bytes, conditions.wire.up);
    result.message_bytes_down =
        MessageBytes(graph, plan.down, sizes.bytes, conditions.wire.down);
  }
  result.front_end_s = FrontEndSeconds(graph, sizes, conditions.front_end);

  const double cn_s = result.front_end_s + result.cn_pre_s + result.cn_post_s +
                      result.cn_crossing_s;
  const double hn_s = result.hn_s + result.hn_crossing_s;
  // In the order of Station.
  const std::array<double, 4> stations = {cn_s / conditions.cn_units_per_hn,
                                          result.up_s, hn_s, result.down_s};
  // Stations work side by side on different requests: the slowest bounds the
  // rate.
  const auto slowest = std::max_element(stations.begin(), stations.end());
  result.slowest = static_cast<Station>(slowest - stations.begin());
  result.requests_per_s = *slowest > 0 ? 1 / *slowest : 0;
  const double link_s = std::max(result.up_s, result.down_s);
  if (link_s > 0) result.link_requests_per_s = 1 / link_s;
  if (conditions.prices) {
    const Prices& prices = *conditions.prices;
    result.price = cn_s * prices.cn_unit_s + hn_s * prices.hn_unit_s +
                   (result.bytes_up + result.bytes_down) * prices.byte;
  }
  return result;
}

}  // namespace refract::partitioner
