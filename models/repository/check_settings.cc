#include "models/repository/check_settings.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "models/repository/model_config.h"
#include "proto/inference/model_config.pb.h"

namespace refract::models {
namespace {

// Most requests of model_warmup, which stay in memory with the version.
constexpr int kMostWarmUps = 64;
constexpr uint32_t kMostWarmUpRuns = 1000;
constexpr size_t kMostWarmUpBytes = size_t{64} << 20;
// Bounds the work per request: each request reads all shares.
constexpr size_t kMostShares = 16;

base::DType TypeOf(const Value& value) {
  return value.kind == ValueKind::kTensor ? value.dtype : base::DType::kInt64;
}

inference::DataType WarmUpTypeOf(const Value& value) {
  inference::DataType type = inference::TYPE_INVALID;
  inference::DataType_Parse(
      absl::StrCat("TYPE_", base::KServeName(TypeOf(value))), &type);
  return type;
}

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Reads an input of a request of model_warmup.
absl::StatusOr<WarmUpRequest::Input> ReadWarmUpInput(
    const inference::ModelWarmup::Input& given, const Value& wanted) {
  WarmUpRequest::Input input;
  if (given.data_type() != WarmUpTypeOf(wanted)) {
    return Invalid("data_type is ", inference::DataType_Name(given.data_type()),
                   ", the model's is ",
                   inference::DataType_Name(WarmUpTypeOf(wanted)));
  }
  // -1 in the graph's dims is a size that requests choose, so the file must
  // give a number for it.
  std::vector<int64_t> dims;
  for (const SymExpr& size : wanted.shape) {
    dims.push_back(size.constant().value_or(-1));
  }
  bool fits = wanted.kind != ValueKind::kTensor ||
              static_cast<size_t>(given.dims_size()) == dims.size() ||
              !wanted.has_shape;
  for (int i = 0; fits && i < given.dims_size(); ++i) {
    fits = given.dims(i) >= 0 &&
           (!wanted.has_shape || static_cast<size_t>(i) >= dims.size() ||
            dims[i] < 0 || dims[i] == given.dims(i));
    input.dims.push_back(given.dims(i));
  }
  if (!fits) {
    return Invalid("dims are [", absl::StrJoin(given.dims(), ", "),
                   "], the model's are [", absl::StrJoin(dims, ", "),
                   "], and each -1, also the batch, needs a number");
  }
  // Checked before anything is allocated: dims come from a file that people
  // edit.
  const auto bytes = base::ByteSize(TypeOf(wanted), input.dims);
  if (!bytes.ok() || *bytes > kMostWarmUpBytes) {
    return Invalid("dims give a tensor of more than ", kMostWarmUpBytes >> 20,
                   " MiB");
  }
  switch (given.input_data_type_case()) {
    case inference::ModelWarmup::Input::kRandomData:
      input.data = WarmUpRequest::Data::kRandom;
      break;
    case inference::ModelWarmup::Input::kInputDataFile:
      input.data = WarmUpRequest::Data::kFile;
      input.file = given.input_data_file();
      if (input.file.empty() || input.file.find('/') != std::string::npos ||
          input.file[0] == '.') {
        return Invalid("input_data_file is \"", input.file,
                       "\", wanted the name of a file in the model's folder "
                       "warmup");
      }
      break;
    case inference::ModelWarmup::Input::kZeroData:
      break;
    case inference::ModelWarmup::Input::INPUT_DATA_TYPE_NOT_SET:
      return Invalid(
          "has no data: give zero_data, random_data or input_data_file");
  }
  return input;
}

absl::StatusOr<WarmUpRequest> ReadWarmUp(const inference::ModelWarmup& given,
                                         const Graph& graph) {
  WarmUpRequest request;
  request.name = given.name();
  if (given.batch_size() > 1) {
    return Invalid("batch_size is ", given.batch_size(),
                   "; write 1 and let dims begin with the batch, as "
                   "max_batch_size is 0");
  }
  if (given.count() > kMostWarmUpRuns) {
    return Invalid("count is ", given.count(), ", wanted 0 to ",
                   kMostWarmUpRuns);
  }
  request.count = static_cast<int>(std::max<uint32_t>(1, given.count()));
  for (const ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    const auto found = given.inputs().find(value.name);
    if (found == given.inputs().end()) {
      return Invalid("inputs: the model's ", value.name, " is not listed");
    }
    auto input = ReadWarmUpInput(found->second, value);
    if (!input.ok()) {
      return base::Annotate(input.status(),
                            absl::StrCat("inputs ", value.name));
    }
    request.inputs.push_back(*std::move(input));
  }
  if (given.inputs().size() == request.inputs.size()) return request;
  // All inputs of the model are there, so a surplus is an input that the model
  // lacks. The least name, since protobuf's maps have no order.
  std::vector<std::string> others;
  for (const auto& [name, input] : given.inputs()) {
    const bool known = std::any_of(
        graph.inputs.begin(), graph.inputs.end(),
        [&, &name = name](ValueId id) { return graph.value(id).name == name; });
    if (!known) others.push_back(name);
  }
  return Invalid("inputs: the model has no input ",
                 *std::min_element(others.begin(), others.end()));
}

absl::Status ReadWarmUps(const inference::ModelConfig& config,
                         const Graph& graph, CheckSettings& result) {
  if (config.model_warmup_size() > kMostWarmUps) {
    return Invalid("model_warmup: ", config.model_warmup_size(),
                   " are listed, at most ", kMostWarmUps);
  }
  for (const inference::ModelWarmup& given : config.model_warmup()) {
    auto request = ReadWarmUp(given, graph);
    if (!request.ok()) {
      return base::Annotate(request.status(), absl::StrCat("model_warmup \"",
                                                           given.name(), "\""));
    }
    result.warm_up.push_back(*std::move(request));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TrafficShare>> TrafficOf(
    const inference::ModelConfig& config) {
  const auto found = config.parameters().find(kTrafficKey);
  if (found == config.parameters().end()) return std::vector<TrafficShare>();
  auto traffic = ParseTraffic(found->second.string_value());
  if (!traffic.ok()) {
    return base::Annotate(traffic.status(),
                          absl::StrCat("parameter ", kTrafficKey));
  }
  return traffic;
}

// `source` stands before an error of the traffic.
absl::StatusOr<std::vector<TrafficShare>> TrafficOf(
    const absl::StatusOr<inference::ModelConfig>& config,
    absl::string_view source) {
  REFRACT_RETURN_IF_ERROR(config.status());
  auto traffic = TrafficOf(*config);
  if (!traffic.ok()) return base::Annotate(traffic.status(), source);
  return traffic;
}

}  // namespace

absl::StatusOr<std::vector<TrafficShare>> ParseTraffic(absl::string_view text) {
  std::vector<TrafficShare> shares;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    TrafficShare share;
    if (!absl::SimpleAtoi(parts.first, &share.version) || share.version < 1 ||
        !absl::SimpleAtod(parts.second, &share.share) ||
        !(share.share >= 0 && share.share <= 1e6)) {
      return Invalid("\"", text,
                     "\" is not VERSION=SHARE,... as in \"3=95,4=5\", shares "
                     "from 0 to 1000000");
    }
    shares.push_back(share);
  }
  std::sort(shares.begin(), shares.end(),
            [](const TrafficShare& a, const TrafficShare& b) {
              return a.version < b.version;
            });
  for (size_t i = 1; i < shares.size(); ++i) {
    if (shares[i].version != shares[i - 1].version) continue;
    return Invalid("\"", text, "\" has version ", shares[i].version, " twice");
  }
  // A share of 0 takes a version out of the traffic.
  std::erase_if(shares, [](const TrafficShare& s) { return s.share == 0; });
  if (shares.empty() || shares.size() > kMostShares) {
    return Invalid("\"", text, "\" gives a share to ", shares.size(),
                   " versions, wanted 1 to ", kMostShares);
  }
  return shares;
}

absl::StatusOr<CheckSettings> ReadCheckSettings(
    const inference::ModelConfig& config, const Graph& graph) {
  CheckSettings settings;
  REFRACT_RETURN_IF_ERROR(ReadWarmUps(config, graph, settings));
  REFRACT_ASSIGN_OR_RETURN(settings.traffic, TrafficOf(config));
  const auto tolerance = config.parameters().find(kToleranceKey);
  if (tolerance == config.parameters().end()) return settings;
  const std::string& text = tolerance->second.string_value();
  double share = 0;
  if (!absl::SimpleAtod(text, &share) || !(share > 0 && share <= 1)) {
    return Invalid("parameter ", kToleranceKey, ": \"", text,
                   "\" is no number above 0 and up to 1");
  }
  settings.golden_tolerance = share;
  return settings;
}

absl::StatusOr<CheckSettings> ReadCheckSettings(absl::string_view config_text,
                                                const Graph& graph,
                                                absl::string_view path) {
  REFRACT_ASSIGN_OR_RETURN(const inference::ModelConfig config,
                           ParseConfigText(config_text, path));
  auto settings = ReadCheckSettings(config, graph);
  if (!settings.ok()) return base::Annotate(settings.status(), path);
  return settings;
}

absl::StatusOr<std::vector<TrafficShare>> TrafficOfOverride(
    absl::string_view json, absl::string_view name) {
  return TrafficOf(ParseVersionOverride(json, name), "config");
}

absl::StatusOr<std::vector<TrafficShare>> TrafficOfConfig(
    absl::string_view config_text, absl::string_view path) {
  return TrafficOf(ParseConfigText(config_text, path), path);
}

std::string SettingsThatReload(absl::string_view config_text) {
  auto config = ParseConfigText(config_text, "");
  if (!config.ok()) return std::string(config_text);
  config->clear_version_policy();
  config->mutable_parameters()->erase(kTrafficKey);
  return ConfigToText(*config);
}

}  // namespace refract::models
