#include "models/repository/result_settings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/digest.h"

namespace refract::models {
namespace {

// The texts of config.pbtxt.
const char* Name(DenseWeights form) {
  switch (form) {
    case DenseWeights::kFloat32:
      return "fp32";
    case DenseWeights::kBFloat16:
      return "bf16";
    case DenseWeights::kInt8:
      return "int8";
  }
  return "unknown";
}

const char* Name(GpuPrecision precision) {
  switch (precision) {
    case GpuPrecision::kFloat32:
      return "fp32";
    case GpuPrecision::kTf32:
      return "tf32";
    case GpuPrecision::kFloat16:
      return "fp16";
    case GpuPrecision::kBFloat16:
      return "bf16";
  }
  return "unknown";
}

const char* Name(IdPolicy policy) {
  switch (policy) {
    case IdPolicy::kError:
      return "error";
    case IdPolicy::kZeroRow:
      return "zero";
    case IdPolicy::kDefaultRow:
      return "default";
  }
  return "unknown";
}

}  // namespace

std::vector<ResultSetting> ResultSettingsOf(const ModelConfig& config) {
  const ModelConfig defaults;
  std::vector<ResultSetting> settings;
  if (config.dense_weights != defaults.dense_weights) {
    settings.push_back({"dense_weights", Name(config.dense_weights)});
  }
  if (config.serving.gpu_precision != defaults.serving.gpu_precision) {
    settings.push_back({"gpu_precision", Name(config.serving.gpu_precision)});
  }
  if (config.default_id_policy != defaults.default_id_policy) {
    settings.push_back({"out_of_range_ids", Name(config.default_id_policy)});
  }
  std::vector<std::string> tables;
  for (const auto& [table, policy] : config.id_policies) {
    if (policy == config.default_id_policy) continue;
    tables.push_back(absl::StrCat(table, "=", Name(policy)));
  }
  if (!tables.empty()) {
    std::sort(tables.begin(), tables.end());
    std::string value = absl::StrJoin(tables, ",");
    if (value.size() > kMaxResultSettingBytes) {
      value = base::DigestOf(value).ToHex();
    }
    settings.push_back({"out_of_range_ids.*", std::move(value)});
  }
  return settings;
}

}  // namespace refract::models
