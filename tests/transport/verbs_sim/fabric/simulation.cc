#include "tests/transport/verbs_sim/fabric/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "tests/transport/verbs_sim/nic/completion_queue.h"
#include "tests/transport/verbs_sim/nic/nic.h"
#include "tests/transport/verbs_sim/fabric/switch.h"

namespace refract::transport::sim {
namespace {

// One rule broken in a loop must not fill the memory.
constexpr size_t kMaxViolations = 1000;
// Automatic mode: events per Poll, below; and events until the lock is given
// to others, which an endless exchange such as RNR retries would otherwise
// keep for ever.
constexpr uint64_t kEventsPerPoll = 32;
constexpr int kEventsPerWait = 10'000;

}  // namespace

bool VirtualClock::AwaitWithDeadline(absl::Mutex& mu,
                                     const absl::Condition& condition,
                                     absl::Time deadline) {
  while (!mu.AwaitWithTimeout(condition, absl::Milliseconds(1))) {
    if (Now() >= deadline) return condition.Eval();
  }
  return true;
}

Simulation::Simulation(const FabricOptions& given)
    : options(given),
      random(given.seed),
      events_(given.shuffle_simultaneous, given.seed) {}

Simulation::~Simulation() = default;

void Simulation::ScheduleScript(Picoseconds at, std::function<void()> action) {
  scripts_.push_back(std::move(action));
  Schedule(std::max(at, now()), EventKind::kScript, 0, scripts_.size() - 1);
}

bool Simulation::Step(Picoseconds until) {
  while (!events_.empty() && events_.top().at <= until) {
    const Event event = events_.top();
    events_.Pop();
    // A timer that was put off or stopped is no event: time stands still.
    if (event.kind == EventKind::kAckTimer &&
        !nics[event.nic]->AckTimerIsDue(static_cast<uint32_t>(event.argument),
                                        event.at)) {
      continue;
    }
    MoveTo(event.at);
    ++executed_;
    Execute(event);
    return true;
  }
  return false;
}

void Simulation::Execute(const Event& event) {
  const auto queue_pair = static_cast<uint32_t>(event.argument);
  switch (event.kind) {
    case EventKind::kTransmitterFree:
      nics[event.nic]->OnTransmitterFree();
      break;
    case EventKind::kAtSwitch:
      ForwardPacket(*this, reinterpret_cast<Packet*>(event.argument));
      break;
    case EventKind::kDelivered:
      DeliverPacket(*this, reinterpret_cast<Packet*>(event.argument));
      break;
    case EventKind::kDoorbell:
      nics[event.nic]->OnDoorbell(event.argument);
      break;
    case EventKind::kReadReady:
      nics[event.nic]->OnReadReady(queue_pair);
      break;
    case EventKind::kAckTimer:
      nics[event.nic]->OnAckTimer(queue_pair);
      break;
    case EventKind::kRnrTimer:
      nics[event.nic]->OnRnrTimer(queue_pair);
      break;
    case EventKind::kCompletion:
      nics[event.nic]->OnCompletionVisible(queue_pair);
      break;
    case EventKind::kScript:
      RunScript(event.argument);
      break;
  }
}

void Simulation::RunScript(size_t index) {
  const std::function<void()> action = std::exchange(scripts_[index], nullptr);
  mu.Unlock();
  action();
  mu.Lock();
}

void Simulation::RunSome() {
  const uint64_t count = random.Below(kEventsPerPoll);
  for (uint64_t i = 0; i < count; ++i) {
    if (!Step(INT64_MAX)) return;
  }
}

bool Simulation::RunUntil(const std::function<bool()>& done) {
  for (int i = 0; i < kEventsPerWait; ++i) {
    if (done() || !Step(INT64_MAX)) return true;
  }
  return done();
}

void Simulation::WakeSleepers() {
  if (!options.automatic || events_.empty()) return;
  for (CompletionQueueState* queue : std::exchange(armed_, {})) {
    queue->Unlisted();
    queue->FireSpurious();
  }
}

void Simulation::ForgetSleeper(CompletionQueueState& queue) {
  armed_.erase(std::remove(armed_.begin(), armed_.end(), &queue), armed_.end());
}

void Simulation::AddViolation(absl::string_view where, absl::string_view what) {
  Trace(0x76696f6c, violations_.size());
  if (violations_.size() >= kMaxViolations) return;
  violations_.push_back(absl::StrFormat(
      "%.3f us %s: %s", static_cast<double>(now()) / 1e6, where, what));
}

}  // namespace refract::transport::sim
