#include "models/repository/files/temporary_folder.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/testing/temp_dir.h"

namespace refract::models {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TemporaryFolderTest : public ::testing::Test {
 protected:
  TemporaryFolderTest() { fs::create_directories(model_ + "/1"); }

  const testing::TempDir folder_;
  const std::string repository_ = folder_.path();
  const std::string model_ = repository_ + "/m";
};

TEST_F(TemporaryFolderTest, IsRemovedUnlessItIsMoved) {
  std::string path;
  {
    const auto folder = TemporaryFolder::Create(model_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    path = folder->path();
    std::ofstream(path + "/file") << "x";
  }
  EXPECT_FALSE(fs::exists(path));
  {
    auto folder = TemporaryFolder::Create(model_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    std::ofstream(folder->path() + "/file") << "x";
    std::ofstream(model_ + "/1/file") << "x";
    EXPECT_EQ(*folder->MoveTo(model_ + "/1"), false);
    EXPECT_EQ(*folder->MoveTo(model_ + "/2"), true);
  }
  EXPECT_TRUE(fs::exists(model_ + "/2/file"));
  EXPECT_FALSE(TemporaryFolder::Create(repository_ + "/absent").ok());
}

// A group that shares a repository writes plans and deltas into its versions.
TEST_F(TemporaryFolderTest, TheUmaskAndTheParentDecideWhoMayWrite) {
  const auto mode_of = [&](mode_t mask, const std::string& version) {
    const mode_t former = umask(mask);
    auto folder = TemporaryFolder::Create(model_);
    umask(former);
    EXPECT_TRUE(folder.ok()) << folder.status();
    EXPECT_EQ(*folder->MoveTo(model_ + version), true);
    return fs::status(model_ + version).permissions();
  };
  EXPECT_EQ(mode_of(022, "/3"), fs::perms(0755));
  EXPECT_EQ(mode_of(077, "/4"), fs::perms(0700));
  fs::permissions(model_, fs::perms(02775));
  EXPECT_EQ(mode_of(002, "/5"), fs::perms(02775));
}

// A process that is killed removes nothing itself.
TEST_F(TemporaryFolderTest, IsAbandonedOnceItsProcessIsKilled) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto folder = TemporaryFolder::Create(model_);
    if (!folder.ok()) _exit(1);
    std::ofstream(folder->path() + "/half") << "12345";
    if (write(ready[1], "x", 1) != 1) _exit(1);
    pause();
  }
  close(ready[1]);
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_THAT(RemoveAbandoned(repository_), IsEmpty());

  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const auto removed = RemoveAbandoned(repository_);
  ASSERT_THAT(removed, SizeIs(1));
  EXPECT_EQ(removed[0].bytes, 5u);
  EXPECT_FALSE(fs::exists(removed[0].path));
  EXPECT_TRUE(fs::exists(model_ + "/1"));
  EXPECT_THAT(RemoveAbandoned(repository_), IsEmpty());
  EXPECT_THAT(RemoveAbandoned(repository_ + "/absent"), IsEmpty());
  close(ready[0]);
}

TEST_F(TemporaryFolderTest, AModelThatNeverWasLeavesNoFolder) {
  fs::create_directories(repository_ + "/never/.tmp-abcdef/tables");
  std::ofstream(repository_ + "/never/.tmp-abcdef/tables/t") << "x";
  EXPECT_THAT(RemoveAbandoned(repository_), SizeIs(1));
  EXPECT_FALSE(fs::exists(repository_ + "/never"));
  EXPECT_TRUE(fs::exists(model_));
}

}  // namespace
}  // namespace refract::models
