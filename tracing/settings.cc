#include "tracing/settings.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/shorten.h"
#include "base/status_macros.h"

namespace refract::tracing {
namespace {

constexpr absl::string_view kOtlp = "opentelemetry";
constexpr absl::string_view kFile = "triton";

absl::Status Wrong(absl::string_view name, absl::string_view value,
                   absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("trace setting '", base::Shorten(name), "' is '",
                   base::Shorten(value), "', wanted ", wanted));
}

template <typename Number>
absl::Status Read(absl::string_view name, absl::string_view value,
                  int64_t least, int64_t most, Number& number) {
  int64_t read = 0;
  if (!absl::SimpleAtoi(value, &read) || read < least || read > most) {
    return Wrong(name, value,
                 absl::StrCat("a whole number from ", least, " to ", most));
  }
  number = static_cast<Number>(read);
  return absl::OkStatus();
}

absl::Status ReadMilliseconds(absl::string_view name, absl::string_view value,
                              absl::Duration& duration) {
  double ms = 0;
  if (!absl::SimpleAtod(value, &ms) || !(ms >= 0 && ms <= 86400e3)) {
    return Wrong(name, value, "milliseconds, 0 to 86400000");
  }
  duration = absl::Milliseconds(ms);
  return absl::OkStatus();
}

// Settings that clients may change, too.
absl::Status Set(absl::string_view name, absl::string_view value,
                 Settings& settings) {
  constexpr int64_t kMost = int64_t{1} << 53;
  if (name == "trace_level") {
    if (value != "OFF" && value != "TIMESTAMPS") {
      return Wrong(name, value, "OFF or TIMESTAMPS");
    }
    settings.on = value == "TIMESTAMPS";
    return absl::OkStatus();
  }
  if (name == "trace_rate") return Read(name, value, 0, kMost, settings.rate);
  if (name == "trace_count") {
    return Read(name, value, -1, kMost, settings.count);
  }
  if (name == "slow_ms") {
    REFRACT_RETURN_IF_ERROR(ReadMilliseconds(name, value, settings.slow_after));
    if (settings.slow_after == absl::ZeroDuration()) {
      settings.slow_after = absl::InfiniteDuration();
    }
    return absl::OkStatus();
  }
  if (name == "failed") {
    if (!absl::SimpleAtob(value, &settings.failed)) {
      return Wrong(name, value, "true or false");
    }
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("trace setting '", base::Shorten(name),
                   "' is unknown or fixed by --trace-config; known are "
                   "trace_level, trace_rate, trace_count, slow_ms and failed"));
}

absl::Status SetOtlp(absl::string_view name, absl::string_view value,
                     Settings& settings) {
  if (name == "url") {
    settings.url = std::string(value);
    return absl::OkStatus();
  }
  if (name == "resource") {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(value, absl::MaxSplits('=', 1));
    if (pair.first.empty() || pair.second.empty()) {
      return Wrong(name, value, "NAME=VALUE");
    }
    settings.resource.emplace_back(pair.first, pair.second);
    return absl::OkStatus();
  }
  if (name == "bsp_max_queue_size") {
    return Read(name, value, 1, 1 << 24, settings.max_queue);
  }
  if (name == "bsp_max_export_batch_size") {
    return Read(name, value, 1, 1 << 20, settings.max_batch);
  }
  if (name == "bsp_schedule_delay") {
    return ReadMilliseconds(name, value, settings.delay);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("trace setting '", base::Shorten(name), "' is unknown"));
}

}  // namespace

absl::Status ParseTraceConfig(const std::vector<std::string>& texts,
                              Settings& settings) {
  // Which of the settings were given: they decide the defaults of the others
  // below, independent of the order of the texts.
  bool level = false;
  bool target = false;
  bool mode = false;
  for (const std::string& text : texts) {
    const auto wrong = [&](const absl::Status& status) {
      return absl::InvalidArgumentError(
          absl::StrCat("--trace-config ", text, ": ", status.message()));
    };
    absl::string_view rest = text;
    const bool of_otlp = absl::ConsumePrefix(&rest, absl::StrCat(kOtlp, ","));
    const bool of_file =
        !of_otlp && absl::ConsumePrefix(&rest, absl::StrCat(kFile, ","));
    const size_t equals = rest.find('=');
    if (equals == absl::string_view::npos) {
      return wrong(absl::InvalidArgumentError("wanted [MODE,]NAME=VALUE"));
    }
    const absl::string_view name = rest.substr(0, equals);
    const absl::string_view value = rest.substr(equals + 1);
    absl::Status status;
    if (of_otlp) {
      status = SetOtlp(name, value, settings);
      target = target || name == "url";
    } else if (of_file && name == "file") {
      settings.file = std::string(value);
      target = true;
    } else if (of_file) {
      status =
          absl::InvalidArgumentError("mode triton has one setting, 'file'");
    } else if (name == "mode") {
      if (value != kOtlp && value != kFile) {
        status = Wrong(name, value, "triton or opentelemetry");
      }
      settings.otlp = value == kOtlp;
      mode = true;
    } else {
      // --trace-config has Triton's short names, clients use the names of
      // Triton's extension; slow_ms has no hyphen there.
      const std::string full =
          name == "level" || name == "rate" || name == "count"
              ? absl::StrCat("trace_", name)
          : name == "slow-ms" ? "slow_ms"
                              : std::string(name);
      status = Set(full, value, settings);
      level = level || full == "trace_level";
    }
    if (!status.ok()) return wrong(status);
  }
  // A URL alone means OTLP, and a place for traces alone means that traces are
  // wanted. With a file and a URL the mode stays Triton's default, the file.
  if (!mode && settings.file.empty() && target) settings.otlp = true;
  // A place for traces switches tracing on unless the level was given.
  if (!level && target) settings.on = true;
  if (settings.on && !settings.otlp && settings.file.empty()) {
    return absl::InvalidArgumentError(
        "--trace-config: tracing needs triton,file=FILE or "
        "opentelemetry,url=URL");
  }
  return absl::OkStatus();
}

Values ToValues(const Settings& settings) {
  Values values;
  values["trace_level"] = {settings.on ? "TIMESTAMPS" : "OFF"};
  values["trace_rate"] = {absl::StrCat(settings.rate)};
  values["trace_count"] = {absl::StrCat(settings.count)};
  values["trace_mode"] = {std::string(settings.otlp ? kOtlp : kFile)};
  values["failed"] = {settings.failed ? "true" : "false"};
  values["slow_ms"] = {
      settings.slow_after == absl::InfiniteDuration()
          ? "0"
          : absl::StrCat(absl::ToDoubleMilliseconds(settings.slow_after))};
  if (settings.otlp) {
    values["url"] = {settings.url};
  } else {
    values["trace_file"] = {settings.file};
    // Triton's setting; its only value here, 0, means a single file.
    values["log_frequency"] = {"0"};
  }
  return values;
}

absl::Status Apply(const Values& values, const Settings& at_start,
                   Settings& settings) {
  // All or nothing: a later name that is wrong must not leave the earlier
  // changes.
  Settings changed = settings;
  const Values defaults = ToValues(at_start);
  for (const auto& [name, list] : values) {
    if (list.size() > 1) {
      return Wrong(name, list[1], "one value");
    }
    const auto initial = defaults.find(name);
    const std::string value = !list.empty()               ? list[0]
                              : initial != defaults.end() ? initial->second[0]
                                                          : "";
    REFRACT_RETURN_IF_ERROR(Set(name, value, changed));
  }
  if (changed.on && !changed.otlp && changed.file.empty()) {
    return absl::InvalidArgumentError(
        "trace setting 'trace_level': the node was started without a place "
        "for traces (--trace-config)");
  }
  settings = std::move(changed);
  return absl::OkStatus();
}

}  // namespace refract::tracing
