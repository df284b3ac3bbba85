#ifndef REFRACT_MODELS_REPOSITORY_RESULT_SETTINGS_H_
#define REFRACT_MODELS_REPOSITORY_RESULT_SETTINGS_H_

// Settings of config.pbtxt that change a model's answers: all nodes that
// compute parts of a model must have the same settings.

#include <string>
#include <vector>

#include "models/repository/repository.h"

namespace refract::models {

// Texts, so that a node can compare and name a setting that it does not know.
struct ResultSetting {
  std::string name;   // the parameter of config.pbtxt
  std::string value;  // never the default

  friend bool operator==(const ResultSetting& a, const ResultSetting& b) {
    return a.name == b.name && a.value == b.value;
  }
};

// The settings that are not at their defaults, by name, each once. Policies of
// single tables are one setting, "out_of_range_ids.*", whose value is a digest
// if they are many; tables with the default policy do not count.
std::vector<ResultSetting> ResultSettingsOf(const ModelConfig& config);

// Longest value.
inline constexpr size_t kMaxResultSettingBytes = 48;

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_RESULT_SETTINGS_H_
