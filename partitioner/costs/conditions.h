#ifndef REFRACT_PARTITIONER_COSTS_CONDITIONS_H_
#define REFRACT_PARTITIONER_COSTS_CONDITIONS_H_

// The conditions under which plans are compared.

#include <optional>
#include <vector>

#include "models/graph/sym_expr.h"
#include "models/repository/wire_form.h"
#include "partitioner/costs/costs.h"

namespace refract::partitioner {

// The network link between a CN and an HN, full duplex.
struct Link {
  double bytes_per_s = 25e9 / 8;
  double latency_s = 5e-6;  // one way, independent of the bytes
  double tensor_s = 0;      // for each tensor that crosses, besides its bytes
};

// Time of a request on its CN outside the model, the same for every plan: from
// the client and back, decoding, hand-overs between threads, encoding. Zero if
// it was not measured.
struct FrontEnd {
  double request_s = 0;
  double tensor_s = 0;  // for each input and output
  double input_byte_s = 0;
  double output_byte_s = 0;
};

// A value's wire form, with its bytes and coding times.
struct WirePrice {
  models::WireForm form;
  // Read only if the form is not plain. Bytes of the tensors sent for the
  // value, including an index of rows and the padding before it; seconds on the
  // sending and on the receiving node.
  double bytes = 0;
  double encode_s = 0;
  double decode_s = 0;
};

// Per value of a graph and direction; empty: all values are plain.
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
  // Number of CN units per HN unit, for throughput.
  double cn_units_per_hn = 1;
  std::optional<Prices> prices;
  // Per node: whether it is a look-up whose table may be placed on the HN, so
  // that ids travel instead of rows. Empty: none (HnLookUps).
  std::vector<bool> hn_look_ups;
};

// Limits of a plan; absent: no limit.
struct Budget {
  std::optional<double> cn_memory_bytes;
  std::optional<double> hn_memory_bytes;
  std::optional<double> bytes_per_request;  // up and down together
  // Tensor bytes of the request and of the answer, each: the transport's limit,
  // for requests that CPU nodes cannot cut.
  std::optional<double> bytes_per_message;
  // Tensors of the request and of the answer, each: the transport's limit.
  std::optional<double> tensors_per_message;
};

enum class Objective {
  kLatency,     // of one request on idle nodes
  kThroughput,  // of one HN unit with its CN units and link: the slowest
                // station
  kPrice,       // of one request
};

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_CONDITIONS_H_
