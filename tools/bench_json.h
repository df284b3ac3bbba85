#ifndef REFRACT_TOOLS_BENCH_JSON_H_
#define REFRACT_TOOLS_BENCH_JSON_H_

#include <string>

#include "nlohmann/json_fwd.hpp"

namespace refract::tools {

// The first fields of every benchmark's JSON: its name, the version and
// revision of this program, the time, and this machine.
nlohmann::ordered_json BenchJson(const std::string& benchmark);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_BENCH_JSON_H_
