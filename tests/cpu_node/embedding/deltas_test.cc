// Deltas of tables: what is applied, what is refused, and what requests see
// meanwhile.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/notification.h"
#include "base/process/files.h"
#include "base/sha256.h"
#include "cpu_node/control/model_control.h"
#include "cpu_node/embedding/delta_feed.h"
#include "cpu_node/embedding/table_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/deltas/delta.h"
#include "models/repository/files/safetensors.h"
#include "tests/base/random_seed.h"
#include "tests/cpu_node/serving_fixture.h"
#include "tests/cpu_node/stored_model.h"

namespace refract::cpu_node {
namespace {

using ::testing::HasSubstr;
using testing_models::kDim;
using testing_models::kRows;

absl::Span<const std::byte> BytesOf(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// The files of a trainer, with wrong values as a test asks for.
struct Delta {
  int64_t sequence = 1;
  std::string id = "a";
  int64_t parent = 0;
  std::string parent_id;
  std::string model = "small";
  std::string table = "table";
  std::vector<int64_t> ids;
  std::vector<float> rows;  // kDim each
  std::vector<int64_t> deleted;

  std::string RowsFile() const {
    std::vector<std::pair<std::string, base::TensorView>> tensors;
    const auto add = [&](const char* name, base::DType dtype, base::Dims dims,
                         const void* data, size_t bytes) {
      base::TensorView view;
      view.dtype = dtype;
      view.dims = std::move(dims);
      view.data = static_cast<const std::byte*>(data);
      view.bytes = bytes;
      tensors.emplace_back(absl::StrCat(table, "/", name), view);
    };
    const auto n = static_cast<int64_t>(ids.size());
    if (n > 0) {
      add("ids", base::DType::kInt64, {n}, ids.data(), n * sizeof(int64_t));
      add("rows", base::DType::kFloat32,
          {n, static_cast<int64_t>(rows.size()) / n}, rows.data(),
          rows.size() * sizeof(float));
    }
    if (!deleted.empty()) {
      add("deleted", base::DType::kInt64,
          {static_cast<int64_t>(deleted.size())}, deleted.data(),
          deleted.size() * sizeof(int64_t));
    }
    const std::string path = testing::TempDir() + "/rows.safetensors";
    EXPECT_TRUE(models::WriteSafetensors(path, tensors).ok());
    return *base::ReadText(path);
  }
  std::string Manifest(absl::string_view file) const {
    return absl::StrCat(
        R"({"format":"refract-delta","schema":1,"model":")", model,
        R"(","version":1,"sequence":)", sequence, R"(,"id":")", id,
        R"(","parent":{"sequence":)", parent, R"(,"id":")", parent_id,
        R"("},"created_unix_ms":1700000000000,"rows":{"file":"rows-)", sequence,
        R"(.safetensors","bytes":)", file.size(), R"(,"sha256":")",
        base::Sha256Hex(BytesOf(file)), R"("},"tables":{")", table,
        R"(":{"upserted":)", ids.size(), R"(,"deleted":)", deleted.size(),
        "}}}");
  }
};

// A version, its store and the feed of a folder.
class DeltasTest : public testing::Test {
 protected:
  DeltasTest() {
    folder_ = testing::TempDir() + "/deltas_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    ServedModelOptions options;
    options.local_fallback = true;
    options.deltas_folder = folder_;
    served_ = *ServedModel::Create(
        testing_models::MakeSmallModel({.split = false}), options);
    std::filesystem::create_directories(Folder());
  }
  ~DeltasTest() override { std::filesystem::remove_all(folder_); }

  std::string Folder() const { return folder_ + "/small/1"; }
  std::string Path(const Delta& delta) const {
    return absl::StrCat(Folder(), "/", models::NameOfSequence(delta.sequence));
  }
  std::string RowsPath(const Delta& delta) const {
    return absl::StrCat(Folder(), "/rows-", delta.sequence, ".safetensors");
  }
  void Write(const Delta& delta) const {
    const std::string file = delta.RowsFile();
    ASSERT_TRUE(base::WriteText(RowsPath(delta), file).ok());
    ASSERT_TRUE(base::WriteText(Path(delta), delta.Manifest(file)).ok());
  }
  bool Step() { return served_->deltas()->Step(nullptr); }
  DeltaFeed::Counts counts() const { return served_->deltas()->counts(); }

  // Row `id` as a request reads it.
  std::vector<float> Row(int64_t id) {
    const TableStore::Pin pin = served_->PinTables();
    return Row(id, pin);
  }
  std::vector<float> Row(int64_t id, const TableStore::Pin& pin) {
    const auto* overlay = served_->tables()->overlays().at("table");
    const std::byte* row =
        overlay->any() ? overlay->Find(id, pin.state()) : nullptr;
    std::vector<float> values(kDim);
    if (row == nullptr) {
      for (int64_t d = 0; d < kDim; ++d) {
        values[d] = testing_models::WeightValue(id * kDim + d, 0);
      }
    } else {
      std::memcpy(values.data(), row, kDim * sizeof(float));
    }
    return values;
  }
  // Refused, once, for the reason given; the state stays. Then the files go.
  void ExpectRefused(const Delta& delta, absl::string_view file,
                     const std::string& manifest, const std::string& reason) {
    SCOPED_TRACE(reason);
    const DeltaFeed::Counts before = counts();
    const std::vector<float> row = Row(1);
    ASSERT_TRUE(base::WriteText(RowsPath(delta), file).ok());
    ASSERT_TRUE(base::WriteText(Path(delta), manifest).ok());
    testing::internal::CaptureStderr();
    FLAGS_logtostderr = true;
    EXPECT_FALSE(Step());
    EXPECT_FALSE(Step());
    FLAGS_logtostderr = false;
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(reason));
    const DeltaFeed::Counts after = counts();
    EXPECT_EQ(after.refused, before.refused + 1);
    EXPECT_EQ(after.state, before.state);
    EXPECT_EQ(Row(1), row);
    std::filesystem::remove(Path(delta));
    std::filesystem::remove(RowsPath(delta));
  }

  std::string folder_;
  std::unique_ptr<ServedModel> served_;
};

std::vector<float> Values(float first) {
  return {first, first + 1, first + 2, first + 3};
}

// The folder is listed before its files are read.
TEST_F(DeltasTest, AManifestThatVanishesIsNotRefusedOnceMore) {
  const Delta wrong{.parent_id = "other", .ids = {1}, .rows = Values(1)};
  const std::string manifest = wrong.Manifest(wrong.RowsFile());
  const std::string aside = Folder() + "/aside";
  std::atomic<bool> stop = false;
  std::thread steps([&] {
    while (!stop) Step();
  });
  constexpr uint64_t kTimes = 300;
  for (uint64_t i = 1; i <= kTimes; ++i) {
    // Another size, so that no file is taken for the file before it.
    ASSERT_TRUE(base::WriteText(aside, manifest + std::string(i, ' ')).ok());
    std::filesystem::rename(aside, Path(wrong));
    while (counts().refused < i) std::this_thread::yield();
    std::filesystem::remove(Path(wrong));
  }
  stop = true;
  steps.join();
  EXPECT_EQ(counts().refused, kTimes);
}

TEST_F(DeltasTest, AppliesInSequenceAndComesToTheSameStateAgain) {
  Write({.ids = {1, 9}, .rows = {1, 2, 3, 4, 5, 6, 7, 8}});
  Write({.sequence = 2,
         .id = "b",
         .parent = 1,
         .parent_id = "a",
         .ids = {1},
         .rows = Values(10),
         .deleted = {9}});
  TableStore::Pin before = served_->PinTables();
  ASSERT_TRUE(Step());
  EXPECT_EQ(counts().backlog, 1);
  EXPECT_EQ(Row(1), Values(1));
  EXPECT_EQ(Row(9), Values(5));
  TableStore::Pin first = served_->PinTables();
  ASSERT_TRUE(Step());
  EXPECT_FALSE(Step());
  EXPECT_EQ(Row(1), Values(10));
  EXPECT_EQ(Row(9), std::vector<float>(kDim, 0));
  // Requests keep the version that they started with.
  EXPECT_EQ(Row(1, first), Values(1));
  EXPECT_EQ(Row(9, first), Values(5));
  EXPECT_EQ(first.sequence(), 1);
  EXPECT_NE(Row(1, before), Values(1));
  EXPECT_EQ(counts().applied, 2);
  EXPECT_EQ(counts().rows, 4);
  EXPECT_EQ(counts().refused, 0);
  EXPECT_EQ(counts().backlog, 0);

  // A node that has been started again.
  before = TableStore::Pin();
  first = TableStore::Pin();
  ServedModelOptions options;
  options.deltas_folder = folder_;
  served_ = *ServedModel::Create(
      testing_models::MakeSmallModel({.split = false}), options);
  served_->deltas()->CatchUp();
  EXPECT_EQ(counts().state, (models::DeltaState{2, "b"}));
  EXPECT_EQ(Row(1), Values(10));
  EXPECT_EQ(Row(9), std::vector<float>(kDim, 0));
}

TEST_F(DeltasTest, ADeltaFromTheSameParentThatLeadsFartherIsTaken) {
  Write({.ids = {1}, .rows = Values(1)});
  Write({.sequence = 7, .id = "merged", .ids = {1}, .rows = Values(7)});
  ASSERT_TRUE(Step());
  EXPECT_EQ(counts().state.sequence, 7);
  EXPECT_EQ(Row(1), Values(7));
}

TEST_F(DeltasTest, AVersionThatComesBackFromMemoryHasTheDeltasOfMeanwhile) {
  testing_models::StoredModels stored;
  stored.Add("small", /*split=*/false);
  stored.Add("small", /*split=*/false);
  ModelControlOptions options;
  options.by_request = true;
  options.served.deltas_folder = folder_;
  auto catalog = Catalog::Load(stored.repository(), options.served);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  auto engine = Engine::Create(*std::move(catalog), {});
  ASSERT_TRUE(engine.ok()) << engine.status();
  ModelControl control(stored.repository(), engine->get(), options);
  for (const int version : {1, 2, 1}) {
    absl::Notification done;
    control.Load("small",
                 absl::StrCat(R"({"version_policy":{"specific":{"versions":[)",
                              version, "]}}}"),
                 [&](const absl::Status& status) {
                   EXPECT_TRUE(status.ok()) << status;
                   done.Notify();
                 });
    done.WaitForNotification();
    if (version == 2) Write({.ids = {1}, .rows = Values(1)});
  }
  const auto served = (*engine)->catalog()->Find("small", "1");
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ((*served)->deltas()->counts().state.sequence, 1);
  (*engine)->Stop();
  control.Stop();
}

TEST_F(DeltasTest, RequestsReadOneStateAndSayWhich) {
  std::vector<Catalog::Entry> entries;
  entries.push_back({"small", 1, std::move(served_), {}});
  const std::shared_ptr<ServedModel> served = entries[0].model;
  auto engine = Engine::Create(Catalog(std::move(entries)), {});
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto request = [] {
    InferRequest request;
    request.model_name = "small";
    request.inputs.push_back({"dense", testing_models::MakeDense(2)});
    request.inputs.push_back({"ids", testing_models::MakeIds(2)});
    return request;
  };
  ExpectRight(Infer(**engine, request()), 2);
  // The first item's row alone.
  Write({.ids = {testing_models::IdValue(0)}, .rows = Values(1)});
  ASSERT_TRUE(served->deltas()->Step(nullptr));
  const Answer answer = Infer(**engine, request());
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  const base::TensorView twice = answer.outputs[2].view();
  const int64_t other = testing_models::IdValue(1);
  for (int64_t d = 0; d < kDim; ++d) {
    EXPECT_EQ(twice.as<float>()[d], 2 * (1.0f + d));
    EXPECT_EQ(twice.as<float>()[kDim + d],
              2 * testing_models::WeightValue(other * kDim + d, 0));
  }
}

TEST_F(DeltasTest, RefusesByNameWhatIsWrong) {
  const Delta good{.ids = {1, 3}, .rows = {1, 2, 3, 4, 5, 6, 7, 8}};
  const std::string file = good.RowsFile();
  const std::string manifest = good.Manifest(file);
  const auto replaced = [&](absl::string_view from, absl::string_view to) {
    EXPECT_THAT(manifest, HasSubstr(std::string(from)));
    return absl::StrReplaceAll(manifest, {{from, to}});
  };
  const auto refuse_manifest = [&](const std::string& text,
                                   const std::string& reason) {
    ExpectRefused(good, file, text, reason);
  };
  refuse_manifest(manifest.substr(0, manifest.size() / 2), "truncated");
  refuse_manifest(replaced("\"schema\":1", "\"schema\":2"), "\"schema\" is 2");
  refuse_manifest(replaced("\"schema\":1", "\"schema\":1,\"dense\":{}"),
                  "\"dense\"");
  refuse_manifest(replaced("\"schema\":1", "\"schema\":1,\"odd\":0"),
                  "unknown key \"odd\"");
  refuse_manifest(replaced("small", "other"), "is for model 'other'");
  refuse_manifest(replaced("\"version\":1", "\"version\":2"), "version 2, not");
  refuse_manifest(replaced("\"sequence\":1", "\"sequence\":2"),
                  "unlike that in the file's name");
  refuse_manifest(replaced("rows-1.", "../rows-1."), "\"rows.file\"");
  refuse_manifest(replaced("rows-1.", "absent-1."), "absent-1.safetensors");
  refuse_manifest(replaced("\"upserted\":2", "\"upserted\":3"),
                  "'table/ids' has 2 ids; the manifest says 3");
  const auto refuse_file = [&](std::string bytes, const std::string& reason) {
    ExpectRefused(good, bytes, manifest, reason);
  };
  refuse_file(file.substr(0, file.size() - 1), "the manifest says");
  std::string damaged = file;
  damaged.back() ^= 1;
  refuse_file(damaged, "sha256");

  const auto refuse = [&](const Delta& delta, const std::string& reason) {
    const std::string bytes = delta.RowsFile();
    ExpectRefused(delta, bytes, delta.Manifest(bytes), reason);
  };
  const std::vector<float> two(2 * kDim, 1);
  refuse({.table = "users", .ids = {1}, .rows = Values(1)}, "no table 'users'");
  refuse({.table = "fc", .ids = {0}, .rows = Values(1)}, "no table 'fc'");
  refuse({.ids = {1, kRows}, .rows = two},
         "id 10 at position 1 is outside [0, 10)");
  refuse({.ids = {-1, 2}, .rows = two}, "id -1 at position 0 is outside");
  refuse({.ids = {2, 2}, .rows = two}, "id 2 at position 1 is there twice");
  refuse({.ids = {3, 2}, .rows = two}, "not in ascending order");
  refuse({.ids = {2}, .rows = Values(1), .deleted = {2}}, "id 2 is both in");
  refuse({.ids = {2}, .rows = {1, 2, 3}}, "rows of 3 elements");
  refuse(
      {.ids = {4}, .rows = {1, 2, std::numeric_limits<float>::quiet_NaN(), 4}},
      "row of id 4: column 2");
  refuse({.sequence = 2,
          .id = "b",
          .parent = 1,
          .parent_id = "a",
          .ids = {1},
          .rows = Values(1)},
         "gap: its parent is delta 1, the state is that of delta 0");

  // Nothing of the refused delta stays; the good delta is applied.
  Write(good);
  ASSERT_TRUE(Step());
  EXPECT_EQ(Row(1), Values(1));
  refuse({.sequence = 2,
          .id = "c",
          .parent = 1,
          .parent_id = "other",
          .ids = {1},
          .rows = Values(1)},
         "wrong parent");
}

TEST_F(DeltasTest, AVanishedFolderChangesNothing) {
  Write({.ids = {1}, .rows = Values(1)});
  ASSERT_TRUE(Step());
  std::filesystem::remove_all(folder_);
  EXPECT_FALSE(Step());
  EXPECT_EQ(Row(1), Values(1));
  std::filesystem::create_directories(Folder());
  Write({.sequence = 2,
         .id = "b",
         .parent = 1,
         .parent_id = "a",
         .ids = {1},
         .rows = Values(2)});
  EXPECT_TRUE(Step());
  EXPECT_EQ(Row(1), Values(2));
}

// A change of any byte is refused, or gives a delta that the format allows.
TEST_F(DeltasTest, MutatedFilesNeverPassForOthers) {
  const uint32_t seed = base::RandomSeed();
  std::mt19937 random(seed);
  const Delta delta{
      .ids = {1, 3}, .rows = std::vector<float>(2 * kDim, 1), .deleted = {7}};
  const std::string file = delta.RowsFile();
  const auto manifest = models::ParseDeltaManifest(delta.Manifest(file));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const auto& tables = served_->tables()->tables();
  ASSERT_TRUE(models::ParseDeltaRows(BytesOf(file), *manifest, tables).ok());
  int parsed = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = file;
    const size_t at = random() % bytes.size();
    switch (random() % 3) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.resize(at);
        break;
      default:
        bytes.insert(at, 1 + random() % 9, static_cast<char>(random()));
    }
    if (bytes == file) continue;
    EXPECT_EQ(models::ParseDeltaRows(BytesOf(bytes), *manifest, tables)
                  .status()
                  .code(),
              absl::StatusCode::kDataLoss);
    const auto rows =
        models::ParseUnverifiedDeltaRows(BytesOf(bytes), *manifest, tables);
    if (!rows.ok()) continue;
    ++parsed;
    ASSERT_EQ(rows->size(), 1);
    for (const auto* ids : {&(*rows)[0].ids, &(*rows)[0].deleted}) {
      for (size_t k = 0; k < ids->size(); ++k) {
        ASSERT_GE((*ids)[k], k == 0 ? 0 : (*ids)[k - 1] + 1) << "seed " << seed;
        ASSERT_LT((*ids)[k], kRows);
      }
    }
    ASSERT_GE((*rows)[0].rows, BytesOf(bytes).data());
    ASSERT_LE((*rows)[0].rows + 2 * (*rows)[0].row_bytes,
              BytesOf(bytes).data() + bytes.size());
  }
  EXPECT_GT(parsed, 0);  // changed values of rows
  const std::string text = delta.Manifest(file);
  for (int i = 0; i < 4000; ++i) {
    std::string changed = text;
    changed[random() % changed.size()] = static_cast<char>(random());
    if (random() % 4 == 0) changed.resize(random() % changed.size());
    // Any bytes end in a manifest or in an error.
    models::ParseDeltaManifest(changed).IgnoreError();
  }
}

// The writer changes two rows of a table together, over and over; a reader
// never sees halves of a row or of a delta.
TEST_F(DeltasTest, ReadersBesideAWriterSeeWholeDeltas) {
  auto model = testing_models::MakeSmallModel({.split = false});
  TableStore store(*model);
  const runtime::cpu::RowOverlay& overlay = *store.overlays().at("table");
  constexpr int kDeltas = 3000;
  std::atomic<bool> end = false;
  std::atomic<uint64_t> looks = 0;
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&] {
      while (!end) {
        const TableStore::Pin pin = store.PinNewest();
        if (!overlay.any()) continue;
        for (int64_t row : {2, 8, 2}) {
          const std::byte* const bytes = overlay.Find(row, pin.state());
          if (pin.state() == 0) {
            ASSERT_EQ(bytes, nullptr);
            continue;
          }
          float values[kDim];
          std::memcpy(values, bytes, sizeof(values));
          for (const float value : values) {
            ASSERT_EQ(value, static_cast<float>(pin.state()));
          }
        }
        ASSERT_EQ(pin.sequence(), static_cast<int64_t>(pin.state()));
        ++looks;
      }
    });
  }
  for (int i = 1; i <= kDeltas; ++i) {
    const std::vector<float> rows(2 * kDim, static_cast<float>(i));
    models::TableDelta delta;
    delta.table = "table";
    delta.ids = {2, 8};
    delta.rows = reinterpret_cast<const std::byte*>(rows.data());
    delta.row_bytes = kDim * sizeof(float);
    delta.encoded = true;
    // A reader may be off the processor for as long as 256 deltas take.
    absl::Status status;
    do {
      status = store.Apply({&delta, 1}, i, nullptr);
    } while (absl::IsUnavailable(status));
    ASSERT_TRUE(status.ok()) << status;
  }
  end = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(store.changed_rows(), 2);
  // Memory of replaced rows is used again.
  EXPECT_LT(store.memory_bytes(), 4 << 20);
  std::printf("%d deltas, %lu looks\n", kDeltas,
              static_cast<unsigned long>(looks.load()));
}

TEST(TableStoreTest, AShardKeepsItsOwnRowsOfADividedTable) {
  models::LoadedModel model = *testing_models::MakeSmallModel({});
  model.plan->num_shards = 3;
  models::TableShards& shards = model.plan->shards.emplace_back();
  shards.table = "table";
  shards.ends = {4, 4, kRows};  // the second shard owns no row
  models::TableDelta delta;
  delta.table = "table";
  delta.ids = {1, 3, 4, 9};
  delta.deleted = {0, 5};
  std::map<int64_t, std::vector<float>> changed = {{0, std::vector<float>(kDim)},
                                                   {5, std::vector<float>(kDim)}};
  std::vector<float> rows;
  for (const int64_t id : delta.ids) {
    changed[id] = Values(100 * static_cast<float>(id));
    rows.insert(rows.end(), changed[id].begin(), changed[id].end());
  }
  delta.rows = reinterpret_cast<const std::byte*>(rows.data());
  delta.row_bytes = kDim * sizeof(float);
  delta.encoded = true;
  for (size_t shard = 0; shard < shards.ends.size(); ++shard) {
    SCOPED_TRACE(shard);
    TableStore store(model, {}, shard);
    EXPECT_EQ(store.tables().at("table").rows, kRows);
    EXPECT_EQ(store.tables().at("table").why_not, "");
    ASSERT_TRUE(store.Apply({&delta, 1}, 1, nullptr).ok());
    EXPECT_EQ(store.changed_rows(), shard == 1 ? 0 : 3);
    const runtime::cpu::RowOverlay& overlay = *store.overlays().at("table");
    for (int64_t row = shards.begin(shard); row < shards.ends[shard]; ++row) {
      const std::byte* const bytes = overlay.Find(
          static_cast<uint64_t>(row - shards.begin(shard)), /*state=*/1);
      ASSERT_EQ(bytes != nullptr, changed.contains(row)) << row;
      if (bytes == nullptr) continue;
      std::vector<float> values(kDim);
      std::memcpy(values.data(), bytes, kDim * sizeof(float));
      EXPECT_EQ(values, changed[row]) << row;
    }
    // The shards that do not own the row refuse the delta, too.
    std::vector<float> bad = rows;
    bad.back() = std::numeric_limits<float>::quiet_NaN();
    models::TableDelta refused = delta;
    refused.rows = reinterpret_cast<const std::byte*>(bad.data());
    EXPECT_THAT(std::string(store.Apply({&refused, 1}, 2, nullptr).message()),
                HasSubstr("row of id 9: column 3 is nan"));
  }
}

// Random changes against a plain map per state.
TEST(RowOverlayTest, FindsEveryStateThatIsStillRead) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  constexpr int64_t kTableRows = 5000;
  runtime::cpu::RowOverlay overlay(kTableRows, sizeof(uint64_t));
  std::vector<std::map<uint64_t, uint64_t>> states = {{}};
  uint64_t oldest = 0;
  for (uint64_t state = 1; state <= 60; ++state) {
    const size_t count = random() % 300;
    overlay.Reserve(count, state);
    states.push_back(states.back());
    for (size_t i = 0; i < count; ++i) {
      const uint64_t row = random() % kTableRows;
      const uint64_t value = random();
      states.back()[row] = value;
      overlay.Put(row, state,
                  {reinterpret_cast<const std::byte*>(&value), sizeof(value)});
    }
    if (state % 7 == 0) {
      oldest = state - random() % 5;
      overlay.Collect(oldest);
    }
    for (uint64_t read = oldest; read <= state; ++read) {
      for (int i = 0; i < 300; ++i) {
        const uint64_t row = random() % kTableRows;
        const std::byte* const found =
            overlay.any() ? overlay.Find(row, read) : nullptr;
        const auto wanted = states[read].find(row);
        ASSERT_EQ(found == nullptr, wanted == states[read].end());
        if (found == nullptr) continue;
        uint64_t value;
        std::memcpy(&value, found, sizeof(value));
        ASSERT_EQ(value, wanted->second) << "row " << row << " state " << read;
      }
    }
  }
  EXPECT_EQ(overlay.changed_rows(), states.back().size());
}

}  // namespace
}  // namespace refract::cpu_node
