#ifndef REFRACT_TRANSPORT_MESSAGES_SLOTS_H_
#define REFRACT_TRANSPORT_MESSAGES_SLOTS_H_

// Position-based credits. A receiver owns numbered slots; each grant of a slot
// has a generation, and the right to write a slot is the pair of both. Slots
// come back in any order, so a slot that is held long does not block the
// others. A credit is absolute ("slot s is granted with generation g"): a
// repeated credit is recognised instead of counted twice.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace refract::transport {

struct SlotGrant {
  uint16_t slot = 0;
  uint16_t generation = 0;
};

// Slots that a receiver collects before it returns them together, while the
// sender has some left: a quarter of all (reference design). At least two: else
// each message would bring a credit of its own, which wakes its sender.
constexpr size_t CreditThreshold(int num_slots) {
  return std::max<size_t>(static_cast<size_t>(num_slots) / 4, 2);
}

// The sender's view of the receiver's slots. Starts with every slot granted
// with generation 0. Not thread-safe.
class SendSlots {
 public:
  explicit SendSlots(int num_slots);

  // A granted slot, now in use. nullopt: no slot is granted.
  std::optional<SlotGrant> Take() {
    if (free_.empty()) return std::nullopt;
    const uint16_t slot = free_.back();
    free_.pop_back();
    slots_[slot].in_use = true;
    return SlotGrant{slot, slots_[slot].generation};
  }
  // The slot that Take would give next; nullopt as there.
  std::optional<uint16_t> next() const {
    if (free_.empty()) return std::nullopt;
    return free_.back();
  }
  // Undoes the last Take, whose slot was not used.
  void Untake(SlotGrant grant);
  // Takes a credit. InvalidArgument: no such slot, not in use, or not the next
  // generation.
  absl::Status Credit(SlotGrant grant);

  int num_slots() const { return static_cast<int>(slots_.size()); }
  int available() const { return static_cast<int>(free_.size()); }

 private:
  struct Slot {
    uint16_t generation = 0;
    bool in_use = false;
  };
  std::vector<Slot> slots_;
  std::vector<uint16_t> free_;
};

// The receiver's view of its own slots. Not thread-safe.
class ReceiveSlots {
 public:
  explicit ReceiveSlots(int num_slots);

  // Call when a message came in `grant`; this side may read the slot until
  // Release. InvalidArgument: no such slot, not granted, or an old generation.
  absl::Status Fill(SlotGrant grant);
  // Ends the use of a filled slot and returns the new grant for the sender.
  SlotGrant Release(uint16_t slot);
  // Call when the credit of a released slot was sent.
  void Credited(uint16_t slot);
  // The slot that the sender probably takes next: the one it was granted last,
  // as SendSlots does. nullopt: none is granted.
  std::optional<uint16_t> Expected();

  int num_slots() const { return static_cast<int>(slots_.size()); }
  size_t num_filled() const { return num_filled_; }

 private:
  struct Slot {
    uint16_t generation = 0;
    bool filled = false;
    bool listed = true;  // in credited_
  };
  void Unlist();  // the top of credited_
  std::vector<Slot> slots_;
  size_t num_filled_ = 0;
  // The sender's free slots, the last granted on top. A slot that is filled out
  // of this order stays until it is the top.
  std::vector<uint16_t> credited_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MESSAGES_SLOTS_H_
