#include "cpu_node/embedding/table_loading.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/cpu_node/small_model.h"
#include "tests/models/testing/temp_dir.h"

namespace refract::cpu_node {
namespace {

using models::testing::TempDir;

const std::set<std::string> kTableNames = {"table"};

std::shared_ptr<const models::LoadedModel> Model(const std::string& name) {
  auto model = std::make_shared<models::LoadedModel>();
  model->name = name;
  model->version = 1;
  model->graph = testing_models::MakeGraph();
  model->weights = testing_models::MakeWeights(0);
  return model;
}

// Number of times that ReadTablesAhead() asks whether to go on, on a machine
// with so much memory; it reads between two such questions.
int QuestionsWith(const std::string& available_kib,
                  const std::string& mapped_kib, bool go_on,
                  const models::LoadedModel& model = *Model("small"),
                  std::optional<size_t> shard = std::nullopt) {
  TempDir root;
  root.Write("proc/meminfo",
             "MemTotal: 1000 kB\nMemAvailable: " + available_kib + " kB\n");
  root.Write("proc/self/status", "RssFile: " + mapped_kib + " kB\n");
  int questions = 0;
  ReadTablesAhead(
      model, kTableNames, shard,
      [&] {
        ++questions;
        return go_on;
      },
      root.path());
  return questions;
}

TEST(ReadTablesAheadTest, ReadsTablesThatFitBesideMappedFiles) {
  // The table has 160 bytes, one piece.
  EXPECT_EQ(QuestionsWith("100", "99", true), 2);
  EXPECT_EQ(QuestionsWith("100", "99", false), 1);
  EXPECT_EQ(QuestionsWith("100", "100", true), 0);
}

TEST(ReadTablesAheadTest, ReadsOwnRowsOfDividedTables) {
  models::LoadedModel model = *Model("divided");
  constexpr int64_t kRows = testing_models::kRows;
  model.plan.emplace().num_shards = 2;
  model.plan->shards = {{"table", {kRows, kRows}}};
  // There is room for no row. The second shard has none.
  EXPECT_EQ(QuestionsWith("100", "100", true, model, 0), 0);
  EXPECT_EQ(QuestionsWith("100", "100", true, model, 1), 1);
  EXPECT_EQ(QuestionsWith("100", "99", true, model, 0), 2);
  model.packaged_shard = 1;  // whose rows are all rows of the weight
  EXPECT_EQ(QuestionsWith("100", "100", true, model, 1), 0);
  model.packaged_shard.reset();
  model.plan->shards = {{"table", {kRows - 1, kRows}, /*by_ids=*/true}};
  EXPECT_EQ(QuestionsWith("100", "100", true, model, 1), 0);
}

TEST(PlaceTablesTest, AShardLoadsItsOwnRowsAlone) {
  constexpr int64_t kRows = testing_models::kRows;
  constexpr uint64_t kRowBytes = testing_models::kDim * sizeof(float);
  const auto model = Model("divided");
  const std::byte* const whole = model->weights->Get("table")->data;
  const TempDir folder;
  testing_models::WriteWeights(folder.File("weights"), 0);
  models::LoadedModel divided = *model;
  divided.folder = folder.path();
  divided.plan.emplace().num_shards = 3;
  divided.plan->shards = {{"table", {4, kRows, kRows}}};
  const auto shared = std::make_shared<models::LoadedModel>(divided);
  // The number of rows that the node has then, and takes memory for.
  const auto rows = [&](std::optional<size_t> shard, int64_t first) {
    TableBytes bytes;
    const auto placed = PlaceTables(shared, models::TableMemory::kLoad,
                                    /*whole=*/true, shard, nullptr, bytes);
    EXPECT_TRUE(placed.ok()) << placed.status();
    const models::WeightView view = *(*placed)->weights->Get("table");
    const auto count = static_cast<uint64_t>(view.sizes[0]);
    EXPECT_EQ(bytes.small_pages + bytes.huge_pages, count * kRowBytes);
    // No rows have no address, which memcmp() would refuse.
    EXPECT_TRUE(count == 0 || std::memcmp(view.data, whole + first * kRowBytes,
                                          count * kRowBytes) == 0);
    return view.sizes[0];
  };
  EXPECT_EQ(rows(0, 0), 4);
  EXPECT_EQ(rows(1, 4), kRows - 4);
  EXPECT_EQ(rows(2, kRows), 0);
  EXPECT_EQ(rows(std::nullopt, 0), kRows);
}

TEST(TableReadAheadTest, ReadsOneVersionAfterTheOther) {
  const auto first = Model("first");
  const auto last = Model("last");
  auto gone = Model("gone");
  std::vector<TableReadAhead::Version> versions = {
      {first, kTableNames}, {gone, {}}, {last, {"other"}}};
  gone.reset();
  std::vector<std::pair<std::string, std::set<std::string>>> read;
  absl::Notification done;
  const auto reading = TableReadAhead::Start(
      std::move(versions),
      [&](const models::LoadedModel& model, const std::set<std::string>& tables,
          const std::function<bool()>& go_on) {
        EXPECT_TRUE(go_on());
        read.emplace_back(model.name, tables);
        if (read.size() == 2) done.Notify();
      });
  ASSERT_TRUE(reading.ok()) << reading.status();
  done.WaitForNotification();
  EXPECT_EQ(read[0], std::make_pair(std::string("first"), kTableNames));
  EXPECT_EQ(read[1], std::make_pair(std::string("last"),
                                    std::set<std::string>{"other"}));
}

TEST(TableReadAheadTest, StopsWithinAVersion) {
  const auto model = Model("small");
  absl::Notification begun;
  auto reading = TableReadAhead::Start(
      {{model, kTableNames}}, [&](const models::LoadedModel&, const auto&,
                                  const std::function<bool()>& go_on) {
        begun.Notify();
        while (go_on()) continue;
      });
  ASSERT_TRUE(reading.ok()) << reading.status();
  begun.WaitForNotification();
  reading->reset();
  EXPECT_EQ(model.use_count(), 1);
}

TEST(TableReadAheadTest, GivesUpAVersionThatIsUnloaded) {
  auto unloaded = Model("unloaded");
  const auto next = Model("next");
  const std::weak_ptr<const models::LoadedModel> memory = unloaded;
  absl::Notification begun;
  absl::Notification done;
  const auto reading =
      TableReadAhead::Start({{unloaded, kTableNames}, {next, kTableNames}},
                            [&](const models::LoadedModel& model, const auto&,
                                const std::function<bool()>& go_on) {
                              if (model.name == "next") {
                                EXPECT_TRUE(memory.expired());
                                return done.Notify();
                              }
                              begun.Notify();
                              while (go_on()) continue;
                              // The mapping lives until here.
                              EXPECT_TRUE(model.weights->Get("table").ok());
                            });
  ASSERT_TRUE(reading.ok()) << reading.status();
  begun.WaitForNotification();
  unloaded.reset();
  done.WaitForNotification();
}

}  // namespace
}  // namespace refract::cpu_node
