#include "partitioner/costs/wire_rates.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace refract::partitioner {

absl::Status AddWireRate(absl::string_view form, const WireRate& rate,
                         WireRates& rates) {
  // kAsIs has no rate: a plain tensor is not encoded.
  const auto type = models::WireTypeFromName(form);
  if (form != kUniqueRows && (!type || *type == models::WireType::kAsIs)) {
    std::string known;
    for (int i = 1; i < models::kNumWireTypes; ++i) {
      absl::StrAppend(&known, i > 1 ? ", " : "",
                      models::Name(static_cast<models::WireType>(i)));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("wire ", form, ": unknown wire form; known are ", known,
                     " and ", kUniqueRows));
  }
  for (const double value :
       {rate.encode_bytes_per_s, rate.decode_bytes_per_s}) {
    if (std::isfinite(value) && value > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "wire ", form, ": ", value, " bytes per second: must be above 0"));
  }
  if (!rates.emplace(std::string(form), rate).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("wire ", form, ": is listed twice"));
  }
  return absl::OkStatus();
}

WireSeconds SecondsToCross(const WireRates& rates, double bytes_per_s,
                           models::WireForm form, double plain_bytes,
                           double distinct) {
  WireSeconds seconds;
  const auto add = [&](absl::string_view name, double bytes) {
    const auto rate = rates.find(std::string(name));
    // One read and one write.
    const WireRate at = rate != rates.end()
                            ? rate->second
                            : WireRate{bytes_per_s / 2, bytes_per_s / 2};
    seconds.assumed = seconds.assumed || rate == rates.end();
    seconds.encode_s += bytes / at.encode_bytes_per_s;
    seconds.decode_s += bytes / at.decode_bytes_per_s;
  };
  // Unique rows come first: rows are compared as they are, and only distinct
  // rows are encoded in the wire type.
  if (form.unique_rows) add(kUniqueRows, plain_bytes);
  if (form.type != models::WireType::kAsIs) {
    add(models::Name(form.type),
        form.unique_rows ? plain_bytes * distinct : plain_bytes);
  }
  return seconds;
}

}  // namespace refract::partitioner
