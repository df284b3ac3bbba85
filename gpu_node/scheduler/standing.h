#ifndef REFRACT_GPU_NODE_SCHEDULER_STANDING_H_
#define REFRACT_GPU_NODE_SCHEDULER_STANDING_H_

// Which models ask for less than their share of a device, in time that passes
// rather than beside what others get: one that is held back for others' sake
// gets less than its share, but asks for more.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace refract::gpu_node {

// In this order models go first, and are others kept short for their sake.
enum class Standing : uint8_t {
  // Asks for less than its share among all that ask.
  kModest,
  // For more than that, but for less than it could have, as others leave some
  // of theirs.
  kWithin,
  kOver,
};

// What a model wants, now.
struct Demand {
  bool asks = false;     // it has had a request lately
  double instances = 0;  // that its requests occupy on average
};

// How many of `instances` each model could have if it alone asked for all of
// them, in the memory of `rates`, whose contents are lost. By shares among
// those that ask, whatever they ask for:
std::vector<double> NominalRates(absl::Span<const double> shares,
                                 absl::Span<const Demand> demands,
                                 double instances,
                                 std::vector<double> rates = {});
// and max-min fair: what one leaves of its share is divided among the others.
// (Bertsekas, Gallager, "Data Networks", 6.5.2.)
std::vector<double> MaxMinRates(absl::Span<const double> shares,
                                absl::Span<const Demand> demands,
                                double instances,
                                std::vector<double> rates = {});

// Not thread-safe.
//
// Per model and rate an account (a token bucket): it fills at the rate, and is
// emptied by what the model executes. From half full until it is empty the
// model is below that rate. It holds so much that a model which comes back with
// a burst keeps others from the device for kBurst at most; and a burst that
// takes no more than the model's part of kBurst is executed as if the model
// were alone.
//
// Once requests of a model have waited without a break for kPatience, and it
// is not below a rate, that account fills no more until there are none: it asks
// for more than it gets, and why it does not get it (it is held back for
// others' sake, or by its own limit of instances) is no merit.
class Standings {
 public:
  static constexpr absl::Duration kBurst = absl::Seconds(1);
  // What an account holds at least: many executions.
  static constexpr absl::Duration kLeastHeld = absl::Milliseconds(100);
  // Longer than most executions that a model waits for which is not yet known
  // to be below its share; short enough for one that is held back not to be
  // taken for such a model.
  static constexpr absl::Duration kPatience = absl::Milliseconds(25);

  // Above 0, one per model.
  explicit Standings(std::vector<double> shares);

  // One per model; what is up of the device.
  void SetDemands(absl::Span<const Demand> demands, double instances);
  // Time has passed since the last call, for models as SetWaiting() said then.
  void Advance(absl::Time now);
  // It began something that takes `time` of an instance, or was refused that
  // for want of room; or what it began took less (negative).
  void Use(size_t model, absl::Duration time);
  // Whether requests of it wait now, which its own limit of instances keeps
  // waiting.
  void SetWaiting(size_t model, bool waiting, bool own_limit);

  Standing Of(size_t model) const;

 private:
  struct Account {
    double rate = 0;    // instances
    double held_s = 0;  // instance seconds
    double most_s = 0;
    bool below = false;
    void Add(double s);
  };
  struct Model {
    Account nominal, max_min;
    absl::Time waiting_since = absl::InfiniteFuture();
    bool own_limit = false;
  };
  std::vector<double> shares_;
  std::vector<Model> models_;
  // Memory of SetDemands().
  std::vector<double> nominal_rates_, max_min_rates_;
  absl::Time last_ = absl::InfiniteFuture();
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_SCHEDULER_STANDING_H_
