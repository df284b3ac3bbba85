#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_EVENT_QUEUE_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_EVENT_QUEUE_H_

#include <cstdint>
#include <queue>
#include <vector>

#include "tests/transport/verbs_sim/fabric/random.h"
#include "tests/transport/verbs_sim/fabric/wire_model.h"

namespace refract::transport::sim {

enum class EventKind : uint8_t {
  kTransmitterFree,  // of nic
  kAtSwitch,         // argument: Packet*
  kDelivered,        // argument: Packet*
  kDoorbell,         // argument: queue pair and position
  kReadReady,        // argument: queue pair
  kAckTimer,         // argument: queue pair
  kRnrTimer,         // argument: queue pair
  kCompletion,       // argument: completion queue
  kScript,           // argument: index
};

struct Event {
  Picoseconds at = 0;
  uint64_t order = 0;
  EventKind kind = EventKind::kScript;
  uint32_t nic = 0;
  uint64_t argument = 0;
};

// Earliest first; ties by a random number when shuffling, then by age.
class EventQueue {
 public:
  EventQueue(bool shuffle, uint64_t seed)
      : shuffle_(shuffle), random_(seed ^ 0x65766e74) {}

  bool empty() const { return events_.empty(); }
  const Event& top() const { return events_.top(); }
  void Pop() { events_.pop(); }

  void Push(Picoseconds at, EventKind kind, uint32_t nic, uint64_t argument) {
    // A script's actions come first at their time, in the order they were
    // written: a test that says "at t" means what follows at t to see it.
    const bool shuffled = shuffle_ && kind != EventKind::kScript;
    const uint64_t tie = shuffled ? 1 + (random_.Next() >> 41) : 0;
    events_.push({at, tie << kAgeBits | next_age_++, kind, nic, argument});
  }

 private:
  // 23 bits of chance above the age; 2^40 events are days of running.
  static constexpr int kAgeBits = 40;
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };

  const bool shuffle_;
  Random random_;
  uint64_t next_age_ = 0;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_EVENT_QUEUE_H_
