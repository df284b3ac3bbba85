#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_NIC_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_NIC_H_

// A device with its port: its registered memory, its queue pairs, and the
// transmitter that they share.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "tests/transport/verbs_sim/fabric/options.h"
#include "tests/transport/verbs_sim/fabric/packet.h"
#include "tests/transport/verbs_sim/fabric/simulation.h"
#include "tests/transport/verbs_sim/nic/counters.h"
#include "tests/transport/verbs_sim/nic/memory_table.h"
#include "transport/loop/fd.h"
#include "transport/verbs/device/api.h"

namespace refract::transport::sim {

class QueuePairState;

// Something that sends packets through a transmitter: the requester or the
// responder of a queue pair.
class PacketSource {
 public:
  virtual bool HasPacket() const = 0;
  // Fills `packet` with the next one. False: nothing to send after all.
  virtual bool Fill(Packet& packet) = 0;

 protected:
  ~PacketSource() = default;

 private:
  friend class Nic;
  bool waits_for_transmitter_ = false;
};

// A protection domain. Objects that were made in it share it.
struct Domain {
  uint32_t number = 0;
  int objects = 0;  // that are not destroyed
};

// One opening of a device, and its asynchronous events. Objects made with it
// share it, so that it outlives a device closed too early.
struct Context {
  std::deque<verbs::AsyncEvent> events;
  UniqueFd event_fd;
  int objects = 0;  // that are not destroyed

  void Raise(const verbs::AsyncEvent& event);
};

class Nic {
 public:
  Nic(Simulation& simulation, uint32_t id, int host, const NicOptions& options);

  Simulation& simulation;
  const NicOptions options;
  const uint32_t id;  // in the fabric
  const int host;
  PortCounters counters;
  MemoryTable memory;
  std::vector<verbs::GidEntry> gids;
  std::map<int, int> refused_gids;  // by index, with the errno
  std::vector<Context*> contexts;
  bool port_up = true;
  bool broken = false;                  // IBV_EVENT_DEVICE_FATAL happened
  Picoseconds switch_port_free_at = 0;  // the switch's output to here

  // Registrations until one fails, and its error; below 0: none will.
  int64_t registrations_until_failure = -1;
  absl::Status registration_failure;

  // Why no way is found from an entry of the table; 0: there is one.
  int RefusesGid(int index) const {
    const auto found = refused_gids.find(index);
    return found == refused_gids.end() ? 0 : found->second;
  }

  std::string Name() const;
  bool reachable() const;  // packets come in and go out
  bool paused() const { return simulation.hosts[host].paused; }
  Picoseconds propagation() const { return ToPicoseconds(options.propagation); }
  Picoseconds TimeOnWire(uint64_t bytes) const;
  // The inverse, rounded down.
  uint64_t BytesInTime(Picoseconds time) const;
  void AddViolation(absl::string_view what) {
    simulation.AddViolation(Name(), what);
  }

  // Queue pairs and completion queues by number; numbers are never used again.
  uint32_t AddQueuePair(QueuePairState& queue_pair);
  void RemoveQueuePair(uint32_t number);
  QueuePairState* FindQueuePair(uint32_t number) const;
  // Whether the device works on a request that names this region.
  bool AnyRequestUses(uint32_t local_key) const;
  uint32_t AddCompletionQueue(CompletionQueueState& queue);
  void RemoveCompletionQueue(uint32_t number) {
    completion_queues_.erase(number);
  }
  size_t queue_pairs() const { return queue_pairs_.size(); }
  size_t completion_queues() const { return completion_queues_.size(); }
  int shared_queues = 0;
  int domains = 0;
  uint32_t next_domain = 1;

  // Acknowledgements and such, which go before everything else.
  void SendControl(Packet* packet);
  // `source` may have packets now. Sources take turns, a packet each.
  void Offer(PacketSource& source);
  void Forget(PacketSource& source);
  void Receive(Packet& packet);

  void SetPort(bool up);
  // The device stops for good.
  void Break();
  // Raises the event at every opening of the device.
  void RaiseAll(const verbs::AsyncEvent& event);
  // Posts of a paused host reach the device when it goes on.
  void Resume();

  // Events.
  void OnTransmitterFree();
  void RingDoorbell(QueuePairState& queue_pair, uint32_t position);
  void OnDoorbell(uint64_t argument);
  void OnReadReady(uint32_t queue_pair);
  bool AckTimerIsDue(uint32_t queue_pair, Picoseconds at);
  void OnAckTimer(uint32_t queue_pair);
  void OnRnrTimer(uint32_t queue_pair);
  void OnCompletionVisible(uint32_t queue);

 private:
  void Enlist(PacketSource& source);
  void Transmit(Packet* packet);

  absl::flat_hash_map<uint32_t, QueuePairState*> queue_pairs_;
  // Ordered: going through them is part of the run.
  std::map<uint32_t, CompletionQueueState*> completion_queues_;
  uint32_t next_number_;
  uint32_t next_queue_ = 1;
  std::deque<Packet*> control_;
  std::deque<PacketSource*> ready_;  // waiting for their turn
  PacketSource* served_ = nullptr;   // whose packet is being sent
  bool transmitting_ = false;
  std::vector<uint64_t> held_doorbells_;  // while paused
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_NIC_H_
