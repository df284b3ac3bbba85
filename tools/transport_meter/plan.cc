#include "tools/transport_meter/plan.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "tools/transport_meter/levels.h"
#include "tools/transport_meter/perftest.h"
#include "transport/paths/paths.h"

namespace refract::transport_meter {
namespace {

constexpr size_t kMinOutstanding = 2;
constexpr size_t kMaxOutstanding = 128;

absl::Status AddBaselines(const PathSpec& spec, size_t max_bytes,
                          std::vector<Measured>* subjects) {
  const std::string of(transport::PathName(spec.path));
  // The yardstick of fan-ins: the same stream over one connection.
  subjects->push_back({"one", "flow", of, MessageLevel(spec, /*fan_in=*/true)});
  switch (spec.path) {
    case proto::TRANSPORT_PATH_SHM: {
      REFRACT_ASSIGN_OR_RETURN(std::unique_ptr<Subject> memory,
                               MemoryBaseline(max_bytes));
      subjects->push_back({"raw", "memory", of, std::move(memory)});
      break;
    }
    case proto::TRANSPORT_PATH_TCP:
      subjects->push_back({"raw", "socket", of, SocketBaseline()});
      break;
    case proto::TRANSPORT_PATH_VERBS: {
      REFRACT_ASSIGN_OR_RETURN(const VerbsPort port,
                               ChooseVerbsPort(spec.rdma_device));
      for (const std::string& program : InstalledPerftest()) {
        subjects->push_back(
            {"perftest", program, of, PerftestBaseline(program, port)});
      }
      break;
    }
    default:
      break;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Measured>> MakeSubjects(const Config& config) {
  std::vector<PathSpec> specs;
  for (const proto::TransportPath path : config.paths) {
    specs.push_back({path, config.rdma_device, config.eager_bytes});
  }
  std::vector<Measured> subjects;
  for (const PathSpec& spec : specs) {
    if (!config.yardsticks) break;
    REFRACT_RETURN_IF_ERROR(AddBaselines(spec, config.sizes.back(), &subjects));
  }
  for (const PathSpec& spec : specs) {
    const std::string name(transport::PathName(spec.path));
    for (const Level level : config.levels) {
      switch (level) {
        case Level::kPath:
          subjects.push_back({"path", name, "", PathLevel(spec)});
          break;
        case Level::kMessage:
          subjects.push_back({"message", name, "", MessageLevel(spec)});
          // The operation decides which of the two applies.
          subjects.push_back(
              {"message", name, "",
               MessageLevel(spec, /*fan_in=*/true, kFanInFlows)});
          break;
        case Level::kChannel:
          subjects.push_back({"channel", name, "", ChannelLevel(spec)});
          break;
      }
    }
  }
  return subjects;
}

std::vector<Point> MakePoints(const Config& config) {
  std::vector<Mode> modes;
  const auto wants = [&](Level level) {
    return std::count(config.levels.begin(), config.levels.end(), level) > 0;
  };
  if (wants(Level::kPath) || wants(Level::kMessage)) modes = config.modes;
  // The channel decides itself when it sleeps, so it has one mode of its own.
  if (wants(Level::kChannel)) modes.push_back(Mode::kAdaptive);
  std::vector<Point> points;
  for (const Op op : config.ops) {
    for (const Mode mode : modes) {
      for (const size_t bytes : config.sizes) {
        points.push_back({op, mode, bytes});
      }
    }
  }
  return points;
}

Work WorkFor(const Config& config, const Point& point) {
  Work work;
  work.point = point;
  work.seed = config.seed;
  // A window of bytes, so that streams of all sizes have about as much under
  // way. At least two messages, or the sender would wait for each message.
  work.outstanding = static_cast<int>(
      IsStream(point.op) ? std::clamp(config.window_bytes / point.bytes,
                                      kMinOutstanding, kMaxOutstanding)
                         : kMinOutstanding);
  return work;
}

}  // namespace refract::transport_meter
