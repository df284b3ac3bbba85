#include "placement/planner/simulation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <limits>
#include <memory>
#include <queue>
#include <utility>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/quantile.h"
#include "placement/cluster/random.h"
#include "scheduling/deadline_queue.h"
#include "scheduling/execution_times.h"

namespace refract::placement {
namespace {

// Share of requests before the counted ones; queues fill during them.
constexpr double kWarmUp = 0.2;
// The merge key of every request of the model: all may be merged.
constexpr char kMergeKey[] = "m";

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

enum class EventKind : uint8_t {
  kArrival,
  kPreDone,   // on a CN worker
  kLeavesCn,  // the payload, after those before it in the CN's NIC
  kAtHn,      // the payload has arrived
  kHnTimer,   // a batching window ends
  kExecuted,  // a batch
  kLeavesHn,  // the answer, after those before it in the HN's NIC
  kAtCn,      // the answer has arrived
  kPostDone,
};

struct Event {
  double time = 0;
  uint64_t order = 0;  // of creation: ties are decided by it
  EventKind kind = EventKind::kArrival;
  int index = 0;  // request, HN or batch

  friend bool operator>(const Event& a, const Event& b) {
    if (a.time != b.time) return a.time > b.time;
    return a.order > b.order;
  }
};

struct Request {
  double arrived = 0;
  RequestCost cost;
  int cn = 0;
  int hn = 0;
  double at = 0;  // when its last step ended
  double cn_factor = 1;
  double half_round_trip_s = 0;
  double sent = 0;  // to the HN
};

// One message at a time in each direction.
struct Nic {
  double out_free = 0;
  double in_free = 0;
  double out_busy = 0;
  double in_busy = 0;
};

struct CnState {
  int idle = 1;
  std::deque<int> finishing;  // before new requests, as in StartQueue
  // All requests have the same time limit, so the earliest deadline is the
  // first arrival.
  std::deque<int> starting;
  Nic nic;
};

struct HnState {
  int idle = 1;
  scheduling::DeadlineQueue<int> queue;
  scheduling::ArrivalRate arrivals;
  Nic nic;
};

// Where a CN and the HN of the same number are in the recording, in which they
// were together. It is replayed in stretches that begin anywhere in it (the
// block bootstrap for dependent data).
struct Replay {
  double stretch_begin = 0;
  double stretch_end = 0;
  double from = 0;  // in the recording
};

// An HN as a CN sees it (cpu_node/dispatch/node_policy.h).
struct Route {
  int in_flight = 0;
  double latency = 0;  // smoothed, weight 1/8; 0: not measured
};

struct Batch {
  std::vector<int> requests;
  double began = 0;
};

class Simulator {
 public:
  Simulator(const ModelCosts& costs, const SimulatedSystem& system,
            const SimulatedLoad& load)
      : costs_(costs),
        system_(system),
        load_(load),
        random_(load.seed),
        cns_(system.cns),
        hns_(system.hns),
        replays_(costs.recording == nullptr ? 0
                                            : std::max(system.cns, system.hns)),
        routes_(system.whole ? 0
                             : static_cast<size_t>(system.cns) *
                                   static_cast<size_t>(system.hns)) {
    for (CnState& cn : cns_) cn.idle = system.cn_workers;
    for (HnState& hn : hns_) hn.idle = system.hn_parallel;
    uncounted_ = static_cast<int>(load.requests * kWarmUp);
    requests_.resize(uncounted_ + load.requests);
    latencies_.reserve(load.requests);
    // The daemons' predictions are the medians of each bucket of rows.
    for (int bucket = 0; bucket < scheduling::kNumBuckets; ++bucket) {
      const int64_t rows = scheduling::RowsOfBucket(bucket);
      if (rows > kMostPrimedRows) break;
      times_.Prime(rows,
                   absl::Seconds(ExecutionTime(static_cast<double>(rows))));
    }
  }

  SimulationResult Run() {
    // Every arrival schedules the next one, so the queue of events stays as
    // short as the work under way. The run ends when the last answer has come.
    Schedule(Gap(), EventKind::kArrival, 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      Handle(event);
    }
    return Result();
  }

 private:
  static constexpr int64_t kMostPrimedRows = 1 << 20;

  void Schedule(double time, EventKind kind, int index) {
    events_.push({time, next_order_++, kind, index});
  }
  // Poisson arrivals: exponential gaps. 1 − Unit() is in (0, 1].
  double Gap() { return -std::log(1 - random_.Unit()) / load_.requests_per_s; }
  bool Counted(int request) const { return request >= uncounted_; }

  // The moment in the recording that node `index` of each role is at.
  double Moment(int index) {
    Replay& replay = replays_[index];
    if (now_ >= replay.stretch_end) {
      // Stretches must be long beside a slow phase, and many must be different.
      constexpr double kStretches = 10;
      const double length = costs_.recording->length();
      replay = {now_, now_ + length / kStretches, random_.Unit() * length};
    }
    return replay.from + now_ - replay.stretch_begin;
  }
  // A recording says how fast the machine is at this moment. Without a
  // recording, times vary by drawn factors.
  double CnTime(const Request& request, double usual_s) {
    if (costs_.recording == nullptr) return usual_s * request.cn_factor;
    return costs_.recording->cn.TimeFor(Moment(request.cn), usual_s);
  }
  double HnTime(int hn_index, double usual_s) {
    if (costs_.recording == nullptr) return usual_s * costs_.hn.Draw(random_);
    return costs_.recording->hn.TimeFor(Moment(hn_index), usual_s);
  }
  double RoundTrip(int cn_index) {
    if (costs_.recording != nullptr) {
      return costs_.recording->WayAt(Moment(cn_index));
    }
    return costs_.round_trip_s * costs_.round_trip.Draw(random_);
  }

  // Without variation. More rows than an execution takes are executed in steps.
  double ExecutionTime(double rows) const {
    const auto most = static_cast<double>(system_.batching.max_rows);
    const double full = rows > most ? std::floor(rows / most) : 0;
    const double rest = rows - full * most;
    double time = full > 0 ? full * costs_.At(most).hn_s : 0;
    if (rest > 0) time += costs_.At(rest).hn_s;
    return time * system_.hn_slowdown;
  }

  void Handle(const Event& event) {
    switch (event.kind) {
      case EventKind::kArrival:
        return OnArrival(event.index);
      case EventKind::kPreDone:
        return OnPreDone(event.index);
      case EventKind::kLeavesCn:
        return OnLeavesCn(event.index);
      case EventKind::kAtHn:
        return OnAtHn(event.index);
      case EventKind::kHnTimer:
        return Assign(event.index);
      case EventKind::kExecuted:
        return OnExecuted(event.index);
      case EventKind::kLeavesHn:
        return OnLeavesHn(event.index);
      case EventKind::kAtCn:
        return OnAtCn(event.index);
      case EventKind::kPostDone:
        return OnPostDone(event.index);
    }
  }

  void OnArrival(int index) {
    Request& request = requests_[index];
    request.arrived = request.at = now_;
    if (index == 0) first_arrival_ = now_;
    const double rows = load_.rows[random_.Below(load_.rows.size())];
    request.cost = costs_.At(rows);
    // Clients choose a CN at random.
    request.cn = static_cast<int>(random_.Below(cns_.size()));
    // Both parts of a request on a CN run on the same rows and caches.
    request.cn_factor = costs_.cn.Draw(random_);
    cns_[request.cn].starting.push_back(index);
    if (index + 1 < static_cast<int>(requests_.size())) {
      Schedule(now_ + Gap(), EventKind::kArrival, index + 1);
    }
    StartWork(request.cn);
  }

  // Gives idle workers of a CN something to do.
  void StartWork(int cn_index) {
    CnState& cn = cns_[cn_index];
    while (cn.idle > 0 && (!cn.finishing.empty() || !cn.starting.empty())) {
      const bool finish = !cn.finishing.empty();
      std::deque<int>& queue = finish ? cn.finishing : cn.starting;
      const int index = queue.front();
      queue.pop_front();
      Request& request = requests_[index];
      const double time = CnTime(
          request, finish ? request.cost.cn_post_s : request.cost.cn_pre_s);
      if (Counted(index)) {
        result_.cn_wait_s += now_ - request.at;
        result_.cn_s += time;
      }
      cn_busy_ += time;
      --cn.idle;
      Schedule(now_ + time, finish ? EventKind::kPostDone : EventKind::kPreDone,
               index);
    }
  }

  Route& RouteOf(const Request& request) {
    return routes_[static_cast<size_t>(request.cn) * hns_.size() + request.hn];
  }
  // The rule of cpu_node/dispatch/node_policy.h: a node that has not been
  // measured is compared by requests in flight alone.
  static double LoadOf(const Route& route) {
    return (route.latency == 0 ? 1e-9 : route.latency) * (route.in_flight + 1);
  }

  // Two random candidates, the lower (latency × (in flight + 1)).
  void ChooseHn(Request& request) {
    request.hn = static_cast<int>(random_.Below(hns_.size()));
    if (hns_.size() > 1) {
      const Route& first = RouteOf(request);
      const int other = request.hn;
      request.hn = static_cast<int>(random_.Below(hns_.size() - 1));
      // Two different candidates: the second draw skips the first.
      if (request.hn >= other) ++request.hn;
      const Route& second = RouteOf(request);
      const bool unmeasured = first.latency == 0 || second.latency == 0;
      const bool first_is_better = unmeasured
                                       ? first.in_flight <= second.in_flight
                                       : LoadOf(first) <= LoadOf(second);
      if (first_is_better) request.hn = other;
    }
    ++RouteOf(request).in_flight;
  }

  // Queues a message of `seconds` in the sending NIC: the time when it begins.
  double Begin(Nic& from, double seconds) const {
    const double begin = std::max(now_, from.out_free);
    from.out_free = begin + seconds;
    from.out_busy += seconds;
    return begin;
  }
  // A message begins now. Cut-through: the receiver begins with the sender, or
  // when its NIC is free. The message has arrived when both are done, and half
  // a round trip later.
  double Arrival(const Request& request, double from_rate, Nic& to,
                 double to_rate, double bytes) const {
    to.in_free = std::max(now_, to.in_free) + bytes / to_rate;
    to.in_busy += bytes / to_rate;
    return std::max(now_ + bytes / from_rate, to.in_free) +
           request.half_round_trip_s;
  }
  void OnLeavesCn(int index) {
    const Request& request = requests_[index];
    Schedule(Arrival(request, system_.cn_nic_bytes_per_s, hns_[request.hn].nic,
                     system_.hn_nic_bytes_per_s, request.cost.up_bytes),
             EventKind::kAtHn, index);
  }
  void OnLeavesHn(int index) {
    const Request& request = requests_[index];
    Schedule(Arrival(request, system_.hn_nic_bytes_per_s, cns_[request.cn].nic,
                     system_.cn_nic_bytes_per_s, request.cost.down_bytes),
             EventKind::kAtCn, index);
  }

  void OnPreDone(int index) {
    Request& request = requests_[index];
    ++cns_[request.cn].idle;
    request.at = request.sent = now_;
    if (request.cost.hn_s == 0) {
      // No part of this request is on the HN.
      OnAtCn(index);
    } else if (system_.whole) {
      request.hn = request.cn;
      OnAtHn(index);
    } else {
      ChooseHn(request);
      request.half_round_trip_s = RoundTrip(request.cn) / 2;
      Schedule(Begin(cns_[request.cn].nic,
                     request.cost.up_bytes / system_.cn_nic_bytes_per_s),
               EventKind::kLeavesCn, index);
    }
    StartWork(request.cn);
  }

  void OnAtHn(int index) {
    Request& request = requests_[index];
    if (Counted(index)) result_.network_s += now_ - request.at;
    request.at = now_;
    HnState& hn = hns_[request.hn];
    const auto rows =
        std::max<int64_t>(1, std::llround(std::ceil(request.cost.rows)));
    hn.arrivals.Count(rows, At(now_));
    scheduling::QueuedRequest<int> queued;
    queued.rows = rows;
    queued.queued_at = At(now_);
    queued.payload = index;
    // Without batching, an empty merge key keeps requests apart. The deadline
    // is the objective, counted from the arrival at the CN.
    hn.queue.Push(0, At(request.arrived + load_.deadline_s), std::move(queued),
                  system_.batching.enabled ? kMergeKey : "");
    Assign(request.hn);
  }

  // Gives batches to idle instances of an HN, as Scheduler::AssignFrom() does.
  void Assign(int hn_index) {
    HnState& hn = hns_[hn_index];
    while (hn.idle > 0 && !hn.queue.empty()) {
      // Pointers into the queue, in the order of deadlines; DecideBatch()
      // answers with positions in this list.
      candidates_ = hn.queue.Candidates(std::move(candidates_));
      batch_candidates_.clear();
      for (const auto* candidate : candidates_) {
        batch_candidates_.push_back({.rows = candidate->rows,
                                     .deadline = candidate->key.deadline,
                                     .arrival = candidate->queued_at});
      }
      decision_ =
          scheduling::DecideBatch(batch_candidates_, system_.batching, times_,
                                  hn.arrivals, At(now_), std::move(decision_));
      if (decision_.wait_until > At(now_)) {
        const double until =
            absl::ToDoubleSeconds(decision_.wait_until - absl::UnixEpoch());
        // A nanosecond later: the time must have passed at the next decision.
        Schedule(std::max(until, now_) + 1e-9, EventKind::kHnTimer, hn_index);
        return;
      }
      Execute(hn_index);
    }
  }

  void Execute(int hn_index) {
    HnState& hn = hns_[hn_index];
    int slot = 0;
    if (free_batches_.empty()) {
      // Events carry the number of a batch; numbers of finished batches are
      // used again, so a long run needs as many as execute at once.
      slot = static_cast<int>(batches_.size());
      batches_.emplace_back();
    } else {
      slot = free_batches_.back();
      free_batches_.pop_back();
    }
    Batch& batch = batches_[slot];
    batch.requests.clear();
    batch.began = now_;
    double rows = 0;
    // Taking a request out invalidates no other candidate.
    for (const size_t member : decision_.members) {
      const auto taken = hn.queue.Take(*candidates_[member]);
      batch.requests.push_back(taken.payload);
      rows += requests_[taken.payload].cost.rows;
    }
    const double time = HnTime(hn_index, ExecutionTime(rows));
    for (const int index : batch.requests) {
      if (!Counted(index)) continue;
      result_.hn_wait_s += now_ - requests_[index].at;
      result_.hn_s += time;
    }
    hn_busy_ += time;
    ++executions_;
    executed_ += batch.requests.size();
    --hn.idle;
    Schedule(now_ + time, EventKind::kExecuted, slot);
  }

  void OnExecuted(int slot) {
    Batch& batch = batches_[slot];
    const int hn_index = requests_[batch.requests.front()].hn;
    HnState& hn = hns_[hn_index];
    ++hn.idle;
    for (const int index : batch.requests) {
      Request& request = requests_[index];
      request.at = now_;
      if (system_.whole) {
        OnAtCn(index);
      } else {
        Schedule(
            Begin(hn.nic, request.cost.down_bytes / system_.hn_nic_bytes_per_s),
            EventKind::kLeavesHn, index);
      }
    }
    free_batches_.push_back(slot);
    Assign(hn_index);
  }

  void OnAtCn(int index) {
    Request& request = requests_[index];
    if (!system_.whole && request.cost.hn_s > 0) {
      Route& route = RouteOf(request);
      --route.in_flight;
      const double latency = now_ - request.sent;
      route.latency = route.latency == 0
                          ? latency
                          : route.latency + (latency - route.latency) / 8;
    }
    if (Counted(index)) result_.network_s += now_ - request.at;
    request.at = now_;
    if (request.cost.cn_post_s == 0) return End(index);
    cns_[request.cn].finishing.push_back(index);
    StartWork(request.cn);
  }

  void OnPostDone(int index) {
    const int cn = requests_[index].cn;
    ++cns_[cn].idle;
    End(index);
    StartWork(cn);
  }

  void End(int index) {
    if (Counted(index)) latencies_.push_back(now_ - requests_[index].arrived);
    last_answer_ = now_;
  }

  SimulationResult Result() {
    SimulationResult result = result_;
    std::sort(latencies_.begin(), latencies_.end());
    const auto count = static_cast<double>(latencies_.size());
    for (const double latency : latencies_) result.mean_s += latency;
    for (double SimulationResult::*sum :
         {&SimulationResult::mean_s, &SimulationResult::cn_wait_s,
          &SimulationResult::cn_s, &SimulationResult::network_s,
          &SimulationResult::hn_wait_s, &SimulationResult::hn_s}) {
      result.*sum /= count;
    }
    result.p50_s = base::Quantile(latencies_, 0.5);
    result.p90_s = base::Quantile(latencies_, 0.9);
    result.p99_s = base::Quantile(latencies_, 0.99);
    const double length = last_answer_ - first_arrival_;
    const auto part = [&](double busy, double servers) {
      return length > 0 ? busy / (length * servers) : 0;
    };
    result.cn_busy =
        part(cn_busy_, static_cast<double>(system_.cns) * system_.cn_workers);
    result.hn_busy =
        part(hn_busy_, static_cast<double>(system_.hns) * system_.hn_parallel);
    double out = 0;
    double in = 0;
    for (const CnState& cn : cns_) {
      out += cn.nic.out_busy;
      in += cn.nic.in_busy;
    }
    result.cn_nic_busy = part(std::max(out, in), system_.cns);
    out = in = 0;
    for (const HnState& hn : hns_) {
      out += hn.nic.out_busy;
      in += hn.nic.in_busy;
    }
    result.hn_nic_busy = part(std::max(out, in), system_.hns);
    if (executions_ > 0) {
      result.batch_requests =
          static_cast<double>(executed_) / static_cast<double>(executions_);
    }
    result.answered_per_s =
        length > 0 ? static_cast<double>(requests_.size()) / length : 0;
    return result;
  }

  const ModelCosts& costs_;
  const SimulatedSystem& system_;
  const SimulatedLoad& load_;
  Random random_;
  scheduling::ExecutionTimes times_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t next_order_ = 0;
  double now_ = 0;
  std::vector<Request> requests_;
  int uncounted_ = 0;
  std::vector<CnState> cns_;
  std::vector<HnState> hns_;
  std::vector<Replay> replays_;  // without a recording empty
  std::vector<Route> routes_;    // by CN, then HN
  std::vector<Batch> batches_;
  std::vector<int> free_batches_;
  // Assign() uses these again and again.
  std::vector<const scheduling::QueuedRequest<int>*> candidates_;
  std::vector<scheduling::BatchCandidate> batch_candidates_;
  scheduling::BatchDecision decision_;
  // Sums; of counted requests in `result_`.
  SimulationResult result_;
  std::vector<double> latencies_;
  double cn_busy_ = 0;
  double hn_busy_ = 0;
  int64_t executions_ = 0;
  size_t executed_ = 0;
  double first_arrival_ = 0;
  double last_answer_ = 0;
};

}  // namespace

SimulationResult Simulate(const ModelCosts& costs,
                          const SimulatedSystem& system,
                          const SimulatedLoad& load) {
  return Simulator(costs, system, load).Run();
}

double IdleP99(const ModelCosts& costs, const SimulatedSystem& system,
               const SimulatedLoad& load) {
  // So rare that requests almost never overlap; without a batching window.
  SimulatedSystem alone = system;
  alone.batching.window = absl::ZeroDuration();
  SimulatedLoad rare = load;
  rare.requests_per_s = 1e-3 / std::max(load.deadline_s, 1e-6);
  return Simulate(costs, alone, rare).p99_s;
}

}  // namespace refract::placement
