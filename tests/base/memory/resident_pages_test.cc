#include "base/memory/resident_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/process/mapped_file.h"

namespace refract::base {
namespace {

// Resident kilobytes of the mappings of `path` in this process.
int64_t ResidentKilobytes(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool ours = false;
  int64_t total = 0;
  while (std::getline(maps, line)) {
    const size_t colon = line.find(':');
    const bool is_head = line.find('-') < line.find(' ');
    if (is_head) ours = line.ends_with(path);
    if (ours && colon != std::string::npos && line.starts_with("Rss:")) {
      total += std::stoll(line.substr(colon + 1));
    }
  }
  return total;
}

TEST(ResidentPagesTest, PagesGoAndComeBackWhenTouched) {
  const std::string path = ::testing::TempDir() + "resident_pages_test.bin";
  constexpr int64_t kBytes = int64_t{4} << 20;
  std::string content(kBytes, '\0');
  for (size_t i = 0; i < content.size(); ++i) {
    content[i] = static_cast<char>(i * 7 + i / 4096);
  }
  std::ofstream(path, std::ios::binary) << content;
  const auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok());
  const auto bytes = (*file)->bytes();
  const auto same = [&] {
    return std::equal(content.begin(), content.end(),
                      reinterpret_cast<const char*>(bytes.data()));
  };
  ASSERT_TRUE(same());
  EXPECT_EQ(ResidentKilobytes(path), kBytes / 1024);
  // The pages at both ends are only partly in the range. The system may drop
  // more where it maps large pages.
  DropResidentPages(bytes.subspan(100, kBytes / 2));
  EXPECT_LE(ResidentKilobytes(path), kBytes / 2 / 1024 + 8);
  EXPECT_TRUE(same());
  // Less than a page, and an empty range.
  DropResidentPages(bytes.subspan(10, 4000));
  DropResidentPages({});
  EXPECT_EQ(ResidentKilobytes(path), kBytes / 1024);
}

}  // namespace
}  // namespace refract::base
