#include "models/repository/files/copy_file.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/testing/temp_dir.h"

namespace refract::models {
namespace {

TEST(ScopedCopyProgress, EndsTheReadingOfAFile) {
  const testing::TempDir dir;
  // Several of the pieces after which `show` is called.
  const std::string file = dir.Write("table", std::string(20 << 20, 'x'));
  int calls = 0;
  const ScopedCopyProgress progress(
      [&](const auto&...) { return ++calls < 2; });
  EXPECT_EQ(DigestFile(file).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace refract::models
