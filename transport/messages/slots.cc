#include "transport/messages/slots.h"

#include <glog/logging.h>

#include <utility>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"

namespace refract::transport {
namespace {

ABSL_ATTRIBUTE_NOINLINE ABSL_ATTRIBUTE_COLD absl::Status Bad(
    absl::string_view what, SlotGrant grant) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, " slot ", grant.slot, " generation ", grant.generation));
}

}  // namespace

SendSlots::SendSlots(int num_slots) : slots_(num_slots) {
  free_.reserve(num_slots);
  // Lowest on top: few slots in use touch few pages.
  for (int i = num_slots - 1; i >= 0; --i) {
    free_.push_back(static_cast<uint16_t>(i));
  }
}

void SendSlots::Untake(SlotGrant grant) {
  slots_[grant.slot].in_use = false;
  free_.push_back(grant.slot);
}

absl::Status SendSlots::Credit(SlotGrant grant) {
  if (grant.slot >= slots_.size()) return Bad("credit for unknown", grant);
  Slot& slot = slots_[grant.slot];
  // A credit names the generation of the slot's next use, so a repeated credit
  // does not fit.
  const auto next = static_cast<uint16_t>(slot.generation + 1);
  if (!slot.in_use || grant.generation != next) {
    return Bad("unexpected credit for", grant);
  }
  slot = {next, false};
  free_.push_back(grant.slot);
  return absl::OkStatus();
}

ReceiveSlots::ReceiveSlots(int num_slots) : slots_(num_slots) {
  credited_.reserve(num_slots);
  for (int i = num_slots - 1; i >= 0; --i) {
    credited_.push_back(static_cast<uint16_t>(i));
  }
}

absl::Status ReceiveSlots::Fill(SlotGrant grant) {
  if (grant.slot >= slots_.size()) return Bad("message in unknown", grant);
  Slot& slot = slots_[grant.slot];
  if (slot.filled || grant.generation != slot.generation) {
    return Bad("message without a credit in", grant);
  }
  slot.filled = true;
  ++num_filled_;
  if (!credited_.empty() && credited_.back() == grant.slot) Unlist();
  return absl::OkStatus();
}

SlotGrant ReceiveSlots::Release(uint16_t slot) {
  CHECK_LT(slot, slots_.size());
  CHECK(slots_[slot].filled) << "slot " << slot;
  slots_[slot].filled = false;
  --num_filled_;
  ++slots_[slot].generation;
  return {slot, slots_[slot].generation};
}

void ReceiveSlots::Credited(uint16_t slot) {
  if (std::exchange(slots_[slot].listed, true)) return;
  credited_.push_back(slot);
}

void ReceiveSlots::Unlist() {
  slots_[credited_.back()].listed = false;
  credited_.pop_back();
}

std::optional<uint16_t> ReceiveSlots::Expected() {
  while (!credited_.empty() && slots_[credited_.back()].filled) Unlist();
  if (credited_.empty()) return std::nullopt;
  return credited_.back();
}

}  // namespace refract::transport
