#ifndef REFRACT_PARTITIONER_COSTS_PREDICTION_H_
#define REFRACT_PARTITIONER_COSTS_PREDICTION_H_

#include <optional>
#include <vector>

#include "models/graph/graph.h"
#include "models/repository/split_plan.h"
#include "partitioner/costs/conditions.h"

namespace refract::partitioner {

// Bytes of each value of a graph, weights included. A value that could cross
// but has an unknown size counts as the largest known size, and is listed.
struct ValueSizes {
  std::vector<double> bytes;
  std::vector<models::ValueId> unknown;
};
ValueSizes SizesOf(const models::Graph& graph,
                   const models::SymbolBindings& sizes);

// The resources at which requests queue.
enum class Station { kCn, kLinkUp, kHn, kLinkDown };

// The expected times and bytes of one request under a plan.
struct Prediction {
  double cn_pre_s = 0;
  // Bytes and tensors; the link's latency is in round_trip_s.
  double up_s = 0;
  double hn_s = 0;
  double down_s = 0;
  double cn_post_s = 0;
  double round_trip_s = 0;  // 0 without an HN
  // On either node: encoding and decoding of crossing values, and the extra
  // time of operators that the cut separates.
  double cn_crossing_s = 0;
  double hn_crossing_s = 0;
  // Bytes as sent, in the forms of Conditions::wire: each value in the order of
  // SplitPlan::up and down, and in total.
  struct Sent {
    models::WireForm form;
    double bytes = 0;
  };
  std::vector<Sent> sent_up;
  std::vector<Sent> sent_down;
  double bytes_up = 0;
  double bytes_down = 0;
  // Bytes of the messages with the transport's additions (MessageBytes); 0
  // without an HN.
  double message_bytes_up = 0;
  double message_bytes_down = 0;
  // From Conditions::front_end. It is the same for every plan, so it is no part
  // of the compared latency. It is CN time, though, for throughput and price.
  double front_end_s = 0;
  // Weights read by the operators of a node, each once.
  double cn_memory_bytes = 0;
  double hn_memory_bytes = 0;
  // Requests per second of one HN unit with its CN units and network link,
  // limited by the slowest station.
  double requests_per_s = 0;
  Station slowest = Station::kCn;
  // Rate of the network link alone in its busier direction; absent if nothing
  // crosses.
  std::optional<double> link_requests_per_s;
  std::optional<double> price;  // with Conditions::prices

  double latency_s() const {
    return cn_pre_s + up_s + hn_s + down_s + cn_post_s + round_trip_s +
           cn_crossing_s + hn_crossing_s;
  }
  // Latency for a client of an idle CN.
  double end_to_end_s() const { return front_end_s + latency_s(); }
};

double FrontEndSeconds(const models::Graph& graph, const ValueSizes& sizes,
                       const FrontEnd& front_end);

// `plan` must have its crossings (models::ComputeCrossings). Sums directly over
// the plan, independent of the cut.
Prediction Predict(const models::Graph& graph, const models::SplitPlan& plan,
                   const Conditions& conditions);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_PREDICTION_H_
