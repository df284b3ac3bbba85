#ifndef REFRACT_TESTS_PLACEMENT_TRACES_H_
#define REFRACT_TESTS_PLACEMENT_TRACES_H_

// The published cluster traces. Their licence keeps them out of the tree: the
// variable REFRACT_TRACES names their folder, by default shared/data beside the
// checkout.

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gtest/gtest.h"

namespace refract::placement {

// The path of a trace's file, or "" if it is not there.
inline std::string TraceFile(const std::string& name) {
  const char* traces = std::getenv("REFRACT_TRACES");
  const char* source = std::getenv("REFRACT_SOURCE_DIR");
  std::filesystem::path folder;
  if (traces != nullptr) {
    folder = traces;
  } else if (source != nullptr) {
    folder = std::filesystem::path(source).parent_path() / "shared/data";
  }
  const std::filesystem::path path = folder / name;
  return std::filesystem::exists(path) ? path.string() : "";
}

}  // namespace refract::placement

// Skips the test, with the reason, where the file is missing.
#define REFRACT_NEED_TRACE(variable, name)                              \
  const std::string variable = ::refract::placement::TraceFile(name);   \
  if (variable.empty()) {                                               \
    GTEST_SKIP() << "no " << (name)                                     \
                 << "; set REFRACT_TRACES to the folder of the traces"; \
  }

#endif  // REFRACT_TESTS_PLACEMENT_TRACES_H_
