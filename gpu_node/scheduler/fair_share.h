#ifndef REFRACT_GPU_NODE_SCHEDULER_FAIR_SHARE_H_
#define REFRACT_GPU_NODE_SCHEDULER_FAIR_SHARE_H_

// Divides a device's time among models in proportion to their shares.

#include <cstddef>
#include <vector>

#include "absl/time/time.h"

namespace refract::gpu_node {

// Start-time fair queueing (Goyal, Vin, Cheng, "Start-time Fair Queuing",
// IEEE/ACM ToN 5(5), 1997) with device seconds in place of bytes. Each model
// has a virtual time that advances by what it has used, divided by its share;
// the one that is furthest behind goes first.
//
// A model that asks for less than its share falls behind, and may catch up
// later, but by no more than kCredit of device time: one that comes back after
// an hour does not take an hour.
//
// Not thread-safe.
class FairShare {
 public:
  static constexpr absl::Duration kCredit = absl::Milliseconds(100);

  // Above 0, one per model.
  explicit FairShare(std::vector<double> shares);

  double share(size_t model) const { return shares_[model]; }
  // It has work, and had none, neither waiting nor executing; or it is held
  // back for others' sake. It is behind by no more than kCredit from here on.
  void Activate(size_t model);
  // `model` executes while `other` is held back for others' sake: it is behind
  // `other` by no more than kCredit from here on, so that they take turns.
  void KeepNear(size_t model, size_t other);
  // Of two models that have work, is `a` to go first?
  bool Before(size_t a, size_t b) const;
  // Whether it is behind by kCredit or more.
  bool Owed(size_t model) const;
  // `model` begins something that will take `time`.
  void Begin(size_t model, absl::Duration time);
  // What it has begun took so much more than was said, or less (negative).
  void Correct(size_t model, absl::Duration difference);

 private:
  // The virtual time of one that is behind by kCredit.
  double Earliest(size_t model) const;

  std::vector<double> shares_;
  std::vector<double> virtual_s_;
  double system_s_ = 0;  // virtual time at which the last execution began
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_SCHEDULER_FAIR_SHARE_H_
