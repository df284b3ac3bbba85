#ifndef REFRACT_TOOLS_TRANSPORT_METER_CONFIG_H_
#define REFRACT_TOOLS_TRANSPORT_METER_CONFIG_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/session.pb.h"
#include "tools/transport_meter/subject.h"

namespace refract::transport_meter {

enum class Level : uint8_t { kPath, kMessage, kChannel };

// Options of `refract bench transport`, checked.
struct Config {
  std::vector<proto::TransportPath> paths;
  std::vector<Level> levels;
  std::vector<Op> ops;
  std::vector<Mode> modes;
  std::vector<size_t> sizes;  // ascending, above 0
  bool yardsticks = true;
  int rounds = 0;
  double time_ms = 0;      // of one measurement, roughly
  int max_iterations = 0;  // of one measurement
  // Streams: payload in transit, but 2 to 128 messages (128 is perftest's).
  size_t window_bytes = 0;
  size_t eager_bytes = 0;   // payload of the largest message that is not pulled
  std::string rdma_device;  // "DEVICE[:PORT[:GID]]"; empty: the best
  std::vector<int> cpus;    // of the initiator and the responder
  uint64_t seed = 0;
};

// From comma-separated texts. InvalidArgument names the option and the word
// that is wrong.
absl::StatusOr<std::vector<proto::TransportPath>> ParsePaths(
    const std::string& text);
absl::StatusOr<std::vector<Level>> ParseLevels(const std::string& text);
absl::StatusOr<std::vector<Op>> ParseOps(const std::string& text);
absl::StatusOr<std::vector<Mode>> ParseModes(const std::string& text);
// Bytes, or with K and M for 2¹⁰ and 2²⁰; ascending, without repeats.
absl::StatusOr<std::vector<size_t>> ParseSizes(const std::string& text);
// "" takes the first two processors that this process may use; one twice if
// there is no second.
absl::StatusOr<std::vector<int>> ParseCpus(const std::string& text);

// Checks the numbers. InvalidArgument names the option.
absl::Status CheckConfig(const Config& config);

}  // namespace refract::transport_meter

#endif  // REFRACT_TOOLS_TRANSPORT_METER_CONFIG_H_
