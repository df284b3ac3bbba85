#ifndef REFRACT_TRANSPORT_VERBS_INBOX_H_
#define REFRACT_TRANSPORT_VERBS_INBOX_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/loop/fd.h"
#include "transport/verbs/device/api.h"

namespace refract::transport::verbs {

// The queue pairs of a path.
enum class Lane : uint8_t {
  kExpress = 0,  // puts, notifications, credits
  kBulk = 1,     // gets
};
inline constexpr size_t kLanes = 2;

// Completions that a hub has found for a path, until the path takes them.
// Belongs to the path, but the hub's mutex guards all members from `notes` on,
// because any thread that polls the hub writes here.
struct Inbox {
  // `window` notifications fit; a power of two. `channel_fd` and `timer_fd`
  // (negative: none) belong to the hub.
  static absl::StatusOr<std::unique_ptr<Inbox>> Create(uint32_t window,
                                                       int channel_fd,
                                                       int timer_fd);

  // Readable when a descriptor of the hub or `own_event` is readable.
  UniqueFd epoll;
  UniqueFd own_event;
  std::array<uint32_t, kLanes> queue_pairs = {};
  // Distinguishes completions of this path from completions of an earlier path
  // with the same queue pair number.
  uint32_t generation = 0;

  // Immediates, in order of arrival; positions count from the start.
  std::vector<uint32_t> notes;
  uint32_t first_note = 0;
  uint32_t end_note = 0;
  // Requests finished per lane, counted from the start.
  std::array<uint32_t, kLanes> finished = {};
  // Notifications that the peer reports as taken, counted from the start.
  uint32_t peer_consumed = 0;
  // The first failure of a request: its status and lane; or another reason why
  // the path has failed.
  std::optional<ibv_wc_status> failed_request;
  Lane failed_lane = Lane::kExpress;
  absl::Status failure;

  bool news = false;  // since the path looked last
  // The path's thread sleeps on `epoll`, or is about to sleep.
  bool armed = false;
  bool wants_sends = false;  // armed for its own requests, too
  bool signalled = false;    // own_event is readable
  bool heard = false;        // heard since the last tick of the timer
  // Heard since the start. Before, the peer's end may not be connected yet, and
  // a probe would delay later requests by an acknowledgement time-out.
  bool met = false;
  bool probe_due = false;

  bool has_failed() const {
    return failed_request.has_value() || !failure.ok();
  }
  bool has_notes() const { return first_note != end_note; }
  uint32_t TakeNote() { return notes[first_note++ & (notes.size() - 1)]; }
  // False: more notifications than the peer was granted.
  bool PutNote(uint32_t imm) {
    if (end_note - first_note == notes.size()) return false;
    notes[end_note++ & (notes.size() - 1)] = imm;
    return true;
  }
};

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_INBOX_H_
