#ifndef REFRACT_TESTS_MODELS_REPOSITORY_REPOSITORY_FIXTURE_H_
#define REFRACT_TESTS_MODELS_REPOSITORY_REPOSITORY_FIXTURE_H_

// A repository with models that have a table in a file of its own.

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "models/repository/files/safetensors.h"
#include "models/repository/repository.h"
#include "models/torch_export/import.h"
#include "tests/models/testing/pt2_archive.h"
#include "tests/models/testing/temp_dir.h"

namespace refract::models {

class RepositoryTest : public ::testing::Test {
 protected:
  RepositoryTest() : repository_(dir_.File("repo")) {}

  // A model whose table e.weight [rows, 4] lies in its own file.
  ImportedModel Import(int64_t rows = 10) {
    testing::Pt2Archive archive;
    archive.SetTensor(
        "p_e_weight", 7,
        {testing::Pt2Archive::Size(rows), testing::Pt2Archive::Size(4)});
    archive.weights["config"]["e.weight"] =
        testing::Pt2Archive::Payload("weight_0", {rows, 4}, {0, 1}, 0);
    const std::string path = dir_.Write("src/m.pt2", archive.Bytes());
    auto model = ImportTorchExport(path);
    EXPECT_TRUE(model.ok()) << model.status();
    std::filesystem::create_directories(dir_.File("tables"));
    base::Tensor table =
        *base::Tensor::Allocate(base::DType::kFloat32, {rows, 4});
    for (int64_t i = 0; i < rows * 4; ++i) {
      table.as<float>()[i] = static_cast<float>(i);
    }
    EXPECT_TRUE(WriteSafetensors(dir_.File("tables/e.safetensors"),
                                 {{"e.weight", table.view()}})
                    .ok());
    ImportOptions options;
    options.tables_dir = dir_.File("tables");
    EXPECT_TRUE(BindTables(options, *model).ok());
    return *std::move(model);
  }

  int64_t Add(const ImportedModel& model, bool link = false) {
    AddOptions options;
    options.link = link;
    const auto version = repository_.AddVersion("ctr", model, options);
    EXPECT_TRUE(version.ok()) << version.status();
    return version.value_or(-1);
  }

  std::string File(absl::string_view name) {
    return dir_.File(absl::StrCat("repo/ctr/", name));
  }

  testing::TempDir dir_;
  Repository repository_;
};

// Gives the file the time of a later edit: a test is too quick for clocks of
// file systems.
inline void Age(const std::string& path) {
  std::filesystem::last_write_time(
      path, std::filesystem::last_write_time(path) + std::chrono::seconds(2));
}

}  // namespace refract::models

#endif  // REFRACT_TESTS_MODELS_REPOSITORY_REPOSITORY_FIXTURE_H_
