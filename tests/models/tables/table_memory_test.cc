#include "models/tables/table_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/testing/temp_dir.h"

namespace refract::models {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

constexpr uint64_t kFileBytes = (uint64_t{20} << 20) + 12;

// Byte i of the file `file`.
char ByteAt(uint64_t i, int file) {
  return static_cast<char>(i * 2654435761u >> 13) + static_cast<char>(file);
}

// Two files. In "a": a table of three pieces of reading, one that shares its
// rows, one behind it at an odd place; in "b": a small one.
class TableMemoryTest : public ::testing::Test {
 protected:
  TableMemoryTest() {
    for (const char* name : {"a", "b"}) {
      std::string bytes(kFileBytes, '\0');
      for (uint64_t i = 0; i < kFileBytes; ++i) {
        bytes[i] = ByteAt(i, name[0]);
      }
      dir_.Write(name, bytes);
      table_.files.push_back({name, kFileBytes, {}});
    }
    Add("large", "a", 4, 1 << 20, 4);
    Add("same", "a", 4, 1 << 20, 4);
    Add("tail", "a", 4 + (16 << 20), 999, 4);
    Add("small", "b", 100, 10, 2);
    Add("unread", "b", 4096, 10, 2);
    store_ = *WeightStore::Open(dir_.path(), table_);
  }

  void Add(const std::string& name, const std::string& file, uint64_t offset,
           int64_t rows, int64_t dim) {
    WeightEntry entry;
    entry.name = name;
    entry.file = file;
    entry.offset = offset;
    entry.bytes = static_cast<uint64_t>(rows * dim * 4);
    entry.dtype = base::DType::kFloat32;
    entry.sizes = {rows, dim};
    entry.strides = {dim, 1};
    table_.entries.push_back(entry);
  }

  TempDir dir_;
  WeightTable table_;
  std::shared_ptr<const WeightStore> store_;
  const std::set<std::string> names_ = {"large", "same", "tail", "small"};
};

TEST_F(TableMemoryTest, LoadsTheGivenRowsAlone) {
  LoadTablesOptions options;
  options.rows = {{"large", {100'000, 200'003}}, {"tail", {7, 7}}};
  const auto loaded =
      LoadTables(*store_, dir_.path(), {"large", "tail", "small"}, options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  constexpr uint64_t kLarge = 100'003 * 16;
  EXPECT_GE(loaded->bytes, kLarge + 80);
  EXPECT_LT(loaded->bytes, kLarge + 80 + 64);
  const WeightView large = *loaded->store->Get("large");
  EXPECT_EQ(large.sizes, (std::vector<int64_t>{100'003, 4}));
  for (uint64_t i = 0; i < kLarge; ++i) {
    ASSERT_EQ(static_cast<char>(large.data[i]),
              ByteAt(4 + 100'000 * 16 + i, 'a'));
  }
  EXPECT_EQ(loaded->store->Get("tail")->sizes, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(static_cast<char>(loaded->store->Get("small")->data[0]),
            ByteAt(100, 'b'));
  // Two names of the same rows share memory, whichever rows each of them has.
  const auto both =
      LoadTables(*store_, dir_.path(), {"large", "same"}, options);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->bytes, uint64_t{16} << 20);
  EXPECT_EQ(both->store->Get("large")->data,
            both->store->Get("same")->data + 100'000 * 16);
}

TEST_F(TableMemoryTest, LoadsEveryByteOnce) {
  for (const int threads : {1, 3}) {
    LoadTablesOptions options;
    options.threads = threads;
    uint64_t last = 0;
    options.progress = [&](uint64_t done, uint64_t total) {
      EXPECT_GE(done, last);
      EXPECT_LE(done, total);
      last = done;
    };
    const auto loaded = LoadTables(*store_, dir_.path(), names_, options);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const uint64_t bytes = (16 << 20) + 999 * 16 + 80;
    EXPECT_EQ(last, bytes);
    EXPECT_EQ(BytesOfTables(table_, names_), bytes);
    EXPECT_GE(loaded->bytes, bytes);
    EXPECT_LE(loaded->bytes, bytes + 3 * 64);
    EXPECT_LE(loaded->huge_bytes, loaded->bytes);
    for (const WeightEntry& entry : table_.entries) {
      const WeightView view = *loaded->store->Get(entry.name);
      const WeightView mapped = *store_->Get(entry.name);
      EXPECT_EQ(std::memcmp(view.data, mapped.data, entry.bytes), 0);
      const bool is_table = names_.contains(entry.name);
      EXPECT_EQ(loaded->store->IsMapped(view), !is_table);
      EXPECT_EQ(view.data != mapped.data, is_table);
      if (is_table) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 64, 0u);
      }
    }
    EXPECT_EQ(loaded->store->Get("large")->data,
              loaded->store->Get("same")->data);
  }
}

TEST_F(TableMemoryTest, RefusesMoreThanIsAvailable) {
  LoadTablesOptions options;
  options.available_bytes = 1 << 20;
  const absl::Status status =
      LoadTables(*store_, dir_.path(), names_, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1048576"));
}

TEST_F(TableMemoryTest, NamesFileAndByteWhereAFileEnds) {
  dir_.Write("a", std::string(9 << 20, 'x'));
  const absl::Status status =
      LoadTables(*store_, dir_.path(), names_, {.threads = 2}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/a: ends at byte "));
}

TEST_F(TableMemoryTest, NamesAWeightThatIsMissing) {
  EXPECT_EQ(LoadTables(*store_, dir_.path(), {"other"}, {}).status().code(),
            absl::StatusCode::kNotFound);
}

// Pages of `bytes` from `begin` on that the page table of this process has, by
// bit 63 of their entries in /proc/self/pagemap (Linux, admin-guide/mm/pagemap).
size_t PagesPresent(const std::byte* begin, uint64_t bytes) {
  const base::UniqueFd pagemap(open("/proc/self/pagemap", O_RDONLY));
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(begin);
  size_t present = 0;
  for (uintptr_t p = address / page; p * page < address + bytes; ++p) {
    uint64_t entry = 0;
    EXPECT_EQ(pread(pagemap.get(), &entry, 8, static_cast<off_t>(p * 8)), 8);
    present += entry >> 63;
  }
  return present;
}

TEST_F(TableMemoryTest, ReadsMappedTablesBeforeTheFirstAccess) {
  const WeightView large = *store_->Get("large");
  const WeightView tail = *store_->Get("tail");
  ASSERT_EQ(PagesPresent(large.data, 16 << 20), 0U);
  uint64_t last = 0;
  ReadMappedTables(*store_, names_, [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, BytesOfTables(table_, names_));
    last = done;
    return true;
  });
  EXPECT_EQ(last, BytesOfTables(table_, names_));
  // The table begins and ends within a page.
  EXPECT_EQ(PagesPresent(large.data, 16 << 20), (16 << 20) / 4096 + 1);
  EXPECT_GT(PagesPresent(tail.data, 999 * 16), 0U);
  // The end of the file "a" has no table.
  EXPECT_EQ(PagesPresent(tail.data + (2 << 20), 4096), 0U);
}

TEST_F(TableMemoryTest, ReadsOnlyTheRowsThatAreWanted) {
  const WeightView large = *store_->Get("large");
  // A row has 16 bytes, so these are the ninth of 16 MiB.
  const RowRanges rows = {{"large", {8 << 16, 9 << 16}}, {"unread", {0, 1}}};
  const std::set<std::string> names = {"large", "small"};
  uint64_t last = 0;
  ReadMappedTables(
      *store_, names,
      [&](uint64_t done, uint64_t total) {
        EXPECT_EQ(total, (1U << 20) + 80);
        last = done;
        return true;
      },
      rows);
  EXPECT_EQ(last, (1U << 20) + 80);
  EXPECT_EQ(PagesPresent(large.data + (8 << 20), 1 << 20),
            (1 << 20) / 4096 + 1);
  // The kernel maps whole huge pages of 2 MiB around the wanted pages.
  EXPECT_EQ(PagesPresent(large.data, 6 << 20), 0U);
  EXPECT_EQ(PagesPresent(large.data + (12 << 20), 4 << 20), 0U);
  EXPECT_GT(PagesPresent(store_->Get("small")->data, 80), 0U);
}

TEST_F(TableMemoryTest, ReadsWhatAShortenedFileStillHas) {
  dir_.Write("a", std::string(9 << 20, 'x'));
  ReadMappedTables(*store_, names_, [](uint64_t, uint64_t) { return true; });
  EXPECT_GT(PagesPresent(store_->Get("small")->data, 80), 0U);
}

TEST_F(TableMemoryTest, ReadingMappedTablesEndsAtThePieceThatIsTheLastWanted) {
  uint64_t last = 0;
  ReadMappedTables(*store_, names_, [&](uint64_t done, uint64_t) {
    last = done;
    return false;
  });
  EXPECT_EQ(last, 8U << 20);
  EXPECT_EQ(PagesPresent(store_->Get("small")->data, 80), 0U);
}

}  // namespace
}  // namespace refract::models
