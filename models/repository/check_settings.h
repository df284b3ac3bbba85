#ifndef REFRACT_MODELS_REPOSITORY_CHECK_SETTINGS_H_
#define REFRACT_MODELS_REPOSITORY_CHECK_SETTINGS_H_

// Settings of config.pbtxt for bringing versions into service on a CPU node:
// requests to answer before, and the share of requests for each version. Apart
// from model_warmup they are parameters:
//   traffic            "3=95,4=5": shares of versions in the requests that name
//                      no version
//   golden_tolerance   how far answers may be from recorded answers, as a share
//                      of the largest (runtime/answers_apart.h)
// CheckConfig() checks them, too.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/tensor.h"
#include "models/graph/graph.h"

namespace inference {
class ModelConfig;
}  // namespace inference

namespace refract::models {

// Keys of parameters.
inline constexpr char kToleranceKey[] = "golden_tolerance";
inline constexpr char kTrafficKey[] = "traffic";

// A request of model_warmup.
struct WarmUpRequest {
  enum class Data : uint8_t { kZero, kRandom, kFile };
  struct Input {
    base::Dims dims;
    Data data = Data::kZero;
    std::string file;  // name in <repo>/<model>/warmup
  };
  std::string name;
  int count = 1;
  std::vector<Input> inputs;  // in the graph's order
};

// Share of a version in the requests that name no version.
struct TrafficShare {
  int64_t version = 0;
  double share = 0;  // relative to the other versions; above 0
  friend bool operator==(const TrafficShare&, const TrafficShare&) = default;
};

struct CheckSettings {
  // For runtime::Tolerance; nullopt: its default.
  std::optional<double> golden_tolerance;
  std::vector<WarmUpRequest> warm_up;
  // Ascending versions; empty: all requests go to the default version.
  std::vector<TrafficShare> traffic;
};

// InvalidArgument names the field.
absl::StatusOr<CheckSettings> ReadCheckSettings(
    const inference::ModelConfig& config, const Graph& graph);
// Reads the settings of a config.pbtxt; errors name `path`.
absl::StatusOr<CheckSettings> ReadCheckSettings(absl::string_view config_text,
                                                const Graph& graph,
                                                absl::string_view path);

// "3=95,4=5": version 3 gets 95 of 100 requests. InvalidArgument.
absl::StatusOr<std::vector<TrafficShare>> ParseTraffic(absl::string_view text);
// Shares in a JSON configuration that ParseVersionOverride() accepts; empty if
// it has none.
absl::StatusOr<std::vector<TrafficShare>> TrafficOfOverride(
    absl::string_view json, absl::string_view name);
// Shares in a config.pbtxt, ignoring its other fields; empty if it has none.
absl::StatusOr<std::vector<TrafficShare>> TrafficOfConfig(
    absl::string_view config_text, absl::string_view path);

// `config_text` without settings that a node applies without loading a version
// again: traffic and version_policy. Unchanged if it is no configuration.
std::string SettingsThatReload(absl::string_view config_text);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_CHECK_SETTINGS_H_
