#ifndef REFRACT_TOOLS_TRANSPORT_METER_PLAN_H_
#define REFRACT_TOOLS_TRANSPORT_METER_PLAN_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/transport_meter/config.h"
#include "tools/transport_meter/subject.h"

namespace refract::transport_meter {

// A subject and its names in reports (Row).
struct Measured {
  std::string level;
  std::string name;
  std::string yardstick_of;
  std::unique_ptr<Subject> subject;
};

// Baselines first, then the levels of each path. Must be called before the
// fork.
absl::StatusOr<std::vector<Measured>> MakeSubjects(const Config& config);

// By operation, mode, size. The adaptive mode comes with the channel level.
std::vector<Point> MakePoints(const Config& config);

// `verify` and `iterations` are left at their defaults.
Work WorkFor(const Config& config, const Point& point);

}  // namespace refract::transport_meter

#endif  // REFRACT_TOOLS_TRANSPORT_METER_PLAN_H_
