#ifndef REFRACT_TESTS_TOOLS_COMMAND_LINE_FIXTURE_H_
#define REFRACT_TESTS_TOOLS_COMMAND_LINE_FIXTURE_H_

// `refract` in this process, and a tiny model for it.

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "models/repository/files/safetensors.h"
#include "models/repository/repository.h"
#include "nlohmann/json.hpp"
#include "tests/tools/tiny_model.h"
#include "tools/command_line.h"

namespace refract::tools {

struct Ran {
  int exit_status = 0;
  std::string out;
  std::string err;
};

inline Ran Refract(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  Ran ran;
  ran.exit_status = RunCommandLine(arguments, out, err);
  ran.out = out.str();
  ran.err = err.str();
  return ran;
}

// Exit 2 and exactly one line on stderr; returns it.
inline std::string Refused(const std::vector<std::string>& arguments) {
  const Ran ran = Refract(arguments);
  EXPECT_EQ(ran.exit_status, 2) << ran.err;
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  EXPECT_TRUE(!ran.err.empty() && ran.err.back() == '\n');
  return ran.err;
}

class CommandLineTest : public testing::Test {
 protected:
  // Adds the tiny model to a repository and returns DIR/NAME.
  std::string AddModel(float first_weight = 0.5f) {
    const models::ImportedModel model = TinyModel::Make(folder_, first_weight);
    const absl::StatusOr<int64_t> version =
        models::Repository(folder_ / "repo").AddVersion("tiny", model, {});
    EXPECT_TRUE(version.ok()) << version.status();
    return folder_ / "repo/tiny";
  }

  nlohmann::json ReadJson(const std::string& path) {
    std::ifstream file(path);
    return nlohmann::json::parse(file);
  }

  // Inputs of three items.
  std::string Inputs(const std::string& name = "x.safetensors") {
    const base::Tensor dense = MakeTensor<float>(base::DType::kFloat32, {3, 2},
                                                 {1, 2, -0.5f, 0.25f, 4, 0});
    const base::Tensor ids =
        MakeTensor<int64_t>(base::DType::kInt64, {3}, {0, 3, 4});
    WriteTensors(folder_ / name, {{"dense", &dense}, {"ids", &ids}});
    return folder_ / name;
  }

  std::vector<float> Scores(const std::string& path) {
    const absl::StatusOr<models::SafetensorsFile> file =
        models::SafetensorsFile::Open(path);
    if (!file.ok() || file->Find("output_0") == nullptr) {
      ADD_FAILURE() << path << ": " << file.status();
      return {};
    }
    const models::SafetensorsEntry* entry = file->Find("output_0");
    EXPECT_EQ(entry->dims, (std::vector<int64_t>{3, 1}));
    const absl::Span<const float> values = file->View(*entry).as<float>();
    return {values.begin(), values.end()};
  }

  TempFolder folder_;
};

}  // namespace refract::tools

#endif  // REFRACT_TESTS_TOOLS_COMMAND_LINE_FIXTURE_H_
