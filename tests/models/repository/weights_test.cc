#include "models/repository/weights.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/testing/temp_dir.h"

namespace refract::models {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

// 64 bytes, then the floats 0 … 23.
std::string FileBytes() {
  std::string bytes(64, 'x');
  for (int i = 0; i < 24; ++i) {
    const float value = static_cast<float>(i);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return bytes;
}

WeightEntry FloatEntry(std::vector<int64_t> sizes, std::vector<int64_t> strides,
                       int64_t storage_offset) {
  return {"w",     "f.bin",       64, 96, base::DType::kFloat32, sizes,
          strides, storage_offset};
}

class WeightStoreTest : public ::testing::Test {
 protected:
  WeightStoreTest() { dir_.Write("f.bin", FileBytes()); }

  absl::StatusOr<std::shared_ptr<const WeightStore>> Open(
      const WeightEntry& entry) {
    WeightTable table;
    table.entries = {entry};
    table.files = {{"f.bin", 160, {}}};
    return WeightStore::Open(dir_.path(), table);
  }

  TempDir dir_;
};

// 16 rows of 6 bytes: 2 columns of 8 bits behind fp16 parameters.
WeightEntry RowEntry() {
  WeightEntry entry = FloatEntry({16, 2}, {2, 1}, 0);
  entry.rows = *LayoutOf(*RowFormatNamed("tbe-int8"), 2);
  return entry;
}

float At(const WeightView& view, int64_t offset) {
  float value;
  std::memcpy(&value, view.data + offset * 4, sizeof(value));
  return value;
}

TEST_F(WeightStoreTest, MapsTransposedAndOffsetViews) {
  const auto store = Open(FloatEntry({4, 3}, {1, 4}, 5));
  ASSERT_TRUE(store.ok()) << store.status();
  const auto view = (*store)->Get("w");
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(At(*view, 0), 5.0f);
  EXPECT_EQ(At(*view, 3 * 1 + 2 * 4), 16.0f);
  EXPECT_FALSE(view->is_contiguous());
  const auto missing = (*store)->Get("v").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("v"));
}

TEST_F(WeightStoreTest, TakesStandInsAndEmptyTensors) {
  EXPECT_TRUE(Open(FloatEntry({1'000'000'000, 4}, {0, 1}, 0)).ok());
  EXPECT_TRUE(Open(FloatEntry({0, 4}, {4, 1}, 0)).ok());
  EXPECT_TRUE(Open(FloatEntry({}, {}, 23)).ok());
  EXPECT_TRUE(Open(FloatEntry({6, 4}, {4, 1}, 0)).ok());
}

TEST_F(WeightStoreTest, RefusesViewsOutsideTheStorage) {
  for (const WeightEntry& entry :
       {FloatEntry({6, 4}, {4, 1}, 1), FloatEntry({7, 4}, {4, 1}, 0),
        FloatEntry({}, {}, 24), FloatEntry({2}, {-1}, 4),
        FloatEntry({1}, {1}, -1), FloatEntry({2, 2}, {2}, 0),
        FloatEntry({-2}, {1}, 0), FloatEntry({2}, {INT64_MAX}, 0),
        FloatEntry({3, 3}, {INT64_MAX, INT64_MAX}, INT64_MAX),
        FloatEntry({INT64_MAX, INT64_MAX}, {0, 0}, 0)}) {
    const auto status = Open(entry).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("weight w: "));
  }
}

TEST_F(WeightStoreTest, RefusesEntriesOutsideTheFile) {
  WeightEntry entry = FloatEntry({1}, {1}, 0);
  entry.offset = 68;
  EXPECT_THAT(std::string(Open(entry).status().message()),
              HasSubstr("lie outside"));
  entry.offset = UINT64_MAX - 3;
  EXPECT_FALSE(Open(entry).ok());
  entry = FloatEntry({1}, {1}, 0);
  entry.bytes = UINT64_MAX;
  EXPECT_FALSE(Open(entry).ok());
  entry = FloatEntry({1}, {1}, 0);
  entry.offset = 66;
  entry.bytes = 4;
  EXPECT_THAT(std::string(Open(entry).status().message()),
              HasSubstr("no multiple of its 4 byte"));
  entry = FloatEntry({1}, {1}, 0);
  entry.dtype = base::DType::kUnknown;
  EXPECT_FALSE(Open(entry).ok());
}

TEST_F(WeightStoreTest, NamesFilesThatChangedOrAreMissing) {
  WeightTable table;
  table.files = {{"f.bin", 161, {}}};
  auto status = WeightStore::Open(dir_.path(), table).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("f.bin: has 160 bytes, but had 161"));
  table.files = {{"absent.bin", 1, {}}};
  status = WeightStore::Open(dir_.path(), table).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("absent.bin"));
  table.files = {{"f.bin", 160, {}}, {"f.bin", 160, {}}};
  EXPECT_FALSE(WeightStore::Open(dir_.path(), table).ok());
  table.files = {{"f.bin", 160, {}}};
  table.entries = {FloatEntry({1}, {1}, 0), FloatEntry({1}, {1}, 0)};
  EXPECT_THAT(
      std::string(WeightStore::Open(dir_.path(), table).status().message()),
      HasSubstr("w is listed twice"));
  table.entries.resize(1);
  table.entries[0].file = "g.bin";
  EXPECT_THAT(
      std::string(WeightStore::Open(dir_.path(), table).status().message()),
      HasSubstr("its file g.bin is not listed"));
}

TEST(WeightViewTest, KnowsContiguousLayouts) {
  auto contiguous = [](std::vector<int64_t> sizes,
                       std::vector<int64_t> strides) {
    return WeightView{base::DType::kFloat32, sizes, strides, nullptr}
        .is_contiguous();
  };
  EXPECT_TRUE(contiguous({}, {}));
  EXPECT_TRUE(contiguous({2, 3}, {3, 1}));
  EXPECT_TRUE(contiguous({2, 1, 3}, {3, 77, 1}));
  EXPECT_TRUE(contiguous({0, 3}, {9, 9}));
  EXPECT_FALSE(contiguous({2, 3}, {1, 2}));
  EXPECT_FALSE(contiguous({5, 3}, {0, 1}));
}

TEST_F(WeightStoreTest, GivesRowsOfAFormatOnlyToCallersThatKnowThem) {
  const auto store = Open(RowEntry());
  ASSERT_TRUE(store.ok()) << store.status();
  const auto stored = (*store)->GetAsStored("w");
  ASSERT_TRUE(stored.ok());
  EXPECT_EQ(stored->rows->stride, 6);
  EXPECT_EQ(stored->bytes(), 96);
  const auto elements = (*store)->Get("w");
  EXPECT_EQ(elements.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(elements.status().message()),
              HasSubstr("table w has rows of tbe-int8 dim=2"));
}

TEST_F(WeightStoreTest, RefusesRowsThatDoNotFillTheirBytes) {
  const auto message = [&](const WeightEntry& entry) {
    return std::string(Open(entry).status().message());
  };
  WeightEntry entry = RowEntry();
  entry.bytes = 95;
  EXPECT_THAT(message(entry), HasSubstr("16 rows of 6 bytes"));
  entry = RowEntry();
  entry.sizes = {17, 2};
  EXPECT_THAT(message(entry), HasSubstr("17 rows of 6 bytes"));
  entry = RowEntry();
  entry.sizes = {16, 3};
  EXPECT_THAT(message(entry), HasSubstr("tbe-int8 dim=2 for float32[16, 3]"));
  entry = RowEntry();
  entry.dtype = base::DType::kFloat16;
  EXPECT_THAT(message(entry), HasSubstr("for float16"));
  entry = RowEntry();
  entry.storage_offset = 1;
  EXPECT_THAT(message(entry), HasSubstr("from element 1"));
}

}  // namespace
}  // namespace refract::models
