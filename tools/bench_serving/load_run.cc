#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tools/bench_serving/worker_processes.h"

namespace refract::tools {
namespace {

class Writer {
 public:
  template <typename T>
  void Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutText(absl::string_view text) {
    Put(text.size());
    text_.append(text.data(), text.size());
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(absl::string_view text) : rest_(text) {}

  template <typename T>
  T Get() {
    T value = {};
    const absl::string_view bytes = Take(sizeof(T));
    if (ok_) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string GetText() { return std::string(Take(Get<size_t>())); }
  bool Done() const { return ok_ && rest_.empty(); }
  bool ok() const { return ok_; }

 private:
  absl::string_view Take(size_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const absl::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  absl::string_view rest_;
  bool ok_ = true;
};

struct QueryRow {
  int64_t at_ns = 0, items = 0, latency_ns = 0, lateness_ns = 0;
  size_t request = 0;
  int code = 0;
  bool dropped = false;
};

}  // namespace

std::string EncodeRun(const LoadRun& run) {
  Writer writer;
  writer.Put(absl::ToUnixNanos(run.started));
  writer.Put(run.distinct_requests);
  writer.Put(run.request_bytes);
  writer.Put(run.server.has_value());
  const loadgen::ServerTimes times = run.server.value_or(loadgen::ServerTimes{});
  writer.Put(times.requests);
  for (const absl::Duration time :
       {times.queue, times.before, times.remote, times.after}) {
    writer.Put(absl::ToInt64Nanoseconds(time));
  }
  writer.Put(run.answers.bytes);
  writer.Put(run.answers.count);
  writer.Put(run.answers.first_errors.size());
  for (const auto& [code, message] : run.answers.first_errors) {
    writer.Put(code);
    writer.PutText(message);
  }
  writer.Put(run.schedule.size());
  for (size_t i = 0; i < run.schedule.size(); ++i) {
    const loadgen::PlannedQuery& query = run.schedule[i];
    const loadgen::QueryResult& result = run.results[i];
    writer.Put(QueryRow{.at_ns = absl::ToInt64Nanoseconds(query.at),
                        .items = query.items,
                        .latency_ns = absl::ToInt64Nanoseconds(result.latency),
                        .lateness_ns =
                            absl::ToInt64Nanoseconds(result.lateness),
                        .request = query.request,
                        .code = static_cast<int>(result.code),
                        .dropped = result.dropped});
  }
  return writer.Take();
}

absl::StatusOr<LoadRun> DecodeRun(absl::string_view text) {
  Reader reader(text);
  LoadRun run;
  run.started = absl::FromUnixNanos(reader.Get<int64_t>());
  run.distinct_requests = reader.Get<size_t>();
  run.request_bytes = reader.Get<double>();
  const bool has_server = reader.Get<bool>();
  loadgen::ServerTimes times;
  times.requests = reader.Get<uint64_t>();
  for (absl::Duration* time :
       {&times.queue, &times.before, &times.remote, &times.after}) {
    *time = absl::Nanoseconds(reader.Get<int64_t>());
  }
  if (has_server) run.server = times;
  run.answers.bytes = reader.Get<uint64_t>();
  run.answers.count = reader.Get<uint64_t>();
  // reader.ok() ends the loop if the text ends early, whatever number it
  // announced.
  for (size_t left = reader.Get<size_t>(); reader.ok() && left > 0; --left) {
    const auto code = reader.Get<absl::StatusCode>();
    run.answers.first_errors[code] = reader.GetText();
  }
  for (size_t left = reader.Get<size_t>(); reader.ok() && left > 0; --left) {
    const auto row = reader.Get<QueryRow>();
    run.schedule.push_back({.at = absl::Nanoseconds(row.at_ns),
                            .items = row.items,
                            .request = row.request});
    run.results.push_back(
        {.dropped = row.dropped,
         .code = static_cast<absl::StatusCode>(row.code),
         .latency = absl::Nanoseconds(row.latency_ns),
         .lateness = absl::Nanoseconds(row.lateness_ns)});
  }
  if (!reader.Done()) {
    return absl::DataLossError("a generator process sent half a result");
  }
  return run;
}

LoadRun MergeRuns(std::vector<LoadRun> parts) {
  LoadRun all;
  std::vector<std::pair<absl::Duration, std::pair<size_t, size_t>>> order;
  double bytes = 0;
  for (size_t part = 0; part < parts.size(); ++part) {
    LoadRun& run = parts[part];
    for (size_t i = 0; i < run.schedule.size(); ++i) {
      // By scheduled time; process and position break ties, so that the merged
      // order does not depend on chance.
      order.push_back({run.schedule[i].at, {part, i}});
    }
    // The wall clock of the first run; the schedules begin at one time.
    if (part == 0) all.started = run.started;
    if (part == 0) all.server = run.server;
    all.answers.bytes += run.answers.bytes;
    all.answers.count += run.answers.count;
    all.answers.first_errors.merge(run.answers.first_errors);
    // The mean is weighted by the requests of each process.
    bytes += run.request_bytes * static_cast<double>(run.distinct_requests);
    all.distinct_requests += run.distinct_requests;
  }
  if (all.distinct_requests > 0) {
    all.request_bytes = bytes / static_cast<double>(all.distinct_requests);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [at, place] : order) {
    all.schedule.push_back(parts[place.first].schedule[place.second]);
    all.results.push_back(parts[place.first].results[place.second]);
  }
  return all;
}

}  // namespace refract::tools
