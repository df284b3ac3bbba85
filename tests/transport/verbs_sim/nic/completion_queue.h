#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_COMPLETION_QUEUE_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_COMPLETION_QUEUE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "transport/loop/fd.h"
#include "transport/verbs/device/api.h"

namespace refract::transport::sim {

struct Context;
class Nic;
class QueuePairState;

struct ChannelState {
  UniqueFd event_fd;
  int events = 0;
  int queues = 0;  // that use it

  void Fire();
  int Take();
};

// A completion is first in the queue and, some time later, visible to Poll. An
// entry takes its place from the beginning: that is when a queue overruns.
class CompletionQueueState {
 public:
  CompletionQueueState(Nic& nic, std::shared_ptr<Context> context, int capacity,
                       std::shared_ptr<ChannelState> channel);
  ~CompletionQueueState();

  // `slots` of the send queue are free once this is polled: a position in it,
  // or 0 of a receive. False: the queue is broken, perhaps by this.
  bool Push(const ibv_wc& completion, bool solicited, uint32_t slots);
  int Poll(int count, ibv_wc* out);
  void Arm(bool solicited_only);
  void OnVisible();
  // An event without a completion, to the one who armed the queue.
  void FireSpurious();
  // Events that were kept from a paused host.
  void Resume();
  // The simulation's list of armed queues does not have it any more.
  void Unlisted() { listed_ = false; }

  void Attach(QueuePairState& queue_pair) { users_.push_back(&queue_pair); }
  void Detach(QueuePairState& queue_pair);
  bool used() const { return !users_.empty(); }
  bool broken() const { return broken_; }
  bool HasVisible() const { return visible_ > 0; }
  bool armed() const { return armed_ != Armed::kNo; }
  ChannelState* channel() const { return channel_.get(); }
  uint32_t number() const { return number_; }

 private:
  enum class Armed : uint8_t { kNo, kSolicited, kNext };
  struct Entry {
    ibv_wc completion;
    bool wakes;  // solicited, or an error
    uint32_t slots;
  };
  void Overrun();
  void Fire();

  Nic& nic_;
  const std::shared_ptr<Context> context_;
  const int capacity_;
  const std::shared_ptr<ChannelState> channel_;
  const uint32_t number_;
  std::vector<QueuePairState*> users_;
  std::deque<Entry> entries_;
  size_t visible_ = 0;  // number of entries that polls see
  int64_t last_visible_at_ = 0;
  Armed armed_ = Armed::kNo;
  bool broken_ = false;
  bool fire_on_resume_ = false;
  bool listed_ = false;  // among the simulation's sleepers
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_COMPLETION_QUEUE_H_
