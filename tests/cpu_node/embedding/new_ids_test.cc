// Ids that deltas add to tables and remove from them: what each state has.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cpu_node/embedding/table_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/deltas/delta.h"
#include "models/tables/id_index.h"
#include "tests/base/random_seed.h"
#include "tests/cpu_node/serving_fixture.h"

namespace refract::cpu_node {
namespace {

using ::testing::HasSubstr;
using testing_models::kDim;
using testing_models::kRows;

// Changes of a store whose table has ids, one float per row repeated.
class NewIdsTest : public testing::Test {
 protected:
  static constexpr int64_t kMost = 40;

  NewIdsTest() { MakeStore(kMost); }
  void MakeStore(int64_t most) {
    std::vector<int64_t> ids(kRows);
    for (int64_t row = 0; row < kRows; ++row) ids[row] = IdOf(row);
    IdIndexes indexes;
    indexes["table"] = *models::IdIndex::Build(ids);
    store_ = std::make_unique<TableStore>(*model_, indexes, std::nullopt, most);
  }
  // Ids look like hashes; the first kRows are those of the import.
  static int64_t IdOf(int64_t n) {
    return static_cast<int64_t>(static_cast<uint64_t>(n + 1) *
                                0x9E3779B97F4A7C15u);
  }
  // `upserted`: n of the id → value. Lists are sorted by id.
  absl::Status Apply(const std::map<int64_t, float>& upserted,
                     const std::vector<int64_t>& deleted, int64_t sequence) {
    std::map<int64_t, float> by_id;
    for (const auto& [n, value] : upserted) by_id[IdOf(n)] = value;
    std::vector<float> rows;
    models::TableDelta delta;
    delta.table = "table";
    for (const auto& [id, value] : by_id) {
      delta.ids.push_back(id);
      rows.insert(rows.end(), kDim, value);
    }
    for (const int64_t n : deleted) delta.deleted.push_back(IdOf(n));
    std::sort(delta.deleted.begin(), delta.deleted.end());
    delta.rows = reinterpret_cast<const std::byte*>(rows.data());
    delta.row_bytes = kDim * sizeof(float);
    delta.encoded = true;
    const absl::Status room = store_->CheckRoom({&delta, 1});
    const absl::Status status = store_->Apply({&delta, 1}, sequence, nullptr);
    if (!absl::IsUnavailable(status)) {
      EXPECT_EQ(room.code(), status.code());
    }
    return status;
  }
  // The value of id n's row; null: the id has no row. NaN: as imported.
  std::optional<float> Read(int64_t n, uint64_t state) const {
    const runtime::cpu::RowOverlay& overlay = *store_->overlays().at("table");
    const int64_t id = IdOf(n);
    int64_t row = 0;
    overlay.FindRows(absl::Span<const int64_t>(&id, 1), state, &row);
    if (row == models::IdIndex::kNoRow) return std::nullopt;
    const std::byte* const bytes =
        overlay.any() ? overlay.Find(static_cast<uint64_t>(row), state)
                      : nullptr;
    if (bytes == nullptr) {
      EXPECT_LT(row, kRows);
      return std::numeric_limits<float>::infinity();
    }
    float values[kDim];
    std::memcpy(values, bytes, sizeof(values));
    for (const float value : values) EXPECT_EQ(value, values[0]);
    return values[0];
  }

  std::shared_ptr<const models::LoadedModel> model_ =
      testing_models::MakeSmallModel({.split = false});
  std::unique_ptr<TableStore> store_;
};

TEST_F(NewIdsTest, DeltasWithoutNewIds) {
  ASSERT_TRUE(Apply({}, {}, 1).ok());
  ASSERT_TRUE(Apply({{3, 1.0F}}, {4, kRows + 5}, 2).ok());
  EXPECT_EQ(Read(3, 2), 1.0F);
  EXPECT_EQ(Read(4, 2), std::nullopt);
  EXPECT_TRUE(Read(4, 1).has_value());
  EXPECT_EQ(store_->new_ids(), 0);
}

TEST_F(NewIdsTest, RandomChangesAgainstAMapPerState) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  constexpr int64_t kIds = 120;
  using Map = std::map<int64_t, float>;
  Map now;
  for (int64_t n = 0; n < kRows; ++n) {
    now[n] = std::numeric_limits<float>::infinity();
  }
  std::deque<std::pair<TableStore::Pin, Map>> held;
  int refused = 0;
  for (int64_t sequence = 1; sequence <= 800; ++sequence) {
    Map next = now;
    Map upserted;
    std::vector<int64_t> deleted;
    for (uint32_t i = random() % 30; i > 0; --i) {
      const int64_t n = random() % kIds;
      if (upserted.contains(n) ||
          std::find(deleted.begin(), deleted.end(), n) != deleted.end()) {
        continue;
      }
      if (random() % 5 < 2) {
        deleted.push_back(n);
        next.erase(n);
      } else {
        next[n] = upserted[n] = static_cast<float>(sequence);
      }
    }
    const auto added = std::distance(next.lower_bound(kRows), next.end());
    absl::Status status;
    while (absl::IsUnavailable(status = Apply(upserted, deleted, sequence))) {
      ASSERT_FALSE(held.empty());
      held.pop_front();
    }
    if (added > kMost) {
      ++refused;
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_THAT(status.message(),
                  HasSubstr(absl::StrCat("table 'table' would have ", added,
                                         " new ids")));
    } else {
      ASSERT_TRUE(status.ok()) << status;
      now = next;
      EXPECT_EQ(store_->new_ids(), added);
    }
    held.emplace_back(store_->PinNewest(), now);
    while (held.size() > random() % 12) held.pop_front();
    held.emplace_back(store_->PinNewest(), now);
    for (const auto& [pin, map] : held) {
      for (int64_t n = 0; n < kIds; ++n) {
        const auto wanted = map.find(n);
        const std::optional<float> found = Read(n, pin.state());
        ASSERT_EQ(found.has_value(), wanted != map.end())
            << "id " << n << " in state " << pin.state() << " of " << sequence;
        if (found) {
          ASSERT_EQ(*found, wanted->second);
        }
      }
    }
  }
  EXPECT_GT(refused, 0);
}

// Each delta removes the oldest of 30 ids, adds one and changes the others; a
// reader finds the 30 ids of its state with that state's rows, and no others.
TEST_F(NewIdsTest, ReadersBesideAWriterSeeTheIdsOfTheirState) {
  constexpr int64_t kIds = 30;
  constexpr int64_t kDeltas = 2000;
  std::atomic<bool> end = false;
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&] {
      while (!end) {
        const TableStore::Pin pin = store_->PinNewest();
        if (pin.state() == 0) continue;
        const auto state = static_cast<int64_t>(pin.state());
        for (int64_t n = std::max<int64_t>(1, state - 3); n < state + kIds + 3;
             ++n) {
          const std::optional<float> found = Read(kRows + n, pin.state());
          ASSERT_EQ(found.has_value(), n >= state && n < state + kIds);
          if (found) {
            ASSERT_EQ(*found, static_cast<float>(state));
          }
        }
      }
    });
  }
  for (int64_t i = 1; i <= kDeltas; ++i) {
    std::map<int64_t, float> upserted;
    for (int64_t n = i; n < i + kIds; ++n) {
      upserted[kRows + n] = static_cast<float>(i);
    }
    std::vector<int64_t> deleted;
    if (i > 1) deleted.push_back(kRows + i - 1);
    absl::Status status;
    while (absl::IsUnavailable(status = Apply(upserted, deleted, i))) {
      std::this_thread::yield();
    }
    ASSERT_TRUE(status.ok()) << status;
  }
  end = true;
  for (std::thread& reader : readers) reader.join();
  // Places of removed ids are used again.
  EXPECT_EQ(store_->new_ids(), kIds);
  EXPECT_LT(store_->memory_bytes(), 4 << 20);
}

// The bound that `refract inspect` prints holds where deltas replace few ids
// each; where they replace all, twice that.
TEST_F(NewIdsTest, MemoryStaysBoundedWhileIdsAreReplaced) {
  constexpr int64_t kMany = 20'000;
  const size_t row = kDim * sizeof(float);
  const size_t bound =
      kMany * (2 * (row + runtime::cpu::RowOverlay::kMostBesideRow) +
               models::NewIds::kBytesPerId);
  for (const int64_t at_once : {kMany / 20, kMany}) {
    MakeStore(kMany);
    size_t most = 0;
    int64_t sequence = 0;
    // Ids [first, first + kMany) are there after a round.
    for (int64_t first = -kMany; first < 6 * kMany; first += at_once) {
      std::map<int64_t, float> upserted;
      std::vector<int64_t> deleted;
      for (int64_t n = first; n < first + at_once; ++n) {
        if (n >= 0) deleted.push_back(kRows + n);
        upserted[kRows + n + kMany] = static_cast<float>(sequence);
      }
      ASSERT_TRUE(Apply(upserted, deleted, ++sequence).ok());
      most = std::max(most, store_->memory_bytes());
    }
    EXPECT_EQ(store_->new_ids(), kMany);
    EXPECT_LT(most, (at_once == kMany ? 2 : 1) * bound + (2 << 20));
    EXPECT_GT(most, kMany * row);
  }
}

}  // namespace
}  // namespace refract::cpu_node
