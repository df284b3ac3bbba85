#ifndef REFRACT_PARTITIONER_COSTS_WIRE_RATES_H_
#define REFRACT_PARTITIONER_COSTS_WIRE_RATES_H_

// Rates at which a kind of machine encodes and decodes wire forms.

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/repository/wire_form.h"

namespace refract::partitioner {

// Plain bytes per second of one unit: encoder input, and decoder output. Above
// 0.
struct WireRate {
  double encode_bytes_per_s = 0;
  double decode_bytes_per_s = 0;
};

// Key: models::Name() of the type, or kUniqueRows for finding equal rows and
// their index, and repeating the rows, besides the encoding.
using WireRates = std::map<std::string, WireRate>;
inline constexpr char kUniqueRows[] = "unique";

// InvalidArgument names the form: unknown, present already, or with a rate that
// is not above 0.
absl::Status AddWireRate(absl::string_view form, const WireRate& rate,
                         WireRates& rates);

struct WireSeconds {
  double encode_s = 0;
  double decode_s = 0;
  bool assumed = false;  // a form without a rate
};

// Coding times of a value of `plain_bytes` in `form`, of whose rows the share
// `distinct` (0 to 1) is sent. A form without a rate is priced as one read and
// one write of memory at `bytes_per_s`.
WireSeconds SecondsToCross(const WireRates& rates, double bytes_per_s,
                           models::WireForm form, double plain_bytes,
                           double distinct);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_WIRE_RATES_H_
