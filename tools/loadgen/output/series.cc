#include "tools/loadgen/output/series.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "tools/loadgen/report.h"

namespace refract::loadgen {
namespace {

bool Succeeded(const QueryResult& result) {
  return !result.dropped && result.code == absl::StatusCode::kOk;
}

}  // namespace

std::vector<PercentilePoint> PercentileCurve(
    absl::Span<const PlannedQuery> schedule,
    absl::Span<const QueryResult> results, absl::Duration warmup) {
  std::vector<absl::Duration> latencies;
  for (size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].at >= warmup && Succeeded(results[i])) {
      latencies.push_back(results[i].latency);
    }
  }
  std::vector<PercentilePoint> curve;
  if (latencies.empty()) return curve;
  std::sort(latencies.begin(), latencies.end());
  const double count = static_cast<double>(latencies.size());
  for (int step = 0; true; ++step) {
    // Four points each time that the rest above the percentile halves, as in
    // HdrHistogram's plots: the tail gets as many points as the middle. The
    // curve ends where less than one sample is left.
    const double rest = std::exp2(-step / 4.0);
    if (rest * count < 1) break;
    const double rank = std::max(std::ceil((1 - rest) * count), 1.0);
    curve.push_back({1 - rest, latencies[static_cast<size_t>(rank) - 1]});
  }
  curve.push_back({1, latencies.back()});
  return curve;
}

absl::Duration TimelineWidth(absl::Duration duration) {
  constexpr int64_t kMostPoints = 120;
  const int64_t points =
      std::clamp<int64_t>(duration / absl::Milliseconds(100), 1, kMostPoints);
  // Upwards: a rest of the division would be one more point, without a query.
  return absl::Ceil(duration / points, absl::Nanoseconds(1));
}

std::vector<TimelinePoint> Timeline(absl::Span<const PlannedQuery> schedule,
                                    absl::Span<const QueryResult> results,
                                    absl::Duration warmup,
                                    absl::Duration duration,
                                    absl::Duration width) {
  std::vector<TimelinePoint> points;
  size_t i = 0;
  while (i < schedule.size() && schedule[i].at < warmup) ++i;
  for (absl::Duration at; at < duration; at += width) {
    TimelinePoint point{.at = at};
    std::vector<absl::Duration> latencies;
    for (; i < schedule.size() && schedule[i].at < warmup + at + width; ++i) {
      ++point.queries;
      if (Succeeded(results[i])) latencies.push_back(results[i].latency);
    }
    point.succeeded = static_cast<int64_t>(latencies.size());
    const Distribution latency = Describe(std::move(latencies));
    point.p50 = latency.p50;
    point.p99 = latency.p99;
    point.max = latency.max;
    points.push_back(point);
  }
  return points;
}

void WriteQueriesCsv(absl::Span<const PlannedQuery> schedule,
                     absl::Span<const QueryResult> results,
                     absl::Duration warmup, std::ostream& out) {
  out << "due_s,items,sent_late_ms,latency_ms,outcome\n";
  for (size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].at < warmup) continue;
    const QueryResult& result = results[i];
    out << absl::StreamFormat(
        "%.6f,%d,%.3f,", absl::ToDoubleSeconds(schedule[i].at - warmup),
        schedule[i].items, absl::ToDoubleMilliseconds(result.lateness));
    if (result.dropped) {
      out << ",DROPPED\n";
    } else {
      out << absl::StreamFormat("%.3f,%s\n",
                                absl::ToDoubleMilliseconds(result.latency),
                                absl::StatusCodeToString(result.code));
    }
  }
}

}  // namespace refract::loadgen
