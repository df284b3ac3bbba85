#include <sys/stat.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "base/process/files.h"
#include "gtest/gtest.h"

namespace refract::base {
namespace {

TEST(ReadTextTest, ReadsFilesAndPipesWhole) {
  const std::string folder = testing::TempDir();
  const std::string file = folder + "/read_text";
  // Longer than a pipe holds, with bytes that text files seldom have.
  std::string text(200000, 'x');
  text[7] = '\0';
  ASSERT_TRUE(WriteText(file, text).ok());
  EXPECT_EQ(*ReadText(file), text);
  ASSERT_TRUE(WriteText(file, "").ok());
  EXPECT_EQ(*ReadText(file), "");
  std::remove(file.c_str());

  const std::string pipe = folder + "/read_text_pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { EXPECT_TRUE(WriteText(pipe, text).ok()); });
  EXPECT_EQ(*ReadText(pipe), text);
  writer.join();
  std::remove(pipe.c_str());
}

TEST(ReadTextTest, ErrorsNameThePath) {
  EXPECT_EQ(ReadText("/no/such").status(),
            absl::NotFoundError(
                "/no/such: cannot be read: No such file or directory"));
  EXPECT_EQ(ReadText("/tmp").status(),
            absl::InvalidArgumentError("/tmp: cannot be read: Is a directory"));
}

}  // namespace
}  // namespace refract::base
