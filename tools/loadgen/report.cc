#include "tools/loadgen/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace refract::loadgen {
namespace {

double Milliseconds(absl::Duration duration) {
  return absl::ToDoubleMilliseconds(duration);
}

// Of `queries` queries.
void PrintRow(const char* name, const Distribution& row, int64_t queries,
              std::ostream& out) {
  if (queries == 0) {
    out << absl::StreamFormat("%-12s %9s\n", name, "-");
    return;
  }
  out << absl::StreamFormat("%-12s %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f\n",
                            name, Milliseconds(row.mean), Milliseconds(row.p50),
                            Milliseconds(row.p90), Milliseconds(row.p95),
                            Milliseconds(row.p99), Milliseconds(row.p999),
                            Milliseconds(row.max));
}

}  // namespace

Distribution Describe(std::vector<absl::Duration> values) {
  Distribution result;
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  const auto nearest_rank = [&values](double fraction) {
    const double rank = std::ceil(fraction * values.size());
    return values[std::max<size_t>(static_cast<size_t>(rank), 1) - 1];
  };
  for (absl::Duration value : values) result.mean += value;
  result.mean /= static_cast<int64_t>(values.size());
  result.p50 = nearest_rank(0.5);
  result.p90 = nearest_rank(0.9);
  result.p95 = nearest_rank(0.95);
  result.p99 = nearest_rank(0.99);
  result.p999 = nearest_rank(0.999);
  result.max = values.back();
  return result;
}

Measurement Measure(absl::Span<const PlannedQuery> schedule,
                    absl::Span<const QueryResult> results,
                    absl::Duration warmup, absl::Duration duration,
                    std::optional<absl::Duration> slo) {
  Measurement result;
  result.slo = slo;
  absl::Duration end = warmup + duration;
  std::vector<absl::Duration> latencies, latenesses;
  for (size_t i = 0; i < schedule.size(); ++i) {
    // Dropped and failed queries count as queries, and their latencies are left
    // out.
    if (schedule[i].at < warmup) continue;
    ++result.queries;
    latenesses.push_back(results[i].lateness);
    if (results[i].dropped) {
      ++result.dropped;
      continue;
    }
    if (results[i].code != absl::StatusCode::kOk) {
      ++result.errors[results[i].code];
      continue;
    }
    ++result.succeeded;
    // The window ends with the last answer, if that comes after the planned
    // end: rates of an overloaded server would be too high otherwise. The
    // timeout of a query that got no answer is no time of work.
    end = std::max(end, schedule[i].at + results[i].latency);
    result.items += schedule[i].items;
    latencies.push_back(results[i].latency);
    if (slo && results[i].latency <= *slo) ++result.within_slo;
  }
  result.window = end - warmup;
  const double seconds = absl::ToDoubleSeconds(result.window);
  result.offered_qps = result.queries / absl::ToDoubleSeconds(duration);
  result.achieved_qps = result.succeeded / seconds;
  result.items_per_s = result.items / seconds;
  result.goodput_qps = result.within_slo / seconds;
  result.latency = Describe(std::move(latencies));
  result.lateness = Describe(std::move(latenesses));
  return result;
}

// Lateness counts if its p99 exceeds the precision of timers, 1 ms, and a tenth
// of the median latency.
bool ClientWasLate(const Measurement& measurement) {
  return measurement.lateness.p99 > absl::Milliseconds(1) &&
         measurement.lateness.p99 > measurement.latency.p50 / 10;
}

void Print(const Measurement& m, std::ostream& out) {
  out << absl::StreamFormat(
      "%d queries in %.1f s: offered %.1f/s, answered %.1f/s, %.0f items/s, "
      "%d failed, %d dropped unsent\n",
      m.queries, absl::ToDoubleSeconds(m.window), m.offered_qps, m.achieved_qps,
      m.items_per_s, m.queries - m.succeeded - m.dropped, m.dropped);
  for (const auto& [code, count] : m.errors) {
    out << absl::StreamFormat("  %d %s\n", count,
                              absl::StatusCodeToString(code));
  }
  if (m.slo) {
    out << absl::StreamFormat("within %g ms: %d (%.2f %%), goodput %.1f/s\n",
                              Milliseconds(*m.slo), m.within_slo,
                              100 * m.within_slo_share(), m.goodput_qps);
  }
  out << absl::StreamFormat("%-12s %9s %9s %9s %9s %9s %9s %9s\n", "ms", "mean",
                            "p50", "p90", "p95", "p99", "p99.9", "max");
  PrintRow("latency", m.latency, m.succeeded, out);
  PrintRow("sent late by", m.lateness, m.queries, out);
  if (ClientWasLate(m)) {
    out << "The client itself was late: it lacks processor time, and the "
           "latencies include that.\n";
  }
}

}  // namespace refract::loadgen
