#include "partitioner/wire/pricing.h"

#include <utility>

#include "partitioner/costs/prediction.h"
#include "partitioner/costs/wire_rates.h"

namespace refract::partitioner {

using models::SplitPlan;
using models::ValueId;
using models::WireForm;

WirePricing::WirePricing(const WireOptions& options,
                         const models::LoadedModel& model,
                         const WireSamples& samples,
                         const SplitConditions& conditions)
    : table_(samples.table),
      cn_(conditions.cn),
      hn_(conditions.hn),
      plain_bytes_(SizesOf(model.graph, conditions.conditions.sizes).bytes) {
  for (size_t id = 0; id < model.graph.values.size(); ++id) {
    const auto value = static_cast<ValueId>(id);
    for (const bool up : {true, false}) {
      (up ? prices_.up : prices_.down)
          .push_back(
              PriceOf(value, up,
                      SmallestForm(options, model.graph, table_, value, up)));
    }
  }
}

WirePrice WirePricing::PriceOf(ValueId value, bool up, WireForm form) {
  WirePrice price{.form = form};
  if (form.is_plain()) return price;
  // The samples show the ratio of coded to plain bytes and of distinct rows;
  // the plain bytes are those of the cut's conditions.
  const CrossingTable::Size size = table_.Of(value, form);
  // A value that the samples do not show is priced by its plain bytes.
  const double plain = plain_bytes_[value];
  price.bytes =
      size.plain_bytes > 0 ? plain * size.bytes / size.plain_bytes : plain;
  const auto on = [&](const Hardware& hardware) {
    return SecondsToCross(hardware.wire, hardware.bytes_per_s, form, plain,
                          size.distinct);
  };
  const WireSeconds cn = on(cn_);
  const WireSeconds hn = on(hn_);
  assumed_cn_ = assumed_cn_ || cn.assumed;
  assumed_hn_ = assumed_hn_ || hn.assumed;
  // The sender encodes, the receiver decodes.
  price.encode_s = up ? cn.encode_s : hn.encode_s;
  price.decode_s = up ? hn.decode_s : cn.decode_s;
  return price;
}

WirePrices WirePricing::PricesOf(const SplitPlan& plan) const {
  WirePricing copy = *this;
  for (size_t i = 0; i < plan.up.size(); ++i) {
    copy.prices_.up[plan.up[i]] =
        copy.PriceOf(plan.up[i], true, plan.up_form(i));
  }
  for (size_t i = 0; i < plan.down.size(); ++i) {
    copy.prices_.down[plan.down[i]] =
        copy.PriceOf(plan.down[i], false, plan.down_form(i));
  }
  return std::move(copy.prices_);
}

bool WirePricing::Learn(const SplitPlan& plan) {
  WirePrices real = PricesOf(plan);
  bool learned = false;
  const auto learn = [&](ValueId id, WirePrice& known, const WirePrice& found) {
    if (known.form == found.form) return;
    const auto bytes = [&](const WirePrice& price) {
      return price.form.is_plain() ? plain_bytes_[id] : price.bytes;
    };
    // A smaller form is not learnt: prices only rise, or the turns of cutting
    // and learning might never end.
    if (bytes(found) <= bytes(known)) return;
    known = found;
    learned = true;
  };
  for (const ValueId id : plan.up) learn(id, prices_.up[id], real.up[id]);
  for (const ValueId id : plan.down) {
    learn(id, prices_.down[id], real.down[id]);
  }
  return learned;
}

}  // namespace refract::partitioner
