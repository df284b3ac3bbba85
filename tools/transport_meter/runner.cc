#include "tools/transport_meter/runner.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/quantile.h"
#include "base/status_macros.h"
#include "tools/transport_meter/peer_process.h"
#include "tools/transport_meter/plan.h"

namespace refract::transport_meter {
namespace {

// Enough for a median, and each buffer of a ring is used twice.
constexpr int kMinLatencies = 16;
int MinIterations(const Work& work) {
  return IsStream(work.point.op) ? 2 * work.outstanding : kMinLatencies;
}

Figures FiguresOf(const Work& work, const Recorder& recorder) {
  if (recorder.reported().has_value()) return *recorder.reported();
  Figures figures = NoFigures();
  if (IsStream(work.point.op)) {
    figures.bytes_per_s = static_cast<double>(work.point.bytes) *
                          work.iterations / (recorder.elapsed_us() * 1e-6);
    return figures;
  }
  const std::vector<double> laps = recorder.SortedLapsUs();
  figures.p50_us = base::Quantile(laps, 0.5);
  figures.p99_us = base::Quantile(laps, 0.99);
  figures.mean_us = std::accumulate(laps.begin(), laps.end(), 0.0) /
                    static_cast<double>(laps.size());
  return figures;
}

// All subjects at one point.
class PointRun {
 public:
  PointRun(const Config& config, const std::vector<Measured>& subjects,
           PeerProcess& peer, const Point& point)
      : config_(config), peer_(peer), work_(WorkFor(config, point)) {
    for (size_t i = 0; i < subjects.size(); ++i) {
      if (!subjects[i].subject->Supports(point)) continue;
      Row row;
      row.point = point;
      row.level = subjects[i].level;
      row.name = subjects[i].name;
      row.yardstick_of = subjects[i].yardstick_of;
      row.outstanding = work_.outstanding;
      entries_.push_back({i, std::move(row)});
    }
  }

  // False: the point has only yardsticks.
  bool worthwhile() const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const Entry& e) { return !e.row.yardstick(); });
  }

  absl::Status Run() {
    for (Entry& entry : entries_) {
      // Wrong bytes end the benchmark: a fast path that corrupts data must not
      // be reported. Any other error costs the entry alone.
      const absl::Status ready = PrepareEntry(entry);
      if (absl::IsDataLoss(ready)) {
        return base::Annotate(
            ready, absl::StrCat(entry.row.level, " ", entry.row.name));
      }
      if (!ready.ok()) entry.row.error = std::string(ready.message());
    }
    // Subjects take turns within a round, and ratios are of one round, so that a
    // slow moment of the machine meets both. The first subject changes from
    // round to round.
    for (int round = 0; round < config_.rounds; ++round) {
      for (size_t i = 0; i < entries_.size(); ++i) {
        Entry& entry =
            entries_[(i + static_cast<size_t>(round)) % entries_.size()];
        entry.row.rounds.push_back(Measure(entry));
      }
    }
    for (const Entry& entry : entries_) peer_.Close(entry.subject);
    return absl::OkStatus();
  }

  void AppendRows(std::vector<Row>* rows) {
    for (Entry& entry : entries_) rows->push_back(std::move(entry.row));
  }

 private:
  struct Entry {
    size_t subject = 0;
    Row row;
    bool open = false;
  };

  absl::Status Open(Entry& entry) {
    if (entry.open) return absl::OkStatus();
    REFRACT_RETURN_IF_ERROR(peer_.Open(entry.subject, work_));
    entry.open = true;
    return absl::OkStatus();
  }

  absl::StatusOr<Recorder> RunOnce(Entry& entry, int iterations, bool verify) {
    Work work = work_;
    work.iterations = iterations;
    work.verify = verify;
    Recorder recorder(iterations);
    const absl::Status status = peer_.Run(entry.subject, work, recorder);
    if (!status.ok()) {
      // PeerProcess::Run() has closed the session; the next round opens it
      // again.
      entry.open = false;
      return status;
    }
    return recorder;
  }

  // Opens, checks, warms up and chooses the number of iterations.
  absl::Status PrepareEntry(Entry& entry) {
    REFRACT_RETURN_IF_ERROR(Open(entry));
    // The first run checks payloads, which also writes to every page once.
    const int few = MinIterations(work_) + 1;
    REFRACT_RETURN_IF_ERROR(RunOnce(entry, few, true).status());
    // The second trial is warm.
    REFRACT_RETURN_IF_ERROR(RunOnce(entry, few, false).status());
    REFRACT_ASSIGN_OR_RETURN(const Recorder trial, RunOnce(entry, few, false));
    Work tried = work_;
    tried.iterations = few;
    const Figures figures = FiguresOf(tried, trial);
    // As a measurement counts: from the first operation to the last one.
    const double each_us = std::max(
        IsStream(work_.point.op)
            ? static_cast<double>(work_.point.bytes) / figures.bytes_per_s * 1e6
            : figures.mean_us,
        1e-3);
    if (!std::isfinite(each_us)) {
      return absl::UnavailableError("a trial measured nothing");
    }
    entry.row.iterations = static_cast<int>(
        std::clamp(config_.time_ms * 1000 / each_us,
                   static_cast<double>(std::min(few, config_.max_iterations)),
                   static_cast<double>(config_.max_iterations)));
    return absl::OkStatus();
  }

  Figures Measure(Entry& entry) {
    if (entry.row.iterations == 0) return NoFigures();  // never worked
    absl::Status status = Open(entry);
    if (status.ok()) {
      const absl::StatusOr<Recorder> recorder =
          RunOnce(entry, entry.row.iterations, false);
      if (recorder.ok()) {
        Work work = work_;
        work.iterations = entry.row.iterations;
        return FiguresOf(work, *recorder);
      }
      status = recorder.status();
    }
    if (entry.row.error.empty())
      entry.row.error = std::string(status.message());
    return NoFigures();
  }

  const Config& config_;
  PeerProcess& peer_;
  const Work work_;
  std::vector<Entry> entries_;
};

}  // namespace

absl::StatusOr<Report> RunBench(const Config& config,
                                const ProgressFunction& progress) {
  REFRACT_RETURN_IF_ERROR(CheckConfig(config));
  REFRACT_ASSIGN_OR_RETURN(const std::vector<Measured> subjects,
                           MakeSubjects(config));
  // Before this thread is pinned: the child has a processor of its own.
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<PeerProcess> peer,
                           PeerProcess::Start(&subjects, config.cpus[1]));
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<PinnedThread> pinned,
                           PinnedThread::Pin(config.cpus[0]));
  Report report;
  report.cpus = config.cpus;
  const std::vector<Point> points = MakePoints(config);
  for (size_t i = 0; i < points.size(); ++i) {
    const Point& point = points[i];
    progress(absl::StrCat(i + 1, "/", points.size(), " ", OpName(point.op), " ",
                          ModeName(point.mode), " ", point.bytes, " B"));
    PointRun run(config, subjects, *peer, point);
    if (!run.worthwhile()) continue;
    REFRACT_RETURN_IF_ERROR(run.Run());
    run.AppendRows(&report.rows);
  }
  AddRatios(&report);
  return report;
}

}  // namespace refract::transport_meter
