#ifndef REFRACT_TESTS_MODELS_TESTING_TEMP_DIR_H_
#define REFRACT_TESTS_MODELS_TESTING_TEMP_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace refract::models::testing {

// A fresh folder, removed with everything in it.
class TempDir {
 public:
  TempDir() {
    path_ =
        (std::filesystem::temp_directory_path() / "refract-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const {
    return absl::StrCat(path_, "/", name);
  }
  // Writes `content` to File(name) and returns its path.
  std::string Write(absl::string_view name, absl::string_view content) const {
    const std::string path = File(name);
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path());
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    return path;
  }

 private:
  std::string path_;
};

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace refract::models::testing

#endif  // REFRACT_TESTS_MODELS_TESTING_TEMP_DIR_H_
