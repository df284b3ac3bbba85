#ifndef REFRACT_TESTS_GPU_NODE_SCHEDULER_SIMULATION_H_
#define REFRACT_TESTS_GPU_NODE_SCHEDULER_SIMULATION_H_

// A scheduler on a fake device, driven through virtual time by one thread: the
// same arrivals always give the same schedule.

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "gpu_node/scheduler/scheduler.h"
#include "tests/gpu_node/scheduler/fake_device.h"

namespace refract::gpu_node {

struct SimulatedRequest {
  absl::Duration arrival;  // since the start
  size_t model = 0;
  int64_t rows = 1;
  absl::Duration time_left = absl::InfiniteDuration();
  std::string merge_key = "k";
  bool abandoned = false;
};

struct Outcome {
  int answers = 0;
  absl::Status status = absl::UnknownError("unanswered");
  absl::Duration latency;
};

class Simulation {
 public:
  Simulation(FakeDevice::Options device, std::vector<ScheduledModel> models,
             const SchedulerOptions& options = {.max_queue = 1 << 20})
      : device_(clock_, std::move(device)),
        scheduler_(options, std::move(models), &device_, clock_) {
    scheduler_.Start();
    device_.RunDue();
  }
  ~Simulation() { Drain(); }

  FakeDevice& device() { return device_; }
  Scheduler& scheduler() { return scheduler_; }
  absl::Duration now() { return clock_.Now() - start_; }
  const std::vector<Outcome>& outcomes() const { return outcomes_; }

  // Index of its outcome.
  size_t Submit(const SimulatedRequest& request) {
    outcomes_.emplace_back();
    abandoned_.push_back(request.abandoned);
    const size_t index = outcomes_.size() - 1;
    const absl::Time deadline = request.time_left == absl::InfiniteDuration()
                                    ? absl::InfiniteFuture()
                                    : clock_.Now() + request.time_left;
    scheduler_.Submit(
        request.model,
        std::make_unique<Call>(this, index, request.model, deadline),
        request.rows, request.merge_key);
    return index;
  }

  // The client of the request with this index gives it up, and says so.
  void GiveUp(size_t index, size_t model = 0) {
    abandoned_[index] = true;
    scheduler_.OnAbandoned(model);
  }

  // Time that nobody looks at.
  void Pass(absl::Duration time) { clock_.Advance(time); }

  // Is called once, while the next result is handed to the transport.
  void OnNextReply(std::function<void()> callback) {
    on_next_reply_ = std::move(callback);
  }

  // Until `time` since the start.
  void RunUntil(absl::Duration time) {
    while (true) {
      const absl::Time next = std::min(
          {device_.next_event(), scheduler_.next_timer(), start_ + time});
      if (next > clock_.Now()) clock_.Advance(next - clock_.Now());
      device_.RunDue();
      if (scheduler_.next_timer() <= clock_.Now()) scheduler_.OnTimer();
      if (clock_.Now() >= start_ + time &&
          device_.next_event() > clock_.Now()) {
        return;
      }
    }
  }
  void Drain() {
    while (device_.next_event() < absl::InfiniteFuture() ||
           (scheduler_.pending() > 0 &&
            scheduler_.next_timer() < absl::InfiniteFuture())) {
      RunUntil(std::min(device_.next_event(), scheduler_.next_timer()) -
               start_);
    }
  }
  // In order of arrival.
  void Run(const std::vector<SimulatedRequest>& requests) {
    for (const SimulatedRequest& request : requests) {
      RunUntil(request.arrival);
      Submit(request);
    }
    Drain();
  }

 private:
  class Call : public transport::ServerCall {
   public:
    Call(Simulation* simulation, size_t index, size_t model,
         absl::Time deadline)
        : simulation_(simulation),
          index_(index),
          model_(model),
          arrival_(simulation->clock_.Now()),
          deadline_(deadline) {}

    size_t model() const override { return model_; }
    absl::Time deadline() const override { return deadline_; }
    absl::Span<const base::TensorView> tensors() const override { return {}; }
    bool settled() const override { return true; }
    bool abandoned() const override { return simulation_->abandoned_[index_]; }
    absl::StatusOr<transport::OutgoingMessage> AllocateReply(
        absl::Span<const base::TensorSpec>) override {
      return absl::UnimplementedError("a fake has no memory");
    }
    void Reply(transport::OutgoingMessage) override {
      const auto callback = std::exchange(simulation_->on_next_reply_, nullptr);
      if (callback != nullptr) callback();
      Record(absl::OkStatus());
    }
    void Fail(const absl::Status& status) override { Record(status); }

   private:
    void Record(const absl::Status& status) {
      Outcome& outcome = simulation_->outcomes_[index_];
      ++outcome.answers;
      outcome.status = status;
      outcome.latency = simulation_->clock_.Now() - arrival_;
    }
    Simulation* const simulation_;
    const size_t index_;
    const size_t model_;
    const absl::Time arrival_;
    const absl::Time deadline_;
  };

  const absl::Time start_ = absl::FromUnixSeconds(1000);
  base::ManualClock clock_{start_};
  std::vector<Outcome> outcomes_;
  std::vector<bool> abandoned_;
  std::function<void()> on_next_reply_;
  FakeDevice device_;
  Scheduler scheduler_;
};

// Exponential gaps, `per_second` on average, for `duration`.
inline std::vector<absl::Duration> PoissonArrivals(std::mt19937& random,
                                                   double per_second,
                                                   absl::Duration duration) {
  std::exponential_distribution<double> gap(per_second);
  std::vector<absl::Duration> arrivals;
  for (double at = gap(random); at < absl::ToDoubleSeconds(duration);
       at += gap(random)) {
    arrivals.push_back(absl::Seconds(at));
  }
  return arrivals;
}

// The smallest value with at least `fraction` of all at or under it.
inline absl::Duration PercentileOf(std::vector<absl::Duration> values,
                                   double fraction) {
  if (values.empty()) return absl::ZeroDuration();
  std::sort(values.begin(), values.end());
  const auto index = static_cast<size_t>(
      std::ceil(fraction * static_cast<double>(values.size())));
  return values[std::max<size_t>(index, 1) - 1];
}

}  // namespace refract::gpu_node

#endif  // REFRACT_TESTS_GPU_NODE_SCHEDULER_SIMULATION_H_
