#include "scheduling/admission.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace refract::scheduling {
namespace {

std::optional<Refusal> FitsAnExecution(const AdmissionSnapshot& s) {
  if (s.rows <= s.most_rows || s.divisible) return std::nullopt;
  return Refusal{Refusal::Kind::kTooLarge,
                 absl::InvalidArgumentError(absl::StrCat(
                     "the request has ", s.rows, " rows; the most that ",
                     s.label, " takes here is ", s.most_rows))};
}

std::optional<Refusal> HasAnInstance(const AdmissionSnapshot& s) {
  if (s.available.ok()) return std::nullopt;
  return Refusal{Refusal::Kind::kUnavailable, s.available};
}

std::optional<Refusal> HasRoom(const AdmissionSnapshot& s) {
  // The node's places are shared, first come, first served. In a full node a
  // model below its quota is still admitted, so that an overloaded model cannot
  // lock out the others. The queue may thus exceed node_places by the quotas of
  // the other models.
  const bool node_full =
      s.node_queue >= s.node_places && s.model_queue >= s.quota;
  if (!node_full && s.model_queue < s.model_places) return std::nullopt;
  return Refusal{
      Refusal::Kind::kQueueFull,
      absl::ResourceExhaustedError(absl::StrCat(
          s.node, " queue is full, ", node_full ? s.node_queue : s.model_queue,
          " requests wait"))};
}

std::optional<Refusal> EndsInTime(const AdmissionSnapshot& s) {
  // A request whose deadline has passed already is admitted here: its queue
  // drops it and counts it as expired. Without an instance (the first is
  // starting) nothing can be predicted.
  if (s.deadline == absl::InfiniteFuture() || s.deadline <= s.now ||
      s.free_at.empty()) {
    return std::nullopt;
  }
  const absl::Time start = PredictStart(s.now, s.free_at, s.ahead);
  if (start + s.own <= s.deadline) return std::nullopt;
  // The code tells the CN whether to try another node. ResourceExhausted:
  // another node may be in time. DeadlineExceeded: even an idle node of this
  // speed would be late.
  const absl::Duration left = s.deadline - s.now;
  const absl::Status status =
      s.own_at_best > left
          ? absl::DeadlineExceededError(absl::StrCat(
                "an idle ", s.node, " could not finish in time: ",
                absl::FormatDuration(s.own_at_best), " to execute, ",
                absl::FormatDuration(left), " left"))
          : absl::ResourceExhaustedError(absl::StrCat(
                "the ", s.node,
                " cannot finish in time: ", absl::FormatDuration(start - s.now),
                " until it could begin and ", absl::FormatDuration(s.own),
                " to execute, ", absl::FormatDuration(left), " left"));
  return Refusal{Refusal::Kind::kTooLate, status};
}

// Permanent reasons first: a request that no execution can take must not be
// told that the queue is full, which invites a retry. The prediction is last,
// since it is the most expensive rule and needs an instance.
using Rule = std::optional<Refusal> (*)(const AdmissionSnapshot&);
constexpr Rule kRules[] = {FitsAnExecution, HasAnInstance, HasRoom, EndsInTime};

}  // namespace

absl::Time PredictStart(absl::Time now, absl::Span<const absl::Time> free_at,
                        absl::Duration ahead) {
  if (free_at.empty()) return absl::InfiniteFuture();
  // Fills the instances like connected basins: `levels` are the times when they
  // are free, `surface` is the time up to which the earliest i + 1 of them are
  // filled. Each round pours in the work that raises these to the level of the
  // next instance, until `ahead` is used up.
  absl::InlinedVector<absl::Time, 16> levels(free_at.begin(), free_at.end());
  for (absl::Time& level : levels) level = std::max(level, now);
  std::sort(levels.begin(), levels.end());
  absl::Time surface = levels[0];
  for (size_t i = 0; i < levels.size(); ++i) {
    // Only the first i + 1 instances take part up to the next level.
    const auto wide = static_cast<int64_t>(i) + 1;
    if (i + 1 == levels.size()) return surface + ahead / wide;
    const absl::Duration step = (levels[i + 1] - surface) * wide;
    if (ahead <= step) return surface + ahead / wide;
    ahead -= step;
    surface = levels[i + 1];
  }
  return surface;
}

absl::Duration CompetingWork(absl::Duration own, double share,
                             absl::Span<const Competitor> others) {
  absl::Duration sum;
  for (const Competitor& other : others) {
    // While this model gets `own` device time, deficit round robin gives
    // another model `own` in proportion to the shares, but no more than its
    // queue holds.
    sum += std::min(other.queued, own * (other.share / share));
  }
  return sum;
}

std::optional<Refusal> DecideAdmission(const AdmissionSnapshot& snapshot) {
  for (const Rule rule : kRules) {
    std::optional<Refusal> refusal = rule(snapshot);
    if (refusal.has_value()) return refusal;
  }
  return std::nullopt;
}

Verdict Judge(absl::Time deadline, bool abandoned, absl::Duration time,
              absl::Time now) {
  // A cancelled request first: nobody reads an error about its deadline.
  if (abandoned) return Verdict::kDropAbandoned;
  if (deadline <= now) return Verdict::kDropExpired;
  if (now + time > deadline) return Verdict::kDropHopeless;
  return Verdict::kRun;
}

absl::Status WhyDropped(Verdict verdict, absl::string_view node,
                        absl::Time deadline, absl::Duration time,
                        absl::Time now) {
  switch (verdict) {
    case Verdict::kDropAbandoned:
      return absl::CancelledError("the client does not wait any more");
    case Verdict::kDropHopeless:
      return absl::DeadlineExceededError(absl::StrCat(
          "deadline would pass at ", node,
          " execution: ", absl::FormatDuration(time), " to execute, ",
          absl::FormatDuration(deadline - now), " left"));
    case Verdict::kDropExpired:
    case Verdict::kRun:
      break;
  }
  return absl::DeadlineExceededError(
      absl::StrCat("deadline passed at ", node, " queue, ",
                   absl::FormatDuration(now - deadline), " ago"));
}

}  // namespace refract::scheduling
