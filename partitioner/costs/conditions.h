#ifndef REFRACT_PARTITIONER_COSTS_CONDITIONS_H_
#define REFRACT_PARTITIONER_COSTS_CONDITIONS_H_

// Under what a plan is judged.

#include <optional>
#include <vector>

#include "models/graph/sym_expr.h"
#include "models/repository/wire_form.h"
#include "partitioner/costs/costs.h"

namespace refract::partitioner {

// Between a CN and an HN; both directions at once.
struct Link {
  double bytes_per_s = 25e9 / 8;
  double latency_s = 5e-6;  // one way, whatever the bytes
  double tensor_s = 0;      // for each tensor that crosses, beside its bytes
};

// What a request takes on its CN outside the model, whatever the plan: from the
// client and back, decoding, hand-overs between threads, encoding. Zero where
// nobody measured it.
struct FrontEnd {
  double request_s = 0;
  double tensor_s = 0;  // for each input and output
  double input_byte_s = 0;
  double output_byte_s = 0;
};

// A value's form on the wire and what that makes of it.
struct WirePrice {
  models::WireForm form;
  // Read only where the form is not plain. Bytes of the tensors that are sent
  // for it, an index of rows included and the padding before that; seconds of
  // the sending and of the receiving node.
  double bytes = 0;
  double encode_s = 0;
  double decode_s = 0;
};

// Per value of a graph, for either direction; empty: all as they are.
struct WirePrices {
  std::vector<WirePrice> up;
  std::vector<WirePrice> down;
};

// Money per second of one unit, and per byte that crosses. Any currency.
struct Prices {
  double cn_unit_s = 0;
  double hn_unit_s = 0;
  double byte = 0;
};

struct Conditions {
  models::SymbolBindings sizes;  // of one request (SizesForBatch)
  OperatorCosts costs;           // at these sizes
  Link link;
  FrontEnd front_end;
  WirePrices wire;
  // CN units that keep one HN unit busy, for throughput.
  double cn_units_per_hn = 1;
  std::optional<Prices> prices;
  // Per node: a look-up whose table may be placed on the HN, so that ids travel
  // instead of rows. Empty: none. (HnLookUps)
  std::vector<bool> hn_look_ups;
};

// What a request may take at most; absent: anything.
struct Budget {
  std::optional<double> cn_memory_bytes;
  std::optional<double> hn_memory_bytes;
  std::optional<double> bytes_per_request;  // up and down together
};

enum class Objective {
  kLatency,     // of one request on idle nodes
  kThroughput,  // of one HN unit with its CN units and link: the slowest
                // station
  kPrice,       // of one request
};

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_CONDITIONS_H_
