#ifndef REFRACT_PARTITIONER_COSTS_PREDICTION_H_
#define REFRACT_PARTITIONER_COSTS_PREDICTION_H_

#include <optional>
#include <vector>

#include "models/graph/graph.h"
#include "models/repository/split_plan.h"
#include "partitioner/costs/conditions.h"

namespace refract::partitioner {

// Bytes of each value of a graph, weights included. One that could cross but
// whose size nobody knows counts as the largest that is known, and is listed.
struct ValueSizes {
  std::vector<double> bytes;
  std::vector<models::ValueId> unknown;
};
ValueSizes SizesOf(const models::Graph& graph,
                   const models::SymbolBindings& sizes);

// Where requests queue.
enum class Station { kCn, kLinkUp, kHn, kLinkDown };

// What a plan is expected to do to one request.
struct Prediction {
  double cn_pre_s = 0;
  // Bytes and tensors; the link's latency is in round_trip_s.
  double up_s = 0;
  double hn_s = 0;
  double down_s = 0;
  double cn_post_s = 0;
  double round_trip_s = 0;  // 0 without an HN
  // On either side: encoding and decoding what crosses, and what operators take
  // more that are computed as one where nothing is cut between them.
  double cn_crossing_s = 0;
  double hn_crossing_s = 0;
  // As sent: in the forms of Conditions::wire, each in the order of
  // SplitPlan::up and down, and all together.
  struct Sent {
    models::WireForm form;
    double bytes = 0;
  };
  std::vector<Sent> sent_up;
  std::vector<Sent> sent_down;
  double bytes_up = 0;
  double bytes_down = 0;
  // Of the messages, with what the transport adds (MessageBytes); 0 without an
  // HN.
  double message_bytes_up = 0;
  double message_bytes_down = 0;
  // Of Conditions::front_end: the same for every plan, so no part of the
  // latency that plans are compared by. CN time all the same: it counts where
  // CNs are kept busy and paid for.
  double front_end_s = 0;
  // Weights that the operators of a side read, each once.
  double cn_memory_bytes = 0;
  double hn_memory_bytes = 0;
  // Of one HN unit with its CN units and link, in requests per second: what
  // its slowest station lets through, and which one that is.
  double requests_per_s = 0;
  Station slowest = Station::kCn;
  // What the link alone lets through in its busier direction; absent when
  // nothing crosses.
  std::optional<double> link_requests_per_s;
  std::optional<double> price;  // with Conditions::prices

  double latency_s() const {
    return cn_pre_s + up_s + hn_s + down_s + cn_post_s + round_trip_s +
           cn_crossing_s + hn_crossing_s;
  }
  // As a client of an idle CN sees it.
  double end_to_end_s() const { return front_end_s + latency_s(); }
};

double FrontEndSeconds(const models::Graph& graph, const ValueSizes& sizes,
                       const FrontEnd& front_end);

// `plan` must have its crossings filled in (models::ComputeCrossings). Sums
// straight over the plan, not by way of the cut.
Prediction Predict(const models::Graph& graph, const models::SplitPlan& plan,
                   const Conditions& conditions);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_PREDICTION_H_
