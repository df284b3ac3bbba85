#ifndef REFRACT_PARTITIONER_COSTS_WIRE_RATES_H_
#define REFRACT_PARTITIONER_COSTS_WIRE_RATES_H_

// How quickly a kind of machine encodes and decodes what crosses.

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/repository/wire_form.h"

namespace refract::partitioner {

// Plain bytes per second of one unit: of what is encoded, and of what decoding
// gives. Above 0.
struct WireRate {
  double encode_bytes_per_s = 0;
  double decode_bytes_per_s = 0;
};

// By models::Name() of the type, or kUniqueRows: what finding equal rows and
// their index, and repeating the rows, take beside the encoding.
using WireRates = std::map<std::string, WireRate>;
inline constexpr char kUniqueRows[] = "unique";

// InvalidArgument: a form that there is none of or that is there already, a
// rate that is no number above 0; names the form.
absl::Status AddWireRate(absl::string_view form, const WireRate& rate,
                         WireRates& rates);

struct WireSeconds {
  double encode_s = 0;
  double decode_s = 0;
  bool assumed = false;  // a form without a rate
};

// Of a value of `plain_bytes` in `form`, of whose rows the part `distinct`
// (0 to 1) is sent. A form without a rate reads and writes memory once, at
// `bytes_per_s`.
WireSeconds SecondsToCross(const WireRates& rates, double bytes_per_s,
                           models::WireForm form, double plain_bytes,
                           double distinct);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_WIRE_RATES_H_
