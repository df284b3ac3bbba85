#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_FABRIC_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_FABRIC_H_

// A simulated RoCEv2 fabric: hosts with RDMA devices, cabled to one switch, in
// this process and in virtual time. Devices implement transport/verbs/device/api.h, so
// what runs on a NIC runs here, deterministically and under a fault script.
//
// Modelled: serialisation, propagation and store-and-forward at packet level;
// the switch's finite buffers, tail drop and congestion marks; a device's
// round robin between its queue pairs, packet by packet; reliable connected
// queue pairs with go-back-N, acknowledgement timeouts, retry counts, RNR NAKs,
// bounded reads under way; completion queues with events; keys, bounds, rights
// and domains of memory; shared receive queues; asynchronous events.
//
// Strict: where a real device would let a mistake pass, or only sometimes
// punish it, this one always does, and adds a line to violations():
//   - a send queue whose slots are not free yet overflows (ENOMEM): requests
//     keep them until a later signaled completion was polled;
//   - a completion queue or shared receive queue overflows;
//   - memory is not registered, not long enough, not allowed or of another
//     domain, here or at the peer; is deregistered while requests use it;
//   - the source of a write changes before it completed;
//   - a message exceeds max_msg_sz, an inline one the inline limit;
//   - requests are posted in a state that does not take them;
//   - objects are destroyed before those that use them.
// Flushed requests complete even if they were not signaled, queues have exactly
// the depth asked for, and fields that verbs leave undefined hold junk.
//
// The model leaves out: priority flow control; slower senders after congestion
// notifications (they are counted only); several switches, lanes or priorities;
// buses, caches and address translation in the host; atomics, sends with bytes,
// memory windows, unreliable transports; when the bytes of a write become
// visible, other than before its completion and in packet order.
//
// Time: either a test steps it, with the functions below, from one thread. Or,
// with FabricOptions::automatic, calls on the devices do: Poll lets a few
// events happen, and Arm lets them happen until its queue has something or
// nothing is left, so several threads may sleep on the channels' descriptors
// without anybody stepping; sleepers may see an event without a completion.
//
// Thread-safe. Devices may outlive the Fabric.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "tests/transport/verbs_sim/nic/counters.h"
#include "tests/transport/verbs_sim/fabric/faults.h"
#include "tests/transport/verbs_sim/fabric/options.h"
#include "transport/verbs/device/api.h"

namespace refract::transport::sim {

class Simulation;

class Fabric {
 public:
  explicit Fabric(const FabricOptions& options = {});
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  // Returns its number, from 0. Hosts are added before time passes.
  int AddHost(const HostOptions& options = {});
  // The devices of a host. Lives as long as the Fabric.
  verbs::Library& library(int host);

  // The virtual time; starts at the Unix epoch.
  base::Clock& clock();
  absl::Time Now() const;

  // Executes the next event. False: there is none.
  bool Step();
  // Executes the events that are due by `time`, which becomes the present.
  void RunUntil(absl::Time time);
  void RunFor(absl::Duration duration) { RunUntil(Now() + duration); }
  // Executes events until `done` holds, which it asks after each. False: it
  // does not hold at `deadline`.
  bool RunUntil(absl::FunctionRef<bool()> done, absl::Time deadline);
  // Until no event is left. Endless when something retries for ever.
  void RunUntilIdle();

  // Fault script. `device` counts the host's devices from 0.
  //
  // Calls `action` when that time comes, from whichever call passes it.
  void At(absl::Time time, std::function<void()> action);
  // Returns a number for RemoveRule.
  int AddRule(PacketRule rule);
  void RemoveRule(int rule);
  // The cable of the device, with PORT_ERR or PORT_ACTIVE at its host.
  void SetLink(int host, int device, bool up);
  // The host is gone at once, as without power: its devices neither send nor
  // receive nor time out. Objects that it opened stay, without effect.
  void Kill(int host);
  // The process on the host is stopped, the devices are not: peers are answered
  // but posts do not go out, Poll finds nothing and no event wakes anybody.
  void Pause(int host);
  void Resume(int host);
  // DEVICE_FATAL, and nothing works on it any more.
  void BreakDevice(int host, int device);
  // Replaces an entry of the GID table, with GID_CHANGE. Queue pairs keep the
  // peer they are connected to.
  void SetGid(int host, int device, const verbs::GidEntry& entry);
  // Queue pairs that start from this entry of the GID table are refused with
  // `error`, an errno, as where no route or neighbour is found. 0: no longer.
  void RefuseAddress(int host, int device, int gid_index, int error);
  // The registration after `successes` more fails with `failure`, once.
  void FailRegistration(int host, int device, int successes,
                        absl::Status failure);

  // Every broken rule so far, in order, at most a thousand.
  std::vector<std::string> violations() const;
  PortCounters counters(int host, int device = 0) const;
  // Hash of all events, with times: equal seeds and equal calls give equal
  // hashes.
  uint64_t trace_hash() const;
  uint64_t executed_events() const;

 private:
  const std::shared_ptr<Simulation> simulation_;
  std::vector<std::unique_ptr<verbs::Library>> libraries_;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_FABRIC_H_
