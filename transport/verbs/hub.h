#ifndef REFRACT_TRANSPORT_VERBS_HUB_H_
#define REFRACT_TRANSPORT_VERBS_HUB_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "transport/loop/fd.h"
#include "transport/verbs/device/api.h"
#include "transport/verbs/device/device_context.h"
#include "transport/verbs/inbox.h"
#include "transport/verbs/options.h"

namespace refract::transport::verbs {

// Credits for notifications return in quarters of the window, so at most four
// of them are under way: a peer that has not taken a credit sends no more than
// a window of notifications.
inline constexpr uint32_t kCreditsPerWindow = 4;

// The queues that the paths of a polling thread share: completions of their
// sends, completions of their receives, and the receive requests, with one
// channel for their events. The path that polls takes the completions of all
// paths and puts them in their inboxes.
//
// The hub counts the entries in use, because a device whose queue overflows
// loses completions or connections, soft-RoCE without any error. Each path has
// its share of the completion queues and of the receive requests, and a path
// that would not fit is refused.
//
// Threads: meant for one thread, which then never waits for the mutex. But
// paths of one hub may be used by different threads (a handshake has its own),
// and a thread that polls wakes the threads whose completions it finds.
class CompletionHub final : public DeviceListener {
 public:
  // ResourceExhausted: not even one path fits on this device.
  static absl::StatusOr<std::shared_ptr<CompletionHub>> Create(
      std::shared_ptr<DeviceContext> context, const HubOptions& options,
      const PathOptions& typical);
  ~CompletionHub() override;

  DeviceContext& context() { return *context_; }
  const std::shared_ptr<DeviceContext>& shared_context() const {
    return context_;
  }
  // The device or a queue is broken for good: all paths have failed.
  bool dead() const { return dead_.load(std::memory_order_relaxed); }

  struct Pairs {
    std::unique_ptr<QueuePair> express;
    std::unique_ptr<QueuePair> bulk;
  };
  struct Attached {
    std::unique_ptr<Inbox> inbox;
    // Of this path alone, so that its peer reaches no other path's memory.
    std::unique_ptr<ProtectionDomain> domain;
    Pairs pairs;
  };
  // Makes the queue pairs of a path, in the reset state, and their domain.
  // ResourceExhausted: no room for a further path. Takes milliseconds.
  absl::StatusOr<Attached> Attach(const PathOptions& options);
  // Undoes Attach: when this returns, the device touches no memory on behalf of
  // the path. The caller may have taken the domain, which must be destroyed
  // after its registrations.
  void Detach(Attached attached, const PathOptions& options);

  absl::Mutex& mutex() ABSL_LOCK_RETURNED(mu_) { return mu_; }

  // Moves the device's completions into inboxes. `self` belongs to the caller.
  void Progress(Inbox& self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Call before sleeping on self.epoll. False: self has news. `wants_sends`:
  // the path has requests under way.
  bool Arm(Inbox& self, bool wants_sends) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void OnDeviceEvent(absl::string_view device,
                     const AsyncEvent& event) override;

 private:
  static constexpr int kBatch = 32;
  struct Target {
    Inbox* inbox = nullptr;
    Lane lane = Lane::kExpress;
  };

  CompletionHub(std::shared_ptr<DeviceContext> context, UniqueFd timer);
  absl::Status MakeQueues(const HubOptions& options,
                          const PathOptions& typical);

  bool DrainSends() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool DrainReceives() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnSent(const ibv_wc& completion) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnReceived(const ibv_wc& completion) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Target Find(uint32_t queue_pair) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Replaces used receive requests.
  void Refill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Checks events and timer, after a sleep and now and then.
  void LookAtDescriptors(Inbox& self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnTick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Disarm(Inbox& inbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ArmQueues(bool sends) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void Notify(Inbox& inbox);
  void Fail(Inbox& inbox, absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The hub is dead from then on.
  void FailAll(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // In order of construction; destroyed last to first.
  const std::shared_ptr<DeviceContext> context_;
  const UniqueFd timer_;  // invalid: no idle probes
  std::unique_ptr<CompletionChannel> channel_;
  std::unique_ptr<CompletionQueue> sends_;
  std::unique_ptr<CompletionQueue> receives_;
  std::unique_ptr<SharedReceiveQueue> receive_requests_;
  std::atomic<bool> dead_ = false;

  // Held while queue pairs are made or destroyed, so that a number is not
  // reused before its completions have left the queues. Taken before mu_.
  absl::Mutex attach_mu_;
  uint32_t free_sends_ ABSL_GUARDED_BY(attach_mu_) = 0;
  uint32_t free_receives_ ABSL_GUARDED_BY(attach_mu_) = 0;
  uint32_t next_generation_ ABSL_GUARDED_BY(attach_mu_) = 1;

  absl::Mutex mu_;
  absl::flat_hash_map<uint32_t, Target> targets_ ABSL_GUARDED_BY(mu_);
  // The path found last: with one path per thread, always a hit.
  uint32_t last_queue_pair_ ABSL_GUARDED_BY(mu_) = 0;
  Target last_target_ ABSL_GUARDED_BY(mu_);
  uint32_t used_requests_ ABSL_GUARDED_BY(mu_) = 0;
  int armed_ ABSL_GUARDED_BY(mu_) = 0;
  int want_sends_ ABSL_GUARDED_BY(mu_) = 0;
  int polls_since_look_ ABSL_GUARDED_BY(mu_) = 0;
  std::array<ibv_wc, kBatch> batch_ ABSL_GUARDED_BY(mu_);
  // Empty receive requests, linked.
  std::array<ibv_recv_wr, kBatch> empty_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_HUB_H_
