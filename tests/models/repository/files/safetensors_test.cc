#include "models/repository/files/safetensors.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/testing/temp_dir.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ReadFile;
using testing::TempDir;

// A file with `header` and `data`, its length field overridden by `length`.
std::string FileBytes(absl::string_view header, absl::string_view data,
                      int64_t length = -1) {
  uint64_t value = length < 0 ? header.size() : static_cast<uint64_t>(length);
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(value >> (8 * i)));
  }
  return absl::StrCat(bytes, header, data);
}

// The header that safetensors 0.8 for Python writes for
// {"b": int64 [1, -2], "a": float32 [[0.5]]}: largest dtype first.
constexpr absl::string_view kGoldenHeader =
    R"({"b":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
    R"("a":{"dtype":"F32","shape":[1,1],"data_offsets":[16,20]}})";

TEST(SafetensorsTest, ReadsWhatPythonWrites) {
  const TempDir dir;
  std::string data(20, '\0');
  data[0] = 1;
  for (int i = 8; i < 16; ++i) data[i] = static_cast<char>(0xFF);
  data[8] = static_cast<char>(0xFE);
  data[19] = 0x3F;  // 0x3F000000 is 0.5
  const auto file = SafetensorsFile::Open(
      dir.Write("t.safetensors", FileBytes(kGoldenHeader, data)));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->entries().size(), 2);
  const SafetensorsEntry* b = file->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, base::DType::kInt64);
  EXPECT_THAT(b->dims, ElementsAre(2));
  EXPECT_THAT(file->View(*b).as<int64_t>(), ElementsAre(1, -2));
  EXPECT_THAT(file->View(*file->Find("a")).as<float>(), ElementsAre(0.5f));
  EXPECT_EQ(file->Find("c"), nullptr);
}

TEST(SafetensorsTest, WritesWhatItReads) {
  const TempDir dir;
  base::Tensor ids = *base::Tensor::Allocate(base::DType::kInt64, {3});
  ids.as<int64_t>()[0] = 7;
  ids.as<int64_t>()[1] = -1;
  ids.as<int64_t>()[2] = INT64_MAX;
  base::Tensor empty = *base::Tensor::Allocate(base::DType::kFloat32, {0, 4});
  base::Tensor scalar = *base::Tensor::Allocate(base::DType::kFloat64, {});
  scalar.as<double>()[0] = 2.5;
  const std::string path = dir.File("w.safetensors");
  ASSERT_TRUE(WriteSafetensors(path, {{"ids", ids.view()},
                                      {"empty", empty.view()},
                                      {"scalar \"q\"", scalar.view()}})
                  .ok());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->View(*file->Find("ids")).as<int64_t>(),
              ElementsAre(7, -1, INT64_MAX));
  EXPECT_THAT(file->Find("empty")->dims, ElementsAre(0, 4));
  EXPECT_THAT(file->View(*file->Find("scalar \"q\"")).as<double>(),
              ElementsAre(2.5));
  EXPECT_EQ(file->Find("ids")->offset % base::kTensorAlignBytes, 0);
}

TEST(SafetensorsTest, RefusesToWriteNonsense) {
  const TempDir dir;
  base::Tensor one = *base::Tensor::Allocate(base::DType::kInt64, {1});
  base::TensorView wrong = one.view();
  wrong.bytes = 4;
  const std::string path = dir.File("w.safetensors");
  EXPECT_FALSE(
      WriteSafetensors(path, {{"a", one.view()}, {"a", one.view()}}).ok());
  base::TensorView unknown = one.view();
  unknown.dtype = base::DType::kUnknown;
  EXPECT_FALSE(WriteSafetensors(path, {{"a", unknown}}).ok());
  EXPECT_FALSE(WriteSafetensors(path, {{"a", wrong}}).ok());
  EXPECT_FALSE(WriteSafetensors(dir.File("no/dir"), {{"a", one.view()}}).ok());
}

struct BadCase {
  std::string name;
  std::string bytes;
  std::string message;
};

std::string Entry(absl::string_view dtype, absl::string_view shape,
                  absl::string_view offsets) {
  return absl::StrCat(R"({"dtype":")", dtype, R"(","shape":)", shape,
                      R"(,"data_offsets":)", offsets, "}");
}

class BadFileTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadFileTest, IsRefusedByName) {
  const TempDir dir;
  const auto status =
      SafetensorsFile::Open(dir.Write("bad.safetensors", GetParam().bytes))
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bad.safetensors: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

std::string OneTensor(absl::string_view dtype, absl::string_view shape,
                      absl::string_view offsets, size_t data_bytes) {
  return FileBytes(absl::StrCat(R"({"t":)", Entry(dtype, shape, offsets), "}"),
                   std::string(data_bytes, 'x'));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadFileTest,
    ::testing::Values(
        BadCase{"Empty", "", "too short"},
        BadCase{"Short", "1234567", "too short"},
        BadCase{"LengthBeyondFile", FileBytes("{}", "", 3), "truncated"},
        BadCase{"LengthHuge", FileBytes("{}", "", 100'000'001), "100 MB"},
        BadCase{"LengthAllOnes", std::string(16, '\xFF'), "100 MB"},
        BadCase{"LengthShort", FileBytes("{}  ", "", 1), "JSON"},
        BadCase{"NotJson", FileBytes("[[[[", ""), "JSON"},
        BadCase{"NotObject", FileBytes("[1]", ""), "JSON"},
        BadCase{"EntryNotObject", FileBytes(R"({"t":3})", ""),
                "tensor t: description"},
        BadCase{"NoDtype", FileBytes(R"({"t":{}})", ""), "tensor t: no dtype"},
        BadCase{"UnknownDtype", OneTensor("C64", "[1]", "[0,8]", 8),
                "tensor t: dtype C64"},
        BadCase{"NegativeDim", OneTensor("F32", "[-1]", "[0,4]", 4),
                "tensor t: bad dimension"},
        BadCase{"FloatDim", OneTensor("F32", "[1.5]", "[0,4]", 4),
                "bad dimension"},
        BadCase{"HugeDim",
                OneTensor("F32", "[99999999999999999999]", "[0,4]", 4),
                "bad dimension"},
        BadCase{"OverflowingDims",
                OneTensor("F32", "[4294967296,4294967296,4]", "[0,4]", 4),
                "tensor t"},
        BadCase{"ShapeTooLarge", OneTensor("F32", "[2]", "[0,4]", 4),
                "takes 8 bytes, data_offsets say 4"},
        BadCase{"OffsetsReversed", OneTensor("F32", "[1]", "[4,0]", 4),
                "bad data_offsets"},
        BadCase{"OffsetsNegative", OneTensor("F32", "[1]", "[-4,0]", 4),
                "bad data_offsets"},
        BadCase{"OffsetsThree", OneTensor("F32", "[1]", "[0,4,8]", 8),
                "no data_offsets"},
        BadCase{"Truncated", OneTensor("F32", "[2]", "[0,8]", 7),
                "tensor t: ends at byte 8 of 7"},
        BadCase{"LeftOver", OneTensor("F32", "[1]", "[0,4]", 5),
                "header describes"},
        BadCase{"Gap", OneTensor("F32", "[1]", "[4,8]", 8), "gap before it"},
        BadCase{"Overlap",
                FileBytes(absl::StrCat(R"({"a":)", Entry("F32", "[2]", "[0,8]"),
                                       R"(,"b":)",
                                       Entry("F32", "[2]", "[4,12]"), "}"),
                          std::string(12, 'x')),
                "tensor b overlaps"}),
    [](const auto& info) { return info.param.name; });

// The error is found without recursion into every level.
TEST(SafetensorsTest, DimensionsThatNestWithoutEndAreRefused) {
  const TempDir dir;
  constexpr int kDepth = 1'000'000;
  const std::string header =
      absl::StrCat(R"({"x":{"dtype":"F32","shape":[)", std::string(kDepth, '['),
                   std::string(kDepth, ']'), R"(],"data_offsets":[0,0]}})");
  const auto file =
      SafetensorsFile::Open(dir.Write("t.safetensors", FileBytes(header, "")));
  ASSERT_TRUE(absl::IsInvalidArgument(file.status())) << file.status();
  EXPECT_THAT(file.status().message(),
              HasSubstr("tensor x: bad dimension: an array"));
}

TEST(SafetensorsTest, SurvivesEveryTruncationAndFlip) {
  const TempDir dir;
  const std::string whole = FileBytes(kGoldenHeader, std::string(20, 'x'));
  for (size_t at = 0; at < whole.size(); ++at) {
    EXPECT_FALSE(
        SafetensorsFile::Open(dir.Write("t.safetensors", whole.substr(0, at)))
            .ok())
        << at;
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x04);
    const auto file =
        SafetensorsFile::Open(dir.Write("f.safetensors", flipped));
    if (!file.ok()) continue;
    for (const SafetensorsEntry& entry : file->entries()) {
      EXPECT_LE(entry.offset + entry.bytes, whole.size());
    }
  }
}

}  // namespace
}  // namespace refract::models
