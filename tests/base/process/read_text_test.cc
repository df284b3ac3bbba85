#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
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

// A limit on the size of files stands for a full disk.
TEST(WriteTextTest, LeavesNoFileThatIsUnfinished) {
  const std::string file = testing::TempDir() + "/write_text_unfinished";
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status written = WriteText(file, std::string(200000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(written, absl::UnavailableError(
                         file + ": cannot be written: File too large"));
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(ReplaceTextTest, APipeStaysAPipe) {
  const std::string pipe = testing::TempDir() + "/replace_text_pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  // Open for both ways: the writer need not wait for a reader.
  const int fd = open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  EXPECT_TRUE(ReplaceText(pipe, "text").ok());
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  char read_back[8];
  EXPECT_EQ(read(fd, read_back, sizeof(read_back)), 4);
  close(fd);
  std::remove(pipe.c_str());
}

}  // namespace
}  // namespace refract::base
