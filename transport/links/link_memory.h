#ifndef REFRACT_TRANSPORT_LINKS_LINK_MEMORY_H_
#define REFRACT_TRANSPORT_LINKS_LINK_MEMORY_H_

// State that a connection shares with its messages and calls, which may outlive
// the connection: memory, returned slots, and whether the connection is open.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/process/byte_budget.h"
#include "transport/links/channel.h"
#include "transport/loop/intrusive_heap.h"
#include "transport/memory/arena.h"
#include "transport/memory/free_list.h"
#include "transport/messages/slots.h"
#include "transport/messages/wire.h"

namespace refract::transport {

// Slots whose reader is done, until the polling thread takes them. Push() is
// for any thread, the rest for the polling thread.
class SlotReturns {
 public:
  // Wakes the polling thread when CreditThreshold(num_slots) slots wait, not
  // for each slot: the peer still has credits, and the next message wakes the
  // thread anyway.
  SlotReturns(int num_slots, std::shared_ptr<Waker> waker)
      : threshold_(CreditThreshold(num_slots)),
        waker_(std::move(waker)),
        below_(static_cast<size_t>(num_slots)) {}

  // `slot` is filled and does not wait here.
  void Push(uint16_t slot);
  // Whether each slot wakes the polling thread from now on. The caller must
  // call Drain(): the setting does not cover waiting slots.
  void WakeForEach(bool each);
  // Slots that wait. A slot that is pushed meanwhile may be missed.
  size_t size() const { return SizeOf(state_.load(std::memory_order_relaxed)); }
  // Appends the waiting slots to `out`.
  void Drain(std::vector<uint16_t>* out);

 private:
  // The waiting slots are a linked stack whose top, size and setting change
  // together: bits 0 to 15 are the top slot + 1, or 0; bits 16 to 31 the size.
  static constexpr uint64_t kTop = 0xffff;
  static constexpr int kSizeShift = 16;
  static constexpr uint64_t kWakeForEach = uint64_t{1} << 32;
  static constexpr size_t SizeOf(uint64_t state) {
    return (state & ~kWakeForEach) >> kSizeShift;
  }

  const size_t threshold_;
  const std::shared_ptr<Waker> waker_;
  std::atomic<uint64_t> state_ = 0;
  uint64_t setting_ = 0;  // kWakeForEach of state_, for the polling thread
  // Per waiting slot: the slot below it + 1, or 0. An element belongs to the
  // slot's reader until Push() has published it, and then to the polling
  // thread, which hands it over again with the slot's next message.
  std::vector<uint16_t> below_;
};

struct LinkMemory;

// Counts a request in LinkMemory::requests. Move-only.
class RequestToken {
 public:
  RequestToken() = default;
  // nullopt: `limit` requests are counted.
  static std::optional<RequestToken> Take(std::shared_ptr<LinkMemory> memory,
                                          int limit);
  RequestToken(RequestToken&&) noexcept = default;
  RequestToken& operator=(RequestToken&& other) noexcept;
  ~RequestToken() { Reset(); }
  void Reset();

 private:
  explicit RequestToken(std::shared_ptr<LinkMemory> memory)
      : memory_(std::move(memory)) {}
  std::shared_ptr<LinkMemory> memory_;
};

// Recycled through LinkMemory, as are incoming messages.
struct OutgoingMessage::Impl {
  std::shared_ptr<LinkMemory> memory;
  ArenaBlock block;
  MessageLayout layout;
  MessageHeader header;        // id, deadline and epoch are set when it is sent
  RequestToken token;          // of requests
  bool may_ask_times = false;  // the peer sends CallTimes
  bool may_set_priority = false;  // the peer has FEATURE_PRIORITIES

  // Deadline while the message waits in a MessageSender.
  absl::Time deadline;
  uint64_t sequence = 0;
  HeapSlot waiting;
};

// Tensors lie in a slot or in the pull arena. Recycled through LinkMemory.
struct IncomingMessage::Impl : TensorTable {
  // True: pulled by this side into memory that no peer can reach.
  bool settled() const { return !slot.has_value(); }

  std::shared_ptr<LinkMemory> memory;  // null: not in use
  std::optional<uint16_t> slot;        // slot to return
  ArenaBlock pulled;
  base::ByteBudget::Hold held;  // budget of `pulled`
  std::optional<CallTimes> times;
};

// Thread-safe. Sharers: the connection's poller, its messages and calls.
struct LinkMemory {
  LinkMemory(Region slots_region, std::shared_ptr<Arena> source_arena,
             std::shared_ptr<Arena> text_arena,
             std::shared_ptr<Arena> pull_arena,
             std::shared_ptr<Waker> poller_waker, size_t max_send_bytes,
             int num_slots)
      : slots(std::move(slots_region)),
        source(std::move(source_arena)),
        texts(std::move(text_arena)),
        pulls(std::move(pull_arena)),
        waker(std::move(poller_waker)),
        max_message_bytes(max_send_bytes),
        returns(num_slots, waker) {}

  const Region slots;                   // the peer puts messages here
  const std::shared_ptr<Arena> source;  // messages to send
  // For error responses, so that a full source arena can be reported.
  const std::shared_ptr<Arena> texts;
  const std::shared_ptr<Arena> pulls;  // large messages received
  const std::shared_ptr<Waker> waker;
  const size_t max_message_bytes;  // the peer's limit
  SlotReturns returns;
  FreeList<OutgoingMessage::Impl> outgoing;
  FreeList<IncomingMessage::Impl> incoming;
  std::atomic<bool> open = true;  // false once the connection ended
  std::atomic<int> requests = 0;  // allocated, sent or being answered
};

// A message with room for `tensors` in the source arena; its table and `text`
// are written. ResourceExhausted: arena full; other errors as LayoutMessage.
absl::StatusOr<OutgoingMessage::ImplPtr> NewMessage(
    const std::shared_ptr<LinkMemory>& memory, MessageKind kind,
    absl::Span<const base::TensorSpec> tensors, absl::string_view text = {});

// A response that carries only the error `status`. Null if even the text arena
// is full: the peer has more requests open than it may.
OutgoingMessage::ImplPtr NewFailure(const std::shared_ptr<LinkMemory>& memory,
                                    const absl::Status& status);

// An empty message to be filled by a receiver.
IncomingMessage::ImplPtr NewIncoming(const std::shared_ptr<LinkMemory>& memory);

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LINKS_LINK_MEMORY_H_
