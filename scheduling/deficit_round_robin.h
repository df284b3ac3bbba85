#ifndef REFRACT_SCHEDULING_DEFICIT_ROUND_ROBIN_H_
#define REFRACT_SCHEDULING_DEFICIT_ROUND_ROBIN_H_

// Divides a device's time among models by their shares: deficit round robin
// (Shreedhar, Varghese, "Efficient Fair Queuing using Deficit Round-Robin",
// IEEE/ACM ToN 4(3), 1996) with device seconds in place of bytes.
//
// Each model has a deficit counter: device time that it may still use before
// the others. A turn is one execution. The model with the largest counter per
// share takes the next turn, and its counter falls by the time that the turn
// takes. When the counter of the model that takes a turn is below 0, a round
// passes: the counters of all models grow in proportion to their shares, by as
// much as brings that counter to 0. So
//
//  - a model that always has work has a counter of at most 0;
//  - a model that uses less than its share has a counter above 0, and goes
//    first at the end of every turn.
//
// A counter is at most the model's share of the device over kMemory: a model
// that was idle for an hour does not take an hour afterwards. Rounds pass, too,
// while the device is idle.
//
// The other models together thus delay a model below its share by one turn, and
// Quantum() bounds turns.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "scheduling/execution_times.h"

namespace refract::scheduling {

// Not thread-safe.
class DeficitRoundRobin {
 public:
  static constexpr absl::Duration kMemory = absl::Seconds(1);

  // `shares`: one per model, each > 0. `instances`: executions of the device at
  // once.
  DeficitRoundRobin(std::vector<double> shares, int instances);

  // Changes the share of `model`, which is at most one past the last one. 0: no
  // model has this number for now. The model's counter starts at 0.
  void SetShare(size_t model, double share);

  // Whether, of two models with work, `a` takes a turn before `b`. With equal
  // counters the model whose last turn is longer ago goes first.
  bool Before(size_t a, size_t b) const;
  // Whether the model has used less than its share: its counter is above 0.
  bool BelowShare(size_t model) const;

  // `model` takes a turn that will use `time`.
  void TakeTurn(size_t model, absl::Duration time);
  // Call when the turn took `difference` more than predicted (negative: less).
  void Correct(size_t model, absl::Duration difference);
  // Call after idle time of instances: `time` is their sum.
  void PassIdle(absl::Duration time);

 private:
  struct Model {
    double share = 1;
    double most_s = 0;     // bound of the counter
    double counter_s = 0;  // device seconds
    uint64_t last_turn = 0;
  };
  void PassRounds(double seconds_per_share);
  // After a change of shares.
  void BoundCounters();

  const int instances_;
  std::vector<Model> models_;
  double shares_ = 0;  // sum
  uint64_t turns_ = 0;
};

// Longest turn of a model on a device of several models. `own`: the time of its
// smallest execution, `other`: time of a request of the quickest model that is
// below its share and has asked lately; infinite if there is none, or the model
// itself is below its share.
//
//   max(2 own, min(50 ms, other / 5))
//
// So a turn delays a request of a model below its share by at most a fifth of
// the request's own time; 50 ms is the longest wait of a first request. Turns
// of 2 own leave a model at least half of its rows/s if time is a + c · rows.
absl::Duration Quantum(absl::Duration own, absl::Duration other);

// The most rows, between `least` and `most`, whose execution takes at most
// `longest`; a full bucket if there is a choice.
int64_t RowsWithin(absl::Duration longest, const ExecutionTimes& times,
                   int64_t least, int64_t most, absl::Time now);

}  // namespace refract::scheduling

#endif  // REFRACT_SCHEDULING_DEFICIT_ROUND_ROBIN_H_
