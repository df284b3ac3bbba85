#include "cpu_node/embedding/disk_tables.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/program.h"
#include "tests/base/random_seed.h"
#include "tests/cpu_node/small_model.h"

namespace refract::cpu_node {
namespace {

using ::testing::HasSubstr;

struct TableShape {
  const char* name;
  int64_t rows;
  int64_t dim;
};
// Rows of 132 bytes, of 4000, which cross blocks, and of 12; between them bytes
// of nobody.
constexpr TableShape kTables[] = {
    {"a", 5000, 33}, {"b", 300, 1000}, {"c", 20'000, 3}};

class DiskTablesTest : public ::testing::Test {
 protected:
  DiskTablesTest() {
    std::filesystem::create_directory(folder_);
    model_ = std::make_shared<models::LoadedModel>();
    model_->name = "model";
    model_->folder = folder_;
    std::mt19937_64 random(1);
    models::WeightTable weights;
    for (const TableShape& shape : kTables) {
      while (content_.size() % 4096 != 4) content_.push_back('x');
      models::WeightEntry entry;
      entry.name = shape.name;
      entry.file = "tables";
      entry.offset = content_.size();
      entry.bytes = static_cast<uint64_t>(shape.rows * shape.dim * 4);
      entry.dtype = base::DType::kFloat32;
      entry.sizes = {shape.rows, shape.dim};
      entry.strides = {shape.dim, 1};
      for (uint64_t i = 0; i < entry.bytes; ++i) {
        content_.push_back(static_cast<char>(random()));
      }
      weights.entries.push_back(entry);
      AddLookUp(shape);
    }
    std::ofstream(Path(), std::ios::binary) << content_;
    weights.files = {{"tables", content_.size(), {}}};
    model_->weights = *models::WeightStore::Open(folder_, weights);
  }
  ~DiskTablesTest() override { std::filesystem::remove_all(folder_); }

  std::string Path() const { return folder_ + "/tables"; }

  void AddLookUp(const TableShape& shape) {
    models::Graph& graph = model_->graph;
    const auto table = testing_models::AddValue(
        graph, shape.name, base::DType::kFloat32, {shape.rows, shape.dim},
        shape.name);
    const auto ids = testing_models::AddValue(
        graph, absl::StrCat("ids_", shape.name), base::DType::kInt64,
        {models::SymExpr::Symbol("B")});
    const auto rows = testing_models::AddValue(
        graph, absl::StrCat("rows_", shape.name), base::DType::kFloat32,
        {models::SymExpr::Symbol("B"), shape.dim});
    graph.inputs.push_back(ids);
    testing_models::AddNode(graph, "aten.embedding.default",
                            {{"weight", models::ValueRef{table}},
                             {"indices", models::ValueRef{ids}}},
                            rows);
  }

  // `count` rows of each table, many of them twice.
  void ExpectFetches(const DiskTables& tables, size_t count, unsigned seed) {
    std::mt19937_64 random(seed);
    std::vector<std::vector<uint64_t>> rows(std::size(kTables));
    std::vector<std::vector<std::byte>> memory(std::size(kTables));
    std::vector<runtime::cpu::WantedRows> wanted;
    for (size_t t = 0; t < std::size(kTables); ++t) {
      const TableShape& shape = kTables[t];
      for (size_t i = 0; i < count; ++i) {
        uint64_t row = random() % static_cast<uint64_t>(shape.rows);
        if (i % 3 == 0) row %= 50;
        if (i % 97 == 0) row = static_cast<uint64_t>(shape.rows) - 1;
        rows[t].push_back(row);
      }
      memory[t].resize(count * static_cast<size_t>(shape.dim) * 4);
      const auto source = tables.sources().at(shape.name);
      EXPECT_EQ(source.source, &tables);
      wanted.push_back({source.table, rows[t], memory[t].data()});
    }
    runtime::RunStats stats;
    const absl::Status status = tables.Fetch(wanted, stats);
    ASSERT_TRUE(status.ok()) << status;
    for (size_t t = 0; t < std::size(kTables); ++t) {
      const size_t bytes = static_cast<size_t>(kTables[t].dim) * 4;
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(std::memcmp(memory[t].data() + i * bytes,
                              content_.data() +
                                  model_->weights->table().entries[t].offset +
                                  rows[t][i] * bytes,
                              bytes),
                  0)
            << "table " << kTables[t].name << " row " << rows[t][i];
      }
    }
  }

  // In the working folder: /tmp may be memory, without O_DIRECT.
  const std::string folder_ = absl::StrCat(
      "disk_tables_", getpid(), "_",
      ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::string content_;
  std::shared_ptr<models::LoadedModel> model_;
};

TEST_F(DiskTablesTest, FetchesTheBytesOfTheFile) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  // Room for one row, for some, and for all.
  for (const size_t cache : {size_t{1}, size_t{100'000}, size_t{64} << 20}) {
    const auto tables = *DiskTables::Create(*model_, true, cache);
    EXPECT_EQ(tables->table_bytes(),
              5000 * 132 + 300 * 4000 + uint64_t{20'000} * 12);
    EXPECT_LE(tables->cache_bytes(), std::max<size_t>(cache, 132 + 4000 + 12));
    size_t asked = 0;
    for (const size_t count : {1, 10, 700, 3000}) {
      ExpectFetches(*tables, count, seed + static_cast<unsigned>(count));
      asked += count * std::size(kTables);
    }
    const DiskTables::Counts counts = tables->counts();
    EXPECT_EQ(counts.hits + counts.misses, asked);
    EXPECT_GT(counts.misses, 0u);
    // Rows of one block are read together.
    EXPECT_LT(counts.reads, counts.misses);
    EXPECT_EQ(counts.read_bytes % base::kReadAlignBytes, 0u);
    if (cache > (1 << 20)) {
      for (int i = 0; i < 2; ++i) ExpectFetches(*tables, 3000, seed + 3000);
      // Room for all, but shards do not fill evenly.
      EXPECT_LT(tables->counts().misses - counts.misses, counts.misses / 20);
    }
  }
}

TEST_F(DiskTablesTest, ThreadsFetchAtOnce) {
  const auto tables = *DiskTables::Create(*model_, true, 200'000);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 10; ++i) ExpectFetches(*tables, 300, 100 * t + i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(DiskTablesTest, NamesTableRowFileAndByteOfAReadThatFails) {
  const auto tables = *DiskTables::Create(*model_, true, 1 << 20);
  std::filesystem::resize_file(Path(), 4 + 132 * 100);
  const std::vector<uint64_t> rows = {3, 4999, 7};
  std::vector<std::byte> memory(3 * 132);
  const runtime::cpu::WantedRows wanted = {tables->sources().at("a").table,
                                           rows, memory.data()};
  runtime::RunStats stats;
  const absl::Status status = tables->Fetch({&wanted, 1}, stats);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("table 'a': row 4999: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path()));
}

TEST_F(DiskTablesTest, RefusesCachesThatDoNotFitIntoMemory) {
  // The tables, and their caches at most, are larger than both.
  const auto with = [&](uint64_t available) {
    return DiskTables::Create(*model_, true, 1 << 20, std::nullopt, available)
        .status();
  };
  EXPECT_TRUE(with(1 << 20).ok());
  const absl::Status status = with((1 << 20) - 4096);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--row-cache-mib"));
}

TEST_F(DiskTablesTest, NamesAMissingFile) {
  std::filesystem::remove(Path());
  const absl::Status status =
      DiskTables::Create(*model_, true, 1 << 20).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path()));
}

}  // namespace
}  // namespace refract::cpu_node
