// Each test logs through a pipe whose other end it reads, or does not read.
#include "base/log/log_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <sstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/shorten.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace refract::base {
namespace {

using ::testing::HasSubstr;

// glog writes to stderr whatever its flags say until it is initialised.
const bool glog_is_initialised = [] {
  google::InitGoogleLogging("log_writer_test");
  return true;
}();

class LogWriterTest : public ::testing::Test {
 protected:
  LogWriterTest() {
    EXPECT_EQ(pipe(ends_), 0);
    // The smallest capacity that Linux allows: one page.
    capacity_ = fcntl(ends_[1], F_SETPIPE_SZ, 4096);
  }
  ~LogWriterTest() override {
    close(ends_[0]);
    close(ends_[1]);
  }

  // Reads on a thread until the writing end is closed.
  void StartReader() {
    reader_ = std::thread([this] {
      char buffer[65536];
      ssize_t bytes;
      while ((bytes = read(ends_[0], buffer, sizeof(buffer))) > 0) {
        text_.append(buffer, static_cast<size_t>(bytes));
      }
    });
  }
  // Everything that the reader has read, to the pipe's end.
  const std::string& Read() {
    close(ends_[1]);
    reader_.join();
    ends_[1] = open("/dev/null", O_WRONLY);
    return text_;
  }

  int ends_[2];
  int capacity_ = 0;
  std::thread reader_;
  std::string text_;
};

TEST_F(LogWriterTest, WritesAllLinesInOrder) {
  StartReader();
  {
    LogWriter writer(LogFormat::kText, ends_[1]);
    for (int i = 0; i < 100; ++i) LOG(INFO) << "line " << i << " of the test";
    EXPECT_TRUE(writer.Flush(absl::Seconds(30)));
  }
  const std::string& text = Read();
  size_t at = 0;
  for (int i = 0; i < 100; ++i) {
    at = text.find(absl::StrCat("] line ", i, " of the test\n"), at);
    ASSERT_NE(at, std::string::npos) << i << "\n" << text;
  }
}

TEST_F(LogWriterTest, NobodyWaitsForAReaderWhoDoesNotRead) {
  constexpr int kLines = 40000;  // 4 MB: more than pipe and queue hold
  const std::string filler(80, 'x');
  auto writer = std::make_unique<LogWriter>(LogFormat::kText, ends_[1]);
  // Blocks for good where logging writes to the pipe.
  for (int i = 0; i < kLines; ++i) LOG(INFO) << filler;
  EXPECT_FALSE(writer->Flush(absl::Milliseconds(1)));
  // Once it is read the rest comes, and how much is missing.
  StartReader();
  EXPECT_TRUE(writer->Flush(absl::Seconds(30)));
  LOG(INFO) << "the end";
  EXPECT_TRUE(writer->Flush(absl::Seconds(30)));
  writer.reset();
  const std::string& text = Read();
  EXPECT_THAT(text, HasSubstr("the end"));
  size_t written = 0;
  for (size_t at = text.find(filler); at != std::string::npos;
       at = text.find(filler, at + 1)) {
    ++written;
  }
  EXPECT_LT(written, kLines);
  EXPECT_THAT(text, HasSubstr(absl::StrCat("refract: ", kLines - written,
                                           " lines of the log are missing")));
  // The lines that wait, the lines that are being written, the pipe.
  EXPECT_LT(text.size(), 2 * LogWriter::kMaxWaitingBytes + 65536);
}

TEST_F(LogWriterTest, EndsAlthoughNobodyReads) {
  const absl::Time begin = absl::Now();
  {
    LogWriter writer(LogFormat::kText, ends_[1]);
    for (int i = 0; i < 1000; ++i) LOG(INFO) << "line " << i << ".";
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  // Its thread goes on: the pipe must not be closed before the last line.
  char buffer[4096];
  std::string text;
  while (text.find("line 999.") == std::string::npos) {
    const ssize_t bytes = read(ends_[0], buffer, sizeof(buffer));
    ASSERT_GT(bytes, 0);
    text.append(buffer, static_cast<size_t>(bytes));
  }
}

// nlohmann reads what an own reader of JSON would have to.
TEST_F(LogWriterTest, WritesAnObjectPerLine) {
  StartReader();
  {
    LogWriter writer(LogFormat::kJson, ends_[1]);
    LOG(WARNING) << "a \"name\", two\nlines, \xff and no\x01more";
    EXPECT_EQ(writer.Exit("refract-test", absl::InternalError("the end")), 1);
  }
  std::istringstream lines(Read());
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  nlohmann::json json = nlohmann::json::parse(line);
  EXPECT_EQ(json["level"], "warning");
  EXPECT_EQ(json["message"],
            "a \"name\", two\nlines, \xef\xbf\xbd and no\x01more");
  EXPECT_THAT(json["source"].get<std::string>(),
              ::testing::MatchesRegex("log_writer_test.cc:[0-9]+"));
  absl::Time time;
  std::string error;
  ASSERT_TRUE(absl::ParseTime(absl::RFC3339_full,
                              json["time"].get<std::string>(), &time, &error))
      << error;
  EXPECT_LT(absl::AbsDuration(absl::Now() - time), absl::Minutes(5));
  ASSERT_TRUE(std::getline(lines, line));
  json = nlohmann::json::parse(line);
  EXPECT_EQ(json["level"], "error");
  EXPECT_EQ(json["message"], "the end");
  EXPECT_FALSE(std::getline(lines, line));
}

TEST_F(LogWriterTest, CutsLongLines) {
  StartReader();
  {
    LogWriter writer(LogFormat::kText, ends_[1]);
    LOG(INFO) << std::string(20000, 'y');
    LOG(INFO) << "the next";
  }
  const std::string& text = Read();
  EXPECT_THAT(text, HasSubstr("y…("));
  EXPECT_THAT(text, HasSubstr("the next"));
  EXPECT_LT(text.size(), kMaxLogLineBytes + 1000);
}

void LogAndDie() {
  LogWriter writer;
  LOG(INFO) << "before";
  CHECK(1 + 1 == 3) << "as it should";
}

TEST(LogWriterDeathTest, TheLineOfACheckIsWritten) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(LogAndDie(), "before(.|\n)*as it should");
}

void DieWithoutAReader() {
  int ends[2];
  if (pipe(ends) != 0) _exit(1);
  fcntl(ends[1], F_SETPIPE_SZ, 4096);
  dup2(ends[1], 2);
  LogWriter writer;
  for (int i = 0; i < 1000; ++i) LOG(INFO) << "a line that nobody reads";
  CHECK(1 + 1 == 3);
}

TEST(LogWriterDeathTest, ACheckEndsTheProcessAlthoughNobodyReads) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(DieWithoutAReader(), ::testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace refract::base
