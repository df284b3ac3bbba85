#ifndef REFRACT_BASE_LOG_LOG_FLAGS_H_
#define REFRACT_BASE_LOG_LOG_FLAGS_H_

#include <string>

#include "CLI/CLI.hpp"
#include "base/log/log_writer.h"
#include "glog/logging.h"

namespace refract::base {

// Log options of a daemon's command line.
struct LogFlags {
  std::string level;  // empty: as glog's environment says, else info
  std::string format = "text";

  LogFormat Format() const {
    return format == "json" ? LogFormat::kJson : LogFormat::kText;
  }
};

// Adds --log-level and --log-format. The level holds from parsing on.
inline void AddLogFlags(CLI::App& app, LogFlags& flags) {
  app.add_option("--log-level", flags.level,
                 "Least severe lines of the log that are written: info, "
                 "warning or error")
      ->check(CLI::IsMember({"info", "warning", "error"}))
      ->default_str("info")
      ->each([](const std::string& level) {
        FLAGS_minloglevel = level == "error"     ? google::GLOG_ERROR
                            : level == "warning" ? google::GLOG_WARNING
                                                 : google::GLOG_INFO;
      });
  app.add_option("--log-format", flags.format,
                 "Lines of the log on stderr: text, or json (one object per "
                 "line with time, level, source and message)")
      ->check(CLI::IsMember({"text", "json"}));
}

}  // namespace refract::base

#endif  // REFRACT_BASE_LOG_LOG_FLAGS_H_
