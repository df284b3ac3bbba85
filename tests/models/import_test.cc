#include "models/import.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/repository/files/safetensors.h"
#include "tests/models/testing/pt2_archive.h"
#include "tests/models/testing/temp_dir.h"
#include "tests/models/testing/zip_writer.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Pt2Archive;
using testing::TempDir;
using testing::ZipWriter;

TEST(DetectArchiveTest, LooksAtTheContent) {
  const TempDir dir;
  const auto exported =
      DetectArchive(dir.Write("wrong_name.pt", Pt2Archive().Bytes()));
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ(*exported, ArchiveKind::kTorchExport);
  const auto script =
      DetectArchive(dir.Write("b.pt2", ZipWriter()
                                           .Add("m/data.pkl", "x")
                                           .Add("m/code/__torch__.py", "x")
                                           .Add("m/constants.pkl", "x")
                                           .Finish()));
  ASSERT_TRUE(script.ok()) << script.status();
  EXPECT_EQ(*script, ArchiveKind::kTorchScript);
}

TEST(DetectArchiveTest, SaysWhatAForeignFileIs) {
  const TempDir dir;
  auto message = [&](absl::string_view content) {
    const auto status = DetectArchive(dir.Write("f.pt", content)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("f.pt: "));
    return std::string(status.message());
  };
  EXPECT_THAT(message("hello"), HasSubstr("not a zip"));
  EXPECT_THAT(message(ZipWriter().Add("word/document.xml", "x").Finish()),
              HasSubstr("no PyTorch model"));
  EXPECT_THAT(message(ZipWriter().Add("m/data.pkl", "x").Finish()),
              HasSubstr("torch.save"));
  EXPECT_THAT(
      message(
          ZipWriter().Add("serialized_exported_program.json", "x").Finish()),
      HasSubstr("export it again"));
  EXPECT_THAT(message(Pt2Archive().Bytes().substr(0, 2000)),
              HasSubstr("truncated"));
  // Every message ends with the remedy.
  const auto remedy = HasSubstr("torch.export.save");
  for (const char* text : {"hello", "\x89HDF\r\n", "\x80\x02}q."}) {
    EXPECT_THAT(message(text), remedy);
  }
  const std::string onnx = message("\x08\x09\x12\x07pytorch");
  EXPECT_THAT(onnx, HasSubstr("ONNX"));
  EXPECT_THAT(onnx, remedy);
  EXPECT_THAT(message(ZipWriter().Add("m/data.pkl", "x").Finish()), remedy);
}

// A model with one stand-in table [3, 2] and one real parameter.
class BindTablesTest : public ::testing::Test {
 protected:
  BindTablesTest() {
    model_.source_path = "model.pt2";
    model_.weights.entries = {
        {"t", "model.pt2", 64, 4, base::DType::kFloat32, {3, 2}, {0, 0}, 0},
        {"w", "model.pt2", 128, 8, base::DType::kFloat32, {2}, {1}, 0}};
    model_.weights.files = {{"model.pt2", 200, {}}};
    options_.tables_dir = dir_.path();
  }

  void WriteTable(absl::string_view file, const std::string& name,
                  base::DType dtype, absl::Span<const int64_t> dims) {
    base::Tensor tensor = *base::Tensor::Allocate(dtype, dims);
    ASSERT_TRUE(
        WriteSafetensors(dir_.File(file), {{name, tensor.view()}}).ok());
  }

  std::string Message() {
    const absl::Status status = BindTables(options_, model_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  TempDir dir_;
  ImportedModel model_;
  ImportOptions options_;
};

TEST_F(BindTablesTest, PointsStandInsAtTheFile) {
  WriteTable("t.safetensors", "t", base::DType::kFloat32, {3, 2});
  dir_.Write("notes.txt", "not a table");
  ASSERT_TRUE(BindTables(options_, model_).ok());
  const WeightEntry& entry = model_.weights.entries[0];
  EXPECT_EQ(entry.file, dir_.File("t.safetensors"));
  EXPECT_EQ(entry.bytes, 24);
  EXPECT_THAT(entry.strides, ElementsAre(2, 1));
  ASSERT_EQ(model_.weights.files.size(), 2);
  EXPECT_EQ(model_.weights.files[1].bytes, entry.offset + entry.bytes);
  EXPECT_TRUE(WeightStore::Open("", {{entry}, {model_.weights.files[1]}}).ok());
}

TEST_F(BindTablesTest, TakesHalvesForFloats) {
  Value value;
  value.weight = "t";
  model_.graph.values = {value};
  WriteTable("t.safetensors", "t", base::DType::kBFloat16, {3, 2});
  ASSERT_TRUE(BindTables(options_, model_).ok());
  const WeightEntry& entry = model_.weights.entries[0];
  EXPECT_EQ(entry.dtype, base::DType::kFloat32);
  EXPECT_EQ(entry.bytes, 12);
  ASSERT_TRUE(entry.rows);
  EXPECT_EQ(entry.rows->format.element, RowElement::kBFloat16);
  EXPECT_EQ(entry.rows->stride, 4);
  EXPECT_EQ(model_.graph.values[0].row_bytes, 4);
}

TEST_F(BindTablesTest, NamesWhatDoesNotFit) {
  WriteTable("t.safetensors", "t", base::DType::kFloat32, {4, 2});
  EXPECT_THAT(Message(), HasSubstr("t.safetensors: tensor t: is float32[4, 2], "
                                   "the model's parameter is float32[3, 2]"));
  WriteTable("t.safetensors", "t", base::DType::kInt32, {3, 2});
  EXPECT_THAT(Message(), HasSubstr("is int32[3, 2]"));
  // Rows decode to float32, which is not what a float64 parameter gives.
  model_.weights.entries[0].dtype = base::DType::kFloat64;
  WriteTable("t.safetensors", "t", base::DType::kFloat16, {3, 2});
  EXPECT_THAT(Message(), HasSubstr("is float16[3, 2]"));
  model_.weights.entries[0].dtype = base::DType::kFloat32;
  WriteTable("t.safetensors", "other", base::DType::kFloat32, {3, 2});
  EXPECT_THAT(Message(), HasSubstr("tensor other: the model has no parameter"));
}

TEST_F(BindTablesTest, LeavesOutTablesThatNothingReads) {
  WriteTable("t.safetensors", "t", base::DType::kFloat32, {3, 2});
  WriteTable("u.safetensors", "unused", base::DType::kFloat32, {9, 2});
  WriteTable("v.safetensors", "unused.ids", base::DType::kInt64, {9});
  model_.unread = {"unused"};
  ASSERT_TRUE(BindTables(options_, model_).ok());
  ASSERT_EQ(model_.weights.files.size(), 2);
  EXPECT_EQ(model_.weights.files[1].file, dir_.File("t.safetensors"));
}

TEST_F(BindTablesTest, RefusesATensorInTwoFiles) {
  WriteTable("a.safetensors", "t", base::DType::kFloat32, {3, 2});
  WriteTable("b.safetensors", "t", base::DType::kFloat32, {3, 2});
  EXPECT_THAT(Message(), HasSubstr("b.safetensors: tensor t: is also in"));
}

TEST_F(BindTablesTest, RefusesFilesOfTheWrongSize) {
  WriteTable("t.safetensors", "t", base::DType::kFloat32, {3, 2});
  const std::string bytes = testing::ReadFile(dir_.File("t.safetensors"));
  dir_.Write("t.safetensors", bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(Message(), HasSubstr("t.safetensors: tensor t: ends at byte 24 "
                                   "of 23: the file is truncated"));
}

TEST_F(BindTablesTest, RefusesDataThatIsNotAligned) {
  // 8 bytes of length and a header of 59: the floats begin at byte 67.
  std::string header =
      R"({"t":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]}})";
  header.resize(59, ' ');
  dir_.Write("t.safetensors", std::string("\x3b\0\0\0\0\0\0\0", 8) + header +
                                  std::string(24, '\0'));
  EXPECT_THAT(Message(), HasSubstr("tensor t: begins at byte 67"));
}

TEST_F(BindTablesTest, RefusesStandInsWithoutValues) {
  WriteTable("w.safetensors", "w", base::DType::kFloat32, {2});
  EXPECT_THAT(Message(),
              HasSubstr("model.pt2: table t [3, 2] was exported without "
                        "values, and no file in"));
  options_.tables_dir.clear();
  EXPECT_THAT(Message(), HasSubstr("no folder of tables is given"));
  // One row can't tell a stand-in from a real one, and needs no file.
  model_.weights.entries[0].sizes = {1, 2};
  EXPECT_TRUE(BindTables(options_, model_).ok());
}

TEST_F(BindTablesTest, BuffersThatShareARowAreNoStandIns) {
  options_.tables_dir.clear();
  EXPECT_THAT(Message(), HasSubstr("table t"));
  model_.buffers = {"t"};
  EXPECT_TRUE(BindTables(options_, model_).ok());
}

TEST_F(BindTablesTest, NamesAnAbsentOrEmptyFolder) {
  EXPECT_THAT(Message(), HasSubstr("was exported without values, and no file"));
  // refract.export() makes the folder also for a model without tables.
  model_.weights.entries[0].sizes = {1, 2};
  EXPECT_TRUE(BindTables(options_, model_).ok());
  options_.tables_dir = dir_.File("absent");
  EXPECT_EQ(BindTables(options_, model_).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace refract::models
