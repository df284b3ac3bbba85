#include "tools/bench_json.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tools/doctor/machine.h"
#include "tools/loadgen/revision.h"

namespace refract::tools {

nlohmann::ordered_json BenchJson(const std::string& benchmark) {
  const Machine machine = ReadMachine("/");
  return {{"benchmark", benchmark},
          {"version", std::string(loadgen::BuiltVersion())},
          {"revision", std::string(loadgen::BuiltRevision())},
          {"time", absl::FormatTime(absl::Now(), absl::UTCTimeZone())},
          {"machine",
           {{"cpu", machine.cpu},
            {"cpus", machine.cpus},
            {"memory_bytes", machine.memory_bytes},
            {"kernel", machine.kernel}}}};
}

}  // namespace refract::tools
