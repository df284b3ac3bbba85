#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_SIMULATION_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_SIMULATION_H_

// The inside of a Fabric: one lock, one time, one queue of events, one
// generator, and the devices. Everything in this folder but the Fabric itself
// and the objects of verbs/api.h is used with the lock held.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "tests/transport/verbs_sim/fabric/event_queue.h"
#include "tests/transport/verbs_sim/fabric/faults.h"
#include "tests/transport/verbs_sim/fabric/options.h"
#include "tests/transport/verbs_sim/fabric/packet.h"
#include "tests/transport/verbs_sim/fabric/random.h"
#include "tests/transport/verbs_sim/fabric/wire_model.h"

namespace refract::transport::sim {

class CompletionQueueState;
class Nic;

// The simulation's time for code that waits and times out. AwaitWithDeadline
// polls as base::ManualClock does: somebody else moves the time.
class VirtualClock final : public base::Clock {
 public:
  absl::Time Now() override {
    return absl::UnixEpoch() + ToDuration(picoseconds());
  }
  bool AwaitWithDeadline(absl::Mutex& mu, const absl::Condition& condition,
                         absl::Time deadline) override;

  Picoseconds picoseconds() const {
    return now_.load(std::memory_order_relaxed);
  }
  // Forward only.
  void Set(Picoseconds now) { now_.store(now, std::memory_order_relaxed); }

 private:
  std::atomic<Picoseconds> now_ = 0;
};

struct Host {
  std::string name;
  bool dead = false;
  bool paused = false;
  std::vector<Nic*> nics;
};

class Simulation {
 public:
  explicit Simulation(const FabricOptions& options);
  ~Simulation();

  absl::Mutex mu;
  const FabricOptions options;
  VirtualClock clock;
  Random random;
  PacketPool packets;
  FaultRules faults;
  std::vector<Host> hosts;
  std::vector<std::unique_ptr<Nic>> nics;

  Picoseconds now() const { return clock.picoseconds(); }
  void Schedule(Picoseconds at, EventKind kind, uint32_t nic,
                uint64_t argument) {
    events_.Push(at, kind, nic, argument);
  }
  // Lets `action` run at `at`, without the lock.
  void ScheduleScript(Picoseconds at, std::function<void()> action);

  // Executes the next event if it is due by `until`. False: there is none. The
  // lock is free while a script's action runs.
  bool Step(Picoseconds until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void MoveTo(Picoseconds time) {
    if (time > now()) clock.Set(time);
  }

  // Automatic mode: a few events, as many as the seed says.
  void RunSome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Automatic mode: until `done` or nothing is left. False: stopped before,
  // after so many events that somebody else may want the lock.
  bool RunUntil(const std::function<bool()>& done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Automatic mode, after an action that made events: whoever sleeps on an
  // armed queue is woken, because the next event may be his and only calls into
  // the devices make time pass. To him it is a spurious event.
  void WakeSleepers();
  void AddSleeper(CompletionQueueState& queue) { armed_.push_back(&queue); }
  void ForgetSleeper(CompletionQueueState& queue);

  void AddViolation(absl::string_view where, absl::string_view what);
  const std::vector<std::string>& violations() const { return violations_; }

  // Folds something that happened into the hash of the run.
  void Trace(uint64_t a, uint64_t b) {
    trace_ = Random::Mix(trace_ ^ Random::Mix(static_cast<uint64_t>(now()) ^
                                              Random::Mix(a ^ Random::Mix(b))));
  }
  uint64_t trace() const { return trace_; }
  uint64_t executed() const { return executed_; }

 private:
  void Execute(const Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void RunScript(size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  EventQueue events_;
  std::vector<std::function<void()>> scripts_;
  std::vector<CompletionQueueState*> armed_;
  std::vector<std::string> violations_;
  uint64_t trace_ = 0;
  uint64_t executed_ = 0;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_SIMULATION_H_
