#include "partitioner/wire/pricing.h"

#include <utility>

#include "base/status_macros.h"
#include "partitioner/costs/prediction.h"
#include "partitioner/costs/wire_rates.h"

namespace refract::partitioner {

using models::SplitPlan;
using models::ValueId;
using models::WireForm;
using models::WireType;

WirePricing::WirePricing(const models::LoadedModel& model, CrossingTable table,
                         const SplitConditions& conditions)
    : model_(model),
      table_(std::move(table)),
      cn_(conditions.cn),
      hn_(conditions.hn),
      plain_bytes_(SizesOf(model.graph, conditions.conditions.sizes).bytes) {}

absl::StatusOr<WirePricing> WirePricing::Create(
    const WireOptions& options, const models::LoadedModel& model,
    const WireSamples& samples, const SplitConditions& conditions) {
  REFRACT_ASSIGN_OR_RETURN(CrossingTable table,
                           CrossingTable::Measure(model, samples.requests));
  WirePricing pricing(model, std::move(table), conditions);
  const std::vector<WireType> lossy = LossyTypesOf(options);
  for (size_t id = 0; id < model.graph.values.size(); ++id) {
    const auto value = static_cast<ValueId>(id);
    for (const bool up : {true, false}) {
      (up ? pricing.prices_.up : pricing.prices_.down)
          .push_back(pricing.PriceOf(
              value, up, pricing.SmallestForm(options, lossy, value, up)));
    }
  }
  return pricing;
}

// The rules of ChooseWireForms, for one value alone.
WireForm WirePricing::SmallestForm(const WireOptions& options,
                                   const std::vector<WireType>& lossy,
                                   ValueId id, bool up) const {
  const models::Value& value = model_.graph.value(id);
  const auto may_be = [&](WireForm form) {
    return models::MayCross(value) && models::CheckWireForm(value, form).ok();
  };
  const auto size = [&](WireForm form) {
    return table_.Of(id, form).message_bytes;
  };
  WireForm best;
  const auto offer = [&](WireForm form) {
    if (may_be(form) && size(form) < size(best)) best = form;
  };
  if (up && !options.samples.empty()) {
    if (table_.Narrows(id)) offer({WireType::kInt32, false});
    offer({best.type, true});
  }
  const bool unique = best.unique_rows;
  for (const WireType type : lossy) offer({type, unique});
  return best;
}

WirePrice WirePricing::PriceOf(ValueId value, bool up, WireForm form) {
  WirePrice price{.form = form};
  if (form.is_plain()) return price;
  const CrossingTable::Size size = table_.Of(value, form);
  // The samples may have other sizes than the cut is made for.
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
