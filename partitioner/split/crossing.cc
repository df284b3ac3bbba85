#include "partitioner/split/crossing.h"

namespace refract::partitioner {

Crossing CrossingOf(const Conditions& conditions, models::ValueId id, bool up,
                    double bytes) {
  Crossing crossing{.bytes = bytes};
  const auto at = static_cast<size_t>(id);
  const std::vector<WirePrice>& prices =
      up ? conditions.wire.up : conditions.wire.down;
  // The sender encodes and the receiver decodes: on the way up the CN and the
  // HN, on the way down the reverse. Plain values are not coded.
  if (!prices.empty() && !prices[at].form.is_plain()) {
    const WirePrice& price = prices[at];
    crossing.bytes = price.bytes;
    (up ? crossing.cn_s : crossing.hn_s) += price.encode_s;
    (up ? crossing.hn_s : crossing.cn_s) += price.decode_s;
  }
  const OperatorCosts& costs = conditions.costs;
  // The extra time of a separated step, half for the node that writes the value
  // and half for the node that reads it (OperatorCosts::cn_cut_s).
  if (!costs.cn_cut_s.empty()) crossing.cn_s += costs.cn_cut_s[at] / 2;
  if (!costs.hn_cut_s.empty()) crossing.hn_s += costs.hn_cut_s[at] / 2;
  crossing.link_s =
      crossing.bytes / conditions.link.bytes_per_s + conditions.link.tensor_s;
  return crossing;
}

}  // namespace refract::partitioner
