#include "models/repository/result_settings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/digest.h"
#include "models/repository/model_config.h"

namespace refract::models {
namespace {

template <typename Setting>
std::string SettingText(const Texts<Setting>& texts, Setting setting) {
  for (const auto& [text, each] : texts) {
    if (each == setting) return std::string(text);
  }
  return "unknown";
}

}  // namespace

std::vector<ResultSetting> ResultSettingsOf(const ModelConfig& config) {
  const ModelConfig defaults;
  std::vector<ResultSetting> settings;
  if (config.dense_weights != defaults.dense_weights) {
    settings.push_back({"dense_weights",
                        SettingText(kDenseWeightsTexts, config.dense_weights)});
  }
  if (config.serving.gpu_precision != defaults.serving.gpu_precision) {
    settings.push_back(
        {"gpu_precision",
         SettingText(kGpuPrecisionTexts, config.serving.gpu_precision)});
  }
  if (config.default_id_policy != defaults.default_id_policy) {
    settings.push_back({"out_of_range_ids",
                        SettingText(kIdPolicyTexts, config.default_id_policy)});
  }
  std::vector<std::string> tables;
  for (const auto& [table, policy] : config.id_policies) {
    if (policy == config.default_id_policy) continue;
    tables.push_back(
        absl::StrCat(table, "=", SettingText(kIdPolicyTexts, policy)));
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
