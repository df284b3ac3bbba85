#include "tools/transport_bench/plan.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "tools/transport_bench/channel_subject.h"
#include "tools/transport_bench/fan_in_subject.h"
#include "tools/transport_bench/memory_yardstick.h"
#include "tools/transport_bench/message_subject.h"
#include "tools/transport_bench/path_subject.h"
#include "tools/transport_bench/perftest.h"
#include "tools/transport_bench/socket_yardstick.h"
#include "tools/transport_bench/verbs_port.h"
#include "tools/transport_bench/verbs_yardstick.h"
#include "transport/paths/paths.h"

namespace refract::transport_bench {
namespace {

constexpr size_t kMinOutstanding = 2;
constexpr size_t kMaxOutstanding = 128;

size_t LargestRing(const Config& config) {
  size_t largest = 0;
  for (const Point& point : MakePoints(config)) {
    largest = std::max(
        largest, Stride(point.bytes) *
                     static_cast<size_t>(WorkFor(config, point).outstanding));
  }
  return largest;
}

absl::Status AddYardsticks(const Config& config, proto::TransportPath path,
                           std::vector<Measured>* subjects) {
  const std::string of(transport::PathName(path));
  subjects->push_back(
      {"one", "flow", of,
       FanInSubject(path, config.rdma_device, config.eager_bytes, 1)});
  switch (path) {
    case proto::TRANSPORT_PATH_SHM: {
      REFRACT_ASSIGN_OR_RETURN(std::unique_ptr<Subject> memory,
                               MemoryYardstick(LargestRing(config)));
      subjects->push_back({"raw", "memory", of, std::move(memory)});
      break;
    }
    case proto::TRANSPORT_PATH_TCP:
      subjects->push_back({"raw", "socket", of, SocketYardstick()});
      break;
    case proto::TRANSPORT_PATH_VERBS: {
      REFRACT_ASSIGN_OR_RETURN(const VerbsPort port,
                               ChooseVerbsPort(config.rdma_device));
      subjects->push_back({"raw", "verbs", of, VerbsYardstick(port)});
      for (const std::string& program : InstalledPerftest()) {
        subjects->push_back(
            {"perftest", program, of, PerftestYardstick(program, port)});
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
  std::vector<Measured> subjects;
  for (const proto::TransportPath path : config.paths) {
    if (!config.yardsticks) break;
    REFRACT_RETURN_IF_ERROR(AddYardsticks(config, path, &subjects));
  }
  for (const proto::TransportPath path : config.paths) {
    const std::string name(transport::PathName(path));
    for (const Level level : config.levels) {
      switch (level) {
        case Level::kPath:
          subjects.push_back(
              {"path", name, "", PathSubject(path, config.rdma_device)});
          break;
        case Level::kMessage:
          subjects.push_back(
              {"message", name, "",
               MessageSubject(path, config.rdma_device, config.eager_bytes)});
          // Which of the two applies follows from the operation.
          subjects.push_back({"message", name, "",
                              FanInSubject(path, config.rdma_device,
                                           config.eager_bytes, kFanInFlows)});
          break;
        case Level::kChannel:
          subjects.push_back(
              {"channel", name, "",
               ChannelSubject(path, config.rdma_device, config.eager_bytes)});
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
  work.outstanding = static_cast<int>(
      IsStream(point.op) ? std::clamp(config.window_bytes / point.bytes,
                                      kMinOutstanding, kMaxOutstanding)
                         : kMinOutstanding);
  return work;
}

}  // namespace refract::transport_bench
