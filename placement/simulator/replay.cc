#include "placement/simulator/replay.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

namespace refract::placement {
namespace {

constexpr size_t kNoStay = std::numeric_limits<size_t>::max();

class Replayer {
 public:
  Replayer(const Cluster& cluster, const InstanceList& list,
           const FragmentMeter& meter, const std::vector<AppTarget>& targets,
           const ReplayOptions& options)
      : cluster_(cluster),
        list_(list),
        meter_(meter),
        options_(options),
        state_(cluster, static_cast<int>(list.apps.size())),
        placer_(state_, &meter, targets, options.placer),
        cpu_total_(static_cast<double>(cluster.TotalCpuMilli())),
        gpu_total_(static_cast<double>(cluster.TotalGpus() * kWholeGpu)) {}

  ReplayResult Run() {
    std::vector<int> batch;
    std::vector<int> arrivals;
    for (size_t i = 0; i < list_.instances.size(); ++i) {
      (list_.instances[i].created <= kBeforeStart ? batch : arrivals)
          .push_back(static_cast<int>(i));
    }
    std::stable_sort(arrivals.begin(), arrivals.end(), [&](int a, int b) {
      return list_.instances[a].created < list_.instances[b].created;
    });
    // Events for the progress: an arrival and a departure of each instance.
    total_ = list_.instances.size() * 2;
    for (const int instance : BatchOrder(list_, batch)) Arrive(instance, 0);
    size_t next = 0;
    while (next < arrivals.size() || !leaving_.empty()) {
      // The earlier of the next arrival and the next departure; at one time
      // departures come first, because they make room.
      const double arrival = next < arrivals.size()
                                 ? list_.instances[arrivals[next]].created
                                 : kNeverDeleted;
      const double departure =
          leaving_.empty() ? kNeverDeleted : leaving_.top().first;
      const double now = std::min(arrival, departure);
      // Samples show the state before the events of `now`.
      SampleUntil(now);
      if (departure <= now) {
        // Waiting instances whose lifetime ends, then all stays that end, then
        // waiting instances, then instances that begin.
        std::erase_if(waiting_, [&](int instance) {
          const bool ends = list_.instances[instance].deleted <= now;
          if (ends) GiveUp(instance);
          return ends;
        });
        bool any_left = false;
        for (; !leaving_.empty() && leaving_.top().first <= now;
             leaving_.pop()) {
          if (leaving_.top().second == kNoStay) continue;
          Leave(leaving_.top().second);
          any_left = true;
        }
        last_time_ = std::max(last_time_, now);
        if (any_left) RetryWaiting(now);
      } else {
        Arrive(arrivals[next++], now);
      }
    }
    SampleUntil(last_time_ + options_.sample_every_s);
    for (const int instance : waiting_) GiveUp(instance);
    return std::move(result_);
  }

 private:
  void CountEvent() {
    ++result_.events;
    if (options_.progress && result_.events % (total_ / 100 + 1) == 0) {
      options_.progress(static_cast<double>(result_.events) /
                        static_cast<double>(total_));
    }
  }

  bool TryPlace(int index, double now) {
    const Instance& instance = list_.instances[index];
    const double begin = options_.now_us ? options_.now_us() : 0;
    const Decision decision = placer_.Decide(instance);
    if (options_.now_us) {
      result_.decisions_us.push_back(options_.now_us() - begin);
    }
    if (decision.node < 0) return false;
    state_.Add(instance, decision.node, decision.choice.devices);
    Count(instance, 1);
    result_.stays.push_back({.instance = index,
                             .node = decision.node,
                             .devices = decision.choice.devices,
                             .from = now,
                             .to = instance.deleted});
    if (instance.deleted < kNeverDeleted) {
      // Stays are only appended, so positions stay valid.
      leaving_.push({instance.deleted, result_.stays.size() - 1});
    }
    return true;
  }

  void Arrive(int index, double now) {
    CountEvent();
    last_time_ = std::max(last_time_, now);
    if (TryPlace(index, now)) return;
    waiting_.push_back(index);
    const double deleted = list_.instances[index].deleted;
    if (deleted < kNeverDeleted) leaving_.push({deleted, kNoStay});
  }

  void Leave(size_t stay_index) {
    CountEvent();
    const Stay& stay = result_.stays[stay_index];
    const Instance& instance = list_.instances[stay.instance];
    state_.Remove(instance, stay.node, stay.devices);
    Count(instance, -1);
  }

  void RetryWaiting(double now) {
    // One round through the queue, oldest first. Instances that still find no
    // node go to its end, which keeps their order.
    for (size_t i = waiting_.size(); i > 0; --i) {
      const int index = waiting_.front();
      waiting_.pop_front();
      if (TryPlace(index, now)) {
        result_.waits_s.push_back(
            now - std::max(0.0, list_.instances[index].created));
      } else {
        waiting_.push_back(index);
      }
    }
  }

  void GiveUp(int index) {
    ++result_.never_placed;
    ++result_.obstacles[static_cast<int>(
        placer_.MainObstacle(list_.instances[index]))];
  }

  void Count(const Instance& instance, int by) {
    live_[static_cast<int>(instance.role)] += by;
    cpu_milli_ += by * instance.demand.cpu_milli;
    gpu_milli_ += by * instance.demand.TotalGpuMilli();
    result_.most_instances =
        std::max(result_.most_instances, live_[0] + live_[1] + live_[2]);
    result_.most_cpu_allocated =
        std::max(result_.most_cpu_allocated, CpuAllocated());
    result_.most_gpu_allocated =
        std::max(result_.most_gpu_allocated, GpuAllocated());
  }

  // Parts of the cluster's cores and GPUs.
  double CpuAllocated() const {
    return cpu_total_ > 0 ? static_cast<double>(cpu_milli_) / cpu_total_ : 0;
  }
  double GpuAllocated() const {
    return gpu_total_ > 0 ? static_cast<double>(gpu_milli_) / gpu_total_ : 0;
  }

  void SampleUntil(double time) {
    if (options_.sample_every_s <= 0 || time == kNeverDeleted) return;
    while (next_sample_ < time) {
      double fragment = 0;
      for (size_t i = 0; i < cluster_.nodes.size(); ++i) {
        fragment +=
            meter_.Measure(cluster_.nodes[i], state_.free(static_cast<int>(i)))
                .gpu_milli;
      }
      result_.samples.push_back(
          {.time = next_sample_,
           .cns = live_[static_cast<int>(Role::kCn)],
           .hns = live_[static_cast<int>(Role::kHn)],
           .wholes = live_[static_cast<int>(Role::kWhole)],
           .waiting = static_cast<int>(waiting_.size()),
           .cpu_allocated = CpuAllocated(),
           .gpu_allocated = GpuAllocated(),
           .gpu_fragment = gpu_total_ > 0 ? fragment / gpu_total_ : 0});
      next_sample_ += options_.sample_every_s;
    }
  }

  const Cluster& cluster_;
  const InstanceList& list_;
  const FragmentMeter& meter_;
  const ReplayOptions& options_;
  State state_;
  Placer placer_;
  const double cpu_total_;
  const double gpu_total_;
  ReplayResult result_;
  std::deque<int> waiting_;
  // Time and stay; kNoStay: an instance that waited at its creation gives up if
  // it still waits.
  using Leaving = std::pair<double, size_t>;
  std::priority_queue<Leaving, std::vector<Leaving>, std::greater<>> leaving_;
  size_t total_ = 0;
  std::array<int, 3> live_{};
  int64_t cpu_milli_ = 0;
  int64_t gpu_milli_ = 0;
  double next_sample_ = 0;
  double last_time_ = 0;
};

}  // namespace

std::vector<AppTarget> TargetsOf(const InstanceList& list) {
  std::vector<AppTarget> targets(list.apps.size());
  // Time, change, app, role: departures first at equal times.
  std::vector<std::tuple<double, int, int, Role>> changes;
  for (const Instance& instance : list.instances) {
    if (instance.app < 0) continue;
    AppTarget::Part& part =
        targets[instance.app].by_role[static_cast<int>(instance.role)];
    // The first instance of a role stands for all of them.
    if (part.demand == Demand()) part.demand = instance.demand;
    changes.push_back({instance.created, 1, instance.app, instance.role});
    if (instance.deleted < kNeverDeleted) {
      changes.push_back({instance.deleted, -1, instance.app, instance.role});
    }
  }
  std::sort(changes.begin(), changes.end());
  std::vector<std::array<int, 3>> live(list.apps.size());
  for (const auto& [time, change, app, role] : changes) {
    // A sweep over arrivals and departures; its maximum is the most at once.
    const int now = live[app][static_cast<int>(role)] += change;
    int& most = targets[app].by_role[static_cast<int>(role)].count;
    most = std::max(most, now);
  }
  return targets;
}

std::vector<int> BatchOrder(const InstanceList& list, std::vector<int> batch) {
  std::vector<int> sizes(list.apps.size(), 0);
  for (const int i : batch) {
    if (list.instances[i].app >= 0) ++sizes[list.instances[i].app];
  }
  const auto key = [&](int i) {
    const Instance& instance = list.instances[i];
    const Demand& demand = instance.demand;
    return std::make_tuple(instance.app < 0 ? 0 : -sizes[instance.app],
                           instance.app, instance.role != Role::kHn,
                           -demand.TotalGpuMilli(), -demand.nic_percent,
                           -demand.cpu_milli, -demand.memory_mib, i);
  };
  std::sort(batch.begin(), batch.end(),
            [&](int a, int b) { return key(a) < key(b); });
  return batch;
}

ReplayResult Replay(const Cluster& cluster, const InstanceList& list,
                    const FragmentMeter& meter,
                    const std::vector<AppTarget>& targets,
                    const ReplayOptions& options) {
  return Replayer(cluster, list, meter, targets, options).Run();
}

}  // namespace refract::placement
