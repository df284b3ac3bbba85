#ifndef REFRACT_TESTS_GPU_NODE_SCHEDULER_FAKE_DEVICE_H_
#define REFRACT_TESTS_GPU_NODE_SCHEDULER_FAKE_DEVICE_H_

// A device in virtual time: the test sets the duration of every step, events
// happen only when the test moves time on, and calls that a scheduler must not
// make are recorded.

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gpu_node/device/device.h"

namespace refract::gpu_node {

class FakeDevice : public Device {
 public:
  struct Options {
    DeviceTraits traits = {.name = "fake"};
    // Null: takes no time.
    std::function<absl::Duration(const Batch&)> upload, execute, download;
    // Bytes of each model's weights, at traits.load_bytes_per_s.
    std::vector<size_t> weight_bytes;
    // Fills in the answers to the members' calls.
    std::function<void(Batch&)> on_execute;
  };
  struct Execution {
    int instance = 0;
    size_t model = 0;
    int64_t rows = 0;
    size_t members = 0;
    absl::Time begin, end;
    int64_t first_row = 0;
  };

  FakeDevice(base::ManualClock& clock, Options options)
      : clock_(clock),
        options_(std::move(options)),
        instances_(options_.traits.instances) {}

  const DeviceTraits& traits() const override { return options_.traits; }

  // The next `count` executions from now on, or starts, fail.
  void FailExecutions(int count) { failing_executions_ = count; }
  void FailStarts(int count) { failing_starts_ = count; }
  void FailLoads(int count) { failing_loads_ = count; }
  // All of this model, until another is named.
  void FailLoadsOf(std::optional<size_t> model) { unloadable_ = model; }

  absl::Time next_event() const {
    return events_.empty() ? absl::InfiniteFuture() : events_.begin()->first;
  }
  // Runs the steps that are due now.
  void RunDue() {
    while (!events_.empty() && events_.begin()->first <= clock_.Now()) {
      const auto event = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      event();
    }
  }

  const std::vector<Execution>& executions() const { return executions_; }
  const std::set<size_t>& resident() const { return resident_; }
  const std::vector<size_t>& loads() const { return loads_; }
  // The scheduler's mistakes.
  const std::vector<std::string>& violations() const { return violations_; }

  void Start(int instance, Done done) override {
    if (instances_[instance].up) Violation("started while up");
    const bool fails = failing_starts_ > 0 && failing_starts_-- > 0;
    instances_[instance] = {};
    instances_[instance].up = !fails;
    After(absl::ZeroDuration(), [done, fails] {
      done(fails ? absl::InternalError("it does not start") : absl::OkStatus());
    });
  }

  void Upload(int instance, int slot, Batch* batch, Done done) override {
    Instance& to = instances_[instance];
    if (!to.up) Violation("upload to an instance that is down");
    if (slot < 0 || slot >= options_.traits.slots) Violation("no such slot");
    if (!to.slots.insert(slot).second) Violation("upload to a slot in use");
    if (batch->members.size() == 1 && batch->rows != batch->members[0].rows &&
        !options_.traits.steps) {
      Violation("a step for a device that takes none");
    }
    if (!options_.weight_bytes.empty() && !resident_.contains(batch->model) &&
        options_.traits.weight_memory > 0) {
      Violation("upload for a model whose weights are out");
    }
    After(TimeOf(options_.upload, *batch), [this, instance, done] {
      done(instances_[instance].up ? absl::OkStatus()
                                   : absl::AbortedError("lost"));
    });
  }

  void Execute(int instance, int slot, Batch* batch, Done done) override {
    Instance& on = instances_[instance];
    if (!on.up) Violation("execution on an instance that is down");
    if (on.executing) Violation("two executions on one instance");
    if (!on.slots.contains(slot)) Violation("execution without upload");
    on.executing = true;
    const absl::Time begin = clock_.Now();
    After(TimeOf(options_.execute, *batch), [=, this] {
      Instance& was = instances_[instance];
      was.executing = false;
      if (failing_executions_ > 0) {
        --failing_executions_;
        was.up = false;
        was.slots.erase(slot);
        return done(absl::InternalError("the device fell off the bus"));
      }
      executions_.push_back({instance, batch->model, batch->rows,
                             batch->members.size(), begin, clock_.Now(),
                             batch->first_row});
      if (options_.on_execute && batch->last_step())
        options_.on_execute(*batch);
      done(absl::OkStatus());
    });
  }

  void Download(int instance, int slot, Batch* batch, Done done) override {
    After(TimeOf(options_.download, *batch), [this, instance, slot, done] {
      instances_[instance].slots.erase(slot);
      done(instances_[instance].up ? absl::OkStatus()
                                   : absl::AbortedError("lost"));
    });
  }

  void LoadWeights(size_t model, absl::Span<const size_t> evicted,
                   Done done) override {
    if (loading_) Violation("two loads at once");
    loading_ = true;
    for (const size_t out : evicted) {
      if (resident_.erase(out) == 0) Violation("eviction of what is not in");
    }
    size_t bytes = options_.weight_bytes[model];
    for (const size_t in : resident_) bytes += options_.weight_bytes[in];
    if (bytes > options_.traits.weight_memory) Violation("out of memory");
    const bool fails =
        model == unloadable_ || (failing_loads_ > 0 && failing_loads_-- > 0);
    loads_.push_back(model);
    After(absl::Seconds(static_cast<double>(options_.weight_bytes[model]) /
                        options_.traits.load_bytes_per_s),
          [this, model, fails, done] {
            loading_ = false;
            if (fails) return done(absl::ResourceExhaustedError("no memory"));
            resident_.insert(model);
            done(absl::OkStatus());
          });
  }

 private:
  struct Instance {
    bool up = false;
    bool executing = false;
    std::set<int> slots;
  };

  static absl::Duration TimeOf(
      const std::function<absl::Duration(const Batch&)>& cost,
      const Batch& batch) {
    return cost ? cost(batch) : absl::ZeroDuration();
  }
  void After(absl::Duration time, std::function<void()> event) {
    events_.emplace(clock_.Now() + time, std::move(event));
  }
  void Violation(absl::string_view what) {
    violations_.push_back(
        absl::StrCat(absl::FormatTime(clock_.Now()), ": ", what));
  }

  base::ManualClock& clock_;
  const Options options_;
  std::vector<Instance> instances_;
  std::multimap<absl::Time, std::function<void()>> events_;
  std::vector<Execution> executions_;
  std::set<size_t> resident_;
  std::vector<size_t> loads_;
  std::vector<std::string> violations_;
  bool loading_ = false;
  int failing_executions_ = 0;
  int failing_starts_ = 0;
  int failing_loads_ = 0;
  std::optional<size_t> unloadable_;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_TESTS_GPU_NODE_SCHEDULER_FAKE_DEVICE_H_
