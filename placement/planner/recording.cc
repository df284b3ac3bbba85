#include "placement/planner/recording.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace refract::placement {
namespace {

// Clocks have ticks: a time of one tick is no infinite speed.
constexpr double kMostSpeed = 1000;

}  // namespace

void SpeedTimeline::Add(double end, double speed) {
  if (end <= begins_.back()) return;
  begins_.push_back(end);
  speeds_.push_back(speed);
}

void SpeedTimeline::Append(const std::vector<Work>& works, double length) {
  // A sweep over the begins and ends of works: between two edges the speed is
  // the mean over the works under way, `sum` ÷ `active`. At one moment ends
  // come before begins, because their speed is negative.
  struct Edge {
    double at = 0;
    double speed = 0;  // negative: ends
  };
  std::vector<Edge> edges;
  for (const Work& work : works) {
    const double begin = std::clamp(work.begin, 0.0, length);
    const double end = std::clamp(work.end, 0.0, length);
    if (end <= begin || work.usual_s <= 0) continue;
    // A work that the ends of the recording cut off keeps its speed.
    const double speed =
        std::min(kMostSpeed, work.usual_s / (work.end - work.begin));
    edges.push_back({begin, speed});
    edges.push_back({end, -speed});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return a.at < b.at || (a.at == b.at && a.speed < b.speed);
  });
  const double offset = begins_.back();
  double sum = 0;
  int active = 0;
  double before = 0;  // speed before a pause; 0: the recording begins with it
  double at = 0;
  for (const Edge& edge : edges) {
    if (active > 0) {
      before = sum / active;
      Add(offset + edge.at, before);
    } else {
      // A pause: the faster of its neighbours.
      Add(offset + edge.at, std::max(before, edge.speed));
    }
    at = edge.at;
    sum += edge.speed;
    active += edge.speed > 0 ? 1 : -1;
    if (active == 0) sum = 0;  // rounding must not add up
  }
  if (at < length) Add(offset + length, before == 0 ? 1 : before);
}

double SpeedTimeline::TimeFor(double at, double usual_s) const {
  // From segment to segment, each doing rest × speed of the work; after the
  // last segment from the start again. Speeds are above 0, so this ends.
  double moment = std::fmod(at, length());
  auto i = static_cast<size_t>(
      std::upper_bound(begins_.begin(), begins_.end(), moment) -
      begins_.begin() - 1);
  double time = 0;
  while (true) {
    if (i >= speeds_.size()) {
      i = 0;
      moment = 0;
    }
    const double rest = begins_[i + 1] - moment;
    if (rest * speeds_[i] >= usual_s) return time + usual_s / speeds_[i];
    usual_s -= rest * speeds_[i];
    time += rest;
    moment = begins_[++i];
  }
}

double Recording::WayAt(double at) const {
  const std::pair<double, double> moment(
      std::fmod(at, length()), std::numeric_limits<double>::infinity());
  const auto after = std::upper_bound(ways.begin(), ways.end(), moment);
  if (after == ways.begin()) return after->second;
  const auto before = std::prev(after);
  if (after == ways.end()) return before->second;
  const double part =
      (moment.first - before->first) / (after->first - before->first);
  return before->second + part * (after->second - before->second);
}

}  // namespace refract::placement
