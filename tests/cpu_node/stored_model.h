#ifndef REFRACT_TESTS_CPU_NODE_STORED_MODEL_H_
#define REFRACT_TESTS_CPU_NODE_STORED_MODEL_H_

// The small model in a repository on disk.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "models/import.h"
#include "models/repository/repository.h"
#include "tests/cpu_node/small_model.h"

namespace refract::testing_models {

// A folder with a repository, gone after the test.
class StoredModels {
 public:
  StoredModels() {
    folder_ = (std::filesystem::path(testing::TempDir()) / "stored_XXXXXX");
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }
  ~StoredModels() { std::filesystem::remove_all(folder_); }

  models::Repository repository() const { return models::Repository(path()); }
  std::string path() const { return folder_ + "/repo"; }
  std::string File(absl::string_view name) const {
    return absl::StrCat(path(), "/", name);
  }

  // Adds the next version of `name`, with a plan where `split`.
  int64_t Add(const std::string& name, bool split = true, int variant = 0) {
    models::ImportedModel imported;
    imported.graph = MakeGraph();
    imported.source_path = folder_ + "/model.pt2";
    std::ofstream(imported.source_path) << "the original file";
    const std::string weights = folder_ + "/dense.weights";
    WriteWeights(weights, variant);
    imported.weights = MakeWeightTable(weights);
    const auto version = repository().AddVersion(name, imported, {});
    EXPECT_TRUE(version.ok()) << version.status();
    if (split) AddPlan(name, *version);
    return *version;
  }

  void AddPlan(const std::string& name, int64_t version) {
    const auto loaded = repository().Load(name, version, {.with_plan = false});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const absl::Status saved = models::SavePlan(
        (*loaded)->graph, MakePlan((*loaded)->graph, (*loaded)->digest),
        File(absl::StrCat(name, "/", version, "/split_plan.pb")));
    ASSERT_TRUE(saved.ok()) << saved;
  }

  // Overwrites a byte of a file in place, at a later time; the size stays.
  void Damage(absl::string_view name) {
    const std::string path = File(name);
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(-2, std::ios::end);
      const int byte = file.get();
      file.seekp(-2, std::ios::end);
      file.put(static_cast<char>(byte ^ 0x40));
      ASSERT_TRUE(file.flush().good()) << path;
    }
    std::filesystem::last_write_time(
        path, std::filesystem::last_write_time(path) + std::chrono::seconds(2));
  }

 private:
  std::string folder_;
};

}  // namespace refract::testing_models

#endif  // REFRACT_TESTS_CPU_NODE_STORED_MODEL_H_
