#include "scheduling/deficit_round_robin.h"

#include <algorithm>

namespace refract::scheduling {
namespace {

// Counters are sums of rounded numbers, in seconds: less than a nanosecond
// counts as 0.
constexpr double kZeroS = 1e-9;

// Longest wait of the first request of a model that was quiet: while no model
// below its share has asked lately, Quantum() has no request time to go by.
constexpr absl::Duration kQuantum = absl::Milliseconds(50);

}  // namespace

DeficitRoundRobin::DeficitRoundRobin(std::vector<double> shares, int instances)
    : instances_(instances) {
  for (const double share : shares) models_.push_back({.share = share});
  BoundCounters();
}

void DeficitRoundRobin::SetShare(size_t model, double share) {
  // A new model starts with a counter of 0 and the latest turn: it neither owes
  // time nor goes before models that have waited longer.
  if (model == models_.size()) models_.emplace_back();
  models_[model] = {.share = share, .last_turn = turns_};
  BoundCounters();
}

void DeficitRoundRobin::BoundCounters() {
  // The bound of a counter is the model's share of all instances over kMemory.
  // A changed share changes every model's bound, so all counters are bounded
  // anew. Share 0 marks a free number, which takes part in nothing.
  shares_ = 0;
  for (const Model& model : models_) shares_ += model.share;
  for (Model& model : models_) {
    if (model.share == 0) continue;
    model.most_s =
        absl::ToDoubleSeconds(kMemory) * instances_ * model.share / shares_;
    model.counter_s = std::min(model.counter_s, model.most_s);
  }
}

bool DeficitRoundRobin::Before(size_t a, size_t b) const {
  const Model& first = models_[a];
  const Model& second = models_[b];
  // Counters are compared per share: the model furthest below its share goes
  // first, however large the share is.
  const double difference =
      first.counter_s / first.share - second.counter_s / second.share;
  if (difference != 0) return difference > 0;
  if (first.last_turn != second.last_turn) {
    return first.last_turn < second.last_turn;
  }
  return a < b;
}

bool DeficitRoundRobin::BelowShare(size_t model) const {
  return models_[model].counter_s > kZeroS;
}

void DeficitRoundRobin::TakeTurn(size_t index, absl::Duration time) {
  Model& model = models_[index];
  // Passes at once all rounds that bring this counter back to 0. A round adds
  // the same number of seconds per share to each model, which keeps the order
  // of the counters, except that full counters stay full.
  if (model.counter_s < 0) PassRounds(-model.counter_s / model.share);
  model.counter_s -= absl::ToDoubleSeconds(time);
  model.last_turn = ++turns_;
}

void DeficitRoundRobin::Correct(size_t index, absl::Duration difference) {
  // A turn that took less than predicted raises the counter, up to its bound. A
  // counter below 0 stays until the model's next turn, which passes the rounds.
  Model& model = models_[index];
  model.counter_s = std::min(
      model.counter_s - absl::ToDoubleSeconds(difference), model.most_s);
}

void DeficitRoundRobin::PassIdle(absl::Duration time) {
  // Idle time is divided among all models, like used time.
  if (shares_ == 0) return;
  PassRounds(absl::ToDoubleSeconds(time) / shares_);
}

void DeficitRoundRobin::PassRounds(double seconds_per_share) {
  for (Model& model : models_) {
    model.counter_s = std::min(
        model.counter_s + seconds_per_share * model.share, model.most_s);
  }
}

absl::Duration Quantum(absl::Duration own, absl::Duration other) {
  return std::max(2 * own, std::min(kQuantum, other / 5));
}

int64_t RowsWithin(absl::Duration longest, const ExecutionTimes& times,
                   int64_t least, int64_t most, absl::Time now) {
  if (times.Typical(most, now) <= longest) return most;
  int64_t rows = least;
  for (int bucket = BucketOf(least); bucket < kNumBuckets; ++bucket) {
    const int64_t next = RowsOfBucket(bucket);
    if (next > most || times.Typical(next, now) > longest) break;
    rows = std::max(rows, next);
  }
  return std::min(rows, most);
}

}  // namespace refract::scheduling
