#ifndef REFRACT_TRACING_SETTINGS_H_
#define REFRACT_TRACING_SETTINGS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace refract::tracing {

// Which requests are traced, and the destination of their traces. Names and
// defaults are Triton's where Triton has the setting.
struct Settings {
  // level: TIMESTAMPS or OFF.
  bool on = false;
  // rate: one in this many requests without traceparent is traced; 0: none.
  uint64_t rate = 1000;
  // count: traces still to be made by rate or by traceparent; < 0: no limit.
  // Traces of failed and slow requests do not count.
  int64_t count = -1;
  // failed: whether failed requests are always traced.
  bool failed = true;
  // slow-ms: requests that take this long are traced, too. Infinite: none.
  absl::Duration slow_after = absl::InfiniteDuration();

  // mode: opentelemetry (OTLP over HTTP), else triton (a file).
  bool otlp = false;
  std::string file;  // triton,file
  std::string url = "http://localhost:4318/v1/traces";
  std::vector<std::pair<std::string, std::string>> resource;
  size_t max_queue = 2048;  // bsp_max_queue_size, spans that wait
  size_t max_batch = 512;   // bsp_max_export_batch_size, spans
  absl::Duration delay = absl::Seconds(5);  // bsp_schedule_delay
};

// Applies --trace-config: texts of the form [MODE,]NAME=VALUE, in any order.
// A file or a URL switches tracing on unless level says otherwise.
// InvalidArgument names the text and what is wrong with it.
absl::Status ParseTraceConfig(const std::vector<std::string>& texts,
                              Settings& settings);

// Triton's trace settings extension: names and values as clients see them.
using Values = std::map<std::string, std::vector<std::string>>;
Values ToValues(const Settings& settings);
// Changes the settings that clients may change: trace_level, trace_rate,
// trace_count, slow_ms, failed. An empty list of values means the value of
// `at_start`. InvalidArgument names the setting; `settings` is then unchanged.
absl::Status Apply(const Values& values, const Settings& at_start,
                   Settings& settings);

}  // namespace refract::tracing

#endif  // REFRACT_TRACING_SETTINGS_H_
