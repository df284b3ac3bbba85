#include "base/process/file_reads.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/memory/large_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::base {
namespace {

using ::testing::HasSubstr;

constexpr size_t kFileBytes = (size_t{3} << 20) + 777;

class FileReadsTest : public ::testing::Test {
 protected:
  FileReadsTest() {
    std::mt19937_64 random(1);
    content_.resize(kFileBytes);
    for (char& c : content_) c = static_cast<char>(random());
    std::ofstream(path_, std::ios::binary) << content_;
    file_ = *ReadFile::Open(path_);
  }
  ~FileReadsTest() override { std::filesystem::remove(path_); }

  // `count` reads of one or two blocks at random places.
  void ExpectReads(size_t count, unsigned seed) {
    std::mt19937_64 random(seed);
    const auto memory = *LargeMemory::Allocate(count * 2 * kReadAlignBytes,
                                               LargeMemory::Pages::kSmall);
    std::vector<FileRead> reads;
    for (size_t i = 0; i < count; ++i) {
      FileRead read;
      read.file = file_.get();
      read.offset = random() % (kFileBytes / kReadAlignBytes) * kReadAlignBytes;
      read.bytes = (1 + random() % 2) * kReadAlignBytes;
      read.wanted = std::min<size_t>(read.bytes, kFileBytes - read.offset);
      read.to = memory->bytes().data() + i * 2 * kReadAlignBytes;
      reads.push_back(read);
    }
    size_t failed = 0;
    ASSERT_TRUE(ReadAll(reads, failed).ok());
    for (const FileRead& read : reads) {
      ASSERT_EQ(std::string(reinterpret_cast<const char*>(read.to),
                            read.wanted),
                content_.substr(read.offset, read.wanted));
    }
  }

  // In the working folder, which is on a disk where /tmp may be memory.
  const std::string path_ = absl::StrCat("file_reads_test.", getpid());
  std::string content_;
  std::shared_ptr<const ReadFile> file_;
};

TEST_F(FileReadsTest, ReadsManyPlacesAtOnce) {
  for (const size_t count : {0, 1, 127, 128, 129, 1000}) {
    ExpectReads(count, static_cast<unsigned>(count));
  }
}

TEST_F(FileReadsTest, ThreadsHaveRingsOfTheirOwn) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (unsigned i = 0; i < 10; ++i) ExpectReads(150, t * 100 + i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(FileReadsTest, NamesFileAndByteOfAShortReadAmongOthers) {
  const auto memory = *LargeMemory::Allocate(300 * kReadAlignBytes,
                                             LargeMemory::Pages::kSmall);
  std::vector<FileRead> reads;
  for (size_t i = 0; i < 300; ++i) {
    FileRead read;
    read.file = file_.get();
    read.offset = i * kReadAlignBytes;
    read.bytes = read.wanted = kReadAlignBytes;
    read.to = memory->bytes().data() + i * kReadAlignBytes;
    reads.push_back(read);
  }
  reads[211].offset = kFileBytes / kReadAlignBytes * kReadAlignBytes;
  size_t failed = 0;
  const absl::Status status = ReadAll(reads, failed);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(failed, 211u);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat(path_, ": read of 4096 bytes at byte ",
                                     reads[211].offset)));
  // The ring is whole.
  ExpectReads(200, 3);
}

TEST_F(FileReadsTest, NamesAMissingFile) {
  const absl::Status status = ReadFile::Open("no/such.file").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no/such.file"));
}

// The other way, in a process of its own: the way is chosen once.
TEST(FileReadsWithoutRingsTest, ReadsTheSame) {
  if (std::getenv("REFRACT_IO_URING") != nullptr) {
    EXPECT_EQ(ReadMethodOfProcess(), ReadMethod::kPread);
    return;
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  EXPECT_EQ(std::system(
                absl::StrCat("REFRACT_IO_URING=off '", self, "' > /dev/null")
                    .c_str()),
            0);
}

}  // namespace
}  // namespace refract::base
