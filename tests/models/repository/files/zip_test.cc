#include "models/repository/files/zip.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/testing/temp_dir.h"
#include "tests/models/testing/zip_writer.h"

namespace refract::models {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using testing::ZipWriter;

absl::StatusOr<ZipArchive> OpenBytes(const TempDir& dir,
                                     absl::string_view content) {
  return ZipArchive::Open(dir.Write("a.zip", content));
}

std::string Text(const ZipArchive& archive, absl::string_view name) {
  const ZipEntry* entry = archive.Find(name);
  if (entry == nullptr) return "(absent)";
  auto text = archive.CheckedText(*entry);
  return text.ok() ? std::string(*text) : text.status().ToString();
}

TEST(Crc32Test, HasTheStandardCheckValue) {
  const std::string text = "123456789";
  EXPECT_EQ(Crc32({reinterpret_cast<const std::byte*>(text.data()), 9}),
            0xCBF43926u);
  EXPECT_EQ(Crc32({}), 0u);
}

// Written by Python's zipfile module: entry "a/b.txt" with "hello\n", stored.
TEST(ZipTest, ReadsAnArchiveOfAnotherWriter) {
  const unsigned char kGolden[] = {
      0x50, 0x4b, 0x03, 0x04, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x21, 0x00, 0x20, 0x30, 0x3a, 0x36, 0x06, 0x00, 0x00, 0x00, 0x06, 0x00,
      0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0x61, 0x2f, 0x62, 0x2e, 0x74, 0x78,
      0x74, 0x68, 0x65, 0x6c, 0x6c, 0x6f, 0x0a, 0x50, 0x4b, 0x01, 0x02, 0x14,
      0x03, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x21, 0x00, 0x20,
      0x30, 0x3a, 0x36, 0x06, 0x00, 0x00, 0x00, 0x06, 0x00, 0x00, 0x00, 0x07,
      0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x80,
      0x01, 0x00, 0x00, 0x00, 0x00, 0x61, 0x2f, 0x62, 0x2e, 0x74, 0x78, 0x74,
      0x50, 0x4b, 0x05, 0x06, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x01, 0x00,
      0x35, 0x00, 0x00, 0x00, 0x2b, 0x00, 0x00, 0x00, 0x00, 0x00};
  const TempDir dir;
  const auto archive =
      OpenBytes(dir, {reinterpret_cast<const char*>(kGolden), sizeof(kGolden)});
  ASSERT_TRUE(archive.ok()) << archive.status();
  EXPECT_EQ(Text(*archive, "a/b.txt"), "hello\n");
}

TEST(ZipTest, FindsPayloadsInPlace) {
  const TempDir dir;
  for (bool zip64 : {false, true}) {
    for (absl::string_view comment : {"", "a comment PK\5\6 in it"}) {
      const std::string bytes =
          ZipWriter()
              .Add("m/a", "first")
              .Add({.name = "m/b", .content = "second", .zip64 = zip64})
              .Add("m/empty", "")
              .Finish(zip64, comment);
      const auto archive = OpenBytes(dir, bytes);
      ASSERT_TRUE(archive.ok()) << archive.status();
      ASSERT_EQ(archive->entries().size(), 3);
      EXPECT_EQ(Text(*archive, "m/a"), "first");
      EXPECT_EQ(Text(*archive, "m/b"), "second");
      EXPECT_EQ(Text(*archive, "m/empty"), "");
      EXPECT_EQ(archive->Find("m/a")->offset % 64, 0);
      EXPECT_EQ(bytes.substr(archive->Find("m/b")->offset, 6), "second");
      EXPECT_EQ(archive->Find("m/none"), nullptr);
    }
  }
}

TEST(ZipTest, RefusesWhatIsNoZip) {
  const TempDir dir;
  for (absl::string_view content : {"", "PK", "not a zip archive at all"}) {
    const auto status = OpenBytes(dir, content).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("a.zip"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("not a zip"));
  }
  EXPECT_EQ(ZipArchive::Open(dir.File("absent")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(ZipTest, RefusesEveryTruncation) {
  const TempDir dir;
  const std::string whole =
      ZipWriter().Add("m/a", "first").Add("m/b", "second").Finish(true);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const auto archive = OpenBytes(dir, whole.substr(0, bytes));
    EXPECT_EQ(archive.status().code(), absl::StatusCode::kInvalidArgument)
        << bytes;
  }
}

TEST(ZipTest, SurvivesEveryFlippedByte) {
  const TempDir dir;
  const std::string whole =
      ZipWriter()
          .Add("m/a", "first")
          .Add({.name = "m/b", .content = "second", .zip64 = true})
          .Finish(true);
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int mask : {0x01, 0xFF}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ mask);
      const auto archive = OpenBytes(dir, bytes);
      if (!archive.ok()) continue;
      // Every entry lies within the file.
      for (const ZipEntry& entry : archive->entries()) {
        EXPECT_LE(entry.offset, bytes.size());
        EXPECT_LE(entry.bytes, bytes.size() - entry.offset);
        (void)archive->CheckedText(entry);
      }
    }
  }
}

TEST(ZipTest, RefusesADirectoryThatLies) {
  const TempDir dir;
  const std::string whole = ZipWriter().Add("m/a", "first").Finish();
  const size_t end = whole.size() - 22;
  auto with = [&](size_t at, unsigned char value) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(value);
    return std::string(OpenBytes(dir, bytes).status().message());
  };
  EXPECT_THAT(with(end + 19, 0x7F), HasSubstr("lies outside the file"));
  EXPECT_THAT(with(end + 12, 0x10), HasSubstr("can't hold 1 entries"));
  EXPECT_THAT(with(end + 10, 0), HasSubstr("left over"));
  EXPECT_THAT(with(end + 4, 3), HasSubstr("several parts"));
  const size_t directory = whole.find("PK\1\2");
  EXPECT_THAT(with(directory, 'X'), HasSubstr("directory is damaged"));
  EXPECT_THAT(with(directory + 42, 5), HasSubstr("m/a has no header"));
  EXPECT_THAT(with(directory + 20, 99), HasSubstr("m/a: sizes disagree"));
}

TEST(ZipTest, NamesEntriesThatCannotBeUsed) {
  const TempDir dir;
  auto archive = OpenBytes(
      dir, ZipWriter()
               .Add({.name = "m/deflated", .content = "x", .method = 8})
               .Add({.name = "m/damaged", .content = "x", .crc_delta = 1})
               .Finish());
  ASSERT_TRUE(archive.ok()) << archive.status();
  EXPECT_THAT(Text(*archive, "m/deflated"),
              HasSubstr("entry m/deflated is compressed"));
  EXPECT_THAT(Text(*archive, "m/damaged"),
              HasSubstr("entry m/damaged is damaged"));

  EXPECT_THAT(
      std::string(
          OpenBytes(dir, ZipWriter().Add("m/a", "1").Add("m/a", "2").Finish())
              .status()
              .message()),
      HasSubstr("m/a is there twice"));
  EXPECT_EQ(
      OpenBytes(dir, ZipWriter().Add({.name = "m/a", .flags = 1}).Finish())
          .status()
          .code(),
      absl::StatusCode::kUnimplemented);
  EXPECT_THAT(
      std::string(
          OpenBytes(
              dir,
              ZipWriter().Add({.name = "m/a", .local_name = "m/b"}).Finish())
              .status()
              .message()),
      HasSubstr("its header has another name"));
}

}  // namespace
}  // namespace refract::models
