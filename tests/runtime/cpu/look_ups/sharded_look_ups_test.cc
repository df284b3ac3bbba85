#include "runtime/cpu/look_ups/sharded_look_ups.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/tables/id_index.h"
#include "runtime/cpu/look_ups/row_overlay.h"
#include "runtime/cpu/look_ups/shard_message.h"
#include "runtime/cpu/look_ups/shard_peers.h"

namespace refract::runtime::cpu {
namespace {

using ::testing::HasSubstr;

constexpr size_t kShards = 3;

template <typename T>
base::TensorView View(base::DType dtype, const std::vector<T>& values) {
  return {dtype,
          {static_cast<int64_t>(values.size())},
          reinterpret_cast<const std::byte*>(values.data()),
          values.size() * sizeof(T)};
}

struct ShardCase {
  BagMode mode = BagMode::kSum;
  bool bags = true;      // else one id a bag
  bool copies = false;   // only without bags
  bool weighted = false;
  bool padding = false;
  bool packaged = false;
  bool by_ids = false;   // the table is divided by ids of 64 bits
  models::IdPolicy policy = models::IdPolicy::kError;
  int64_t dim = 16;
};

// One table, as one process and as each of kShards processes has it.
struct Table {
  Table(const ShardCase& c, size_t number, std::mt19937_64& random) {
    use.table = "table " + std::to_string(number);
    use.policy = c.policy;
    dim = c.dim;
    rows = 1 + static_cast<int64_t>(random() % 200);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * dim; ++i) {
      // Zeros of both signs are kept apart where nothing is added.
      values.push_back(random() % 10 == 0 ? -0.0F : normal(random));
    }
    models::TableShards shards;
    shards.table = use.table;
    for (size_t k = 0; k + 1 < kShards; ++k) {
      shards.ends.push_back(static_cast<int64_t>(random()) & 255);
    }
    for (int64_t& end : shards.ends) end = std::min(end, rows);
    std::sort(shards.ends.begin(), shards.ends.end());
    shards.ends.push_back(rows);
    if (c.by_ids) {
      for (int64_t i = 0; i < rows; ++i) {
        ids.push_back(static_cast<int64_t>(random()));
      }
      std::vector<int64_t> counts(kShards, 0);
      for (const int64_t id : ids) ++counts[models::OwnerOfId(id, kShards)];
      std::partial_sum(counts.begin(), counts.end(), shards.ends.begin());
      shards.by_ids = true;
      whole = std::make_unique<Indexed>(values, ids, dim, nullptr);
    }
    for (size_t k = 0; k < kShards; ++k) {
      sharded[k].rows = shards;
      sharded[k].number = number;
      sharded[k].own = k;
      sharded[k].packaged = c.packaged;
      if (!c.by_ids) continue;
      // Any row may be the padding index of the request.
      for (int64_t i = 0; i < rows; ++i) {
        sharded[k].padding_ids[i] = ids[static_cast<size_t>(i)];
      }
      const models::OwnIds own(shards, k, ids[0]);
      std::vector<float> its_values;
      std::vector<int64_t> its_ids;
      for (int64_t i = 0; i < rows; ++i) {
        if (c.packaged && !own.Has(ids[static_cast<size_t>(i)])) continue;
        its_ids.push_back(ids[static_cast<size_t>(i)]);
        its_values.insert(its_values.end(), values.begin() + i * dim,
                          values.begin() + (i + 1) * dim);
      }
      sharded[k].stored_rows = static_cast<int64_t>(its_ids.size());
      stored[k] = std::make_unique<Indexed>(its_values, its_ids, dim, &own);
    }
  }
  // The id that a request sends for row `row`, which may be outside the table.
  int64_t IdOf(int64_t row) const {
    if (ids.empty()) return row;
    return row >= 0 && row < rows ? ids[static_cast<size_t>(row)] : ~ids[0] + row;
  }
  // The shard that has the row `row` of the id `id`.
  size_t OwnerOf(int64_t row, int64_t id) const {
    const models::TableShards& shards = sharded[0].rows;
    if (shards.by_ids) {
      return shards.sole_owner().value_or(models::OwnerOfId(id, kShards));
    }
    size_t owner = 0;
    while (row >= shards.ends[owner]) ++owner;
    return owner;
  }
  // Rows with an index of their ids, or of those that `own` has.
  struct Indexed {
    Indexed(std::vector<float> of_rows, const std::vector<int64_t>& of_ids,
            int64_t dim, const models::OwnIds* own)
        : values(std::move(of_rows)),
          index(*models::IdIndex::Build(of_ids, own)),
          overlay(static_cast<int64_t>(of_ids.size()),
                  static_cast<size_t>(dim) * sizeof(float)) {
      overlay.SetIds(index.get());
    }
    void SetIn(TableRows& table) const {
      table.data = reinterpret_cast<const std::byte*>(values.data());
      table.ids = index.get();
      table.overlay = &overlay;
    }
    std::vector<float> values;
    std::shared_ptr<const models::IdIndex> index;
    RowOverlay overlay;
  };
  TableRows Whole() const {
    TableRows result;
    result.data = reinterpret_cast<const std::byte*>(values.data());
    result.rows = rows;
    result.row_bytes = static_cast<size_t>(dim) * sizeof(float);
    if (whole != nullptr) whole->SetIn(result);
    return result;
  }
  OwnedTable Owned(size_t shard) const {
    OwnedTable owned;
    owned.rows = Whole();
    owned.dim = dim;
    owned.use.table = use.table;
    if (stored[shard] != nullptr) {
      stored[shard]->SetIn(owned.rows);
      owned.rows.rows = sharded[shard].stored_rows;
      owned.use.policy = use.policy;
      return owned;
    }
    owned.rows.data += static_cast<size_t>(sharded[shard].rows.begin(shard)) *
                       owned.rows.row_bytes;
    owned.rows.rows = sharded[shard].rows.rows(shard);
    return owned;
  }

  TableUse use;
  int64_t dim = 0;
  int64_t rows = 0;
  std::vector<float> values;
  ShardedTable sharded[kShards];
  // With by_ids.
  std::vector<int64_t> ids;
  std::unique_ptr<Indexed> whole;
  std::unique_ptr<Indexed> stored[kShards];
};

// A look-up with random ids of a table.
struct Request {
  Request(const ShardCase& c, const Table& table, std::mt19937_64& random) {
    const auto count = static_cast<int64_t>(random() % 60);
    for (int64_t i = 0; i < count; ++i) {
      int64_t id = static_cast<int64_t>(random() % table.rows);
      if (c.policy != models::IdPolicy::kError && random() % 5 == 0) {
        id = random() % 2 == 0 ? -1 - id : table.rows + id;
      }
      rows.push_back(id);
      ids.push_back(table.IdOf(id));
      weights.push_back(static_cast<float>(random() % 100) / 50.0F);
    }
    if (c.bags) {
      int64_t at = 0;
      while (at < count || random() % 3 == 0) {
        offsets.push_back(at);
        at = std::min(count, at + static_cast<int64_t>(random() % 6));
      }
      offsets.push_back(count);
    }
    ids_view = View(base::DType::kInt64, ids);
    offsets_view = View(base::DType::kInt64, offsets);
    look_up.table = table.Whole();
    look_up.dim = table.dim;
    look_up.copies = c.copies;
    look_up.mode = c.mode;
    look_up.ids = &ids_view;
    look_up.num_bags = count;
    if (c.bags) {
      look_up.offsets = &offsets_view;
      look_up.include_last_offset = true;
      look_up.num_bags = static_cast<int64_t>(offsets.size()) - 1;
    }
    if (c.weighted) {
      look_up.weights = reinterpret_cast<const std::byte*>(weights.data());
    }
    // Its row number, also where rows have ids.
    if (c.padding && !rows.empty() &&
        (!c.by_ids || rows.front() < table.rows)) {
      look_up.padding_id = rows.front();
    }
    look_up.use = &table.use;
    look_up.out_stride = table.dim * static_cast<int64_t>(sizeof(float));
  }
  int64_t First(int64_t bag) const {
    return offsets.empty() ? bag : offsets[static_cast<size_t>(bag)];
  }
  size_t floats() const {
    return static_cast<size_t>(look_up.num_bags * look_up.dim);
  }

  std::vector<int64_t> rows;  // of the ids
  std::vector<int64_t> ids;
  std::vector<int64_t> offsets;
  std::vector<float> weights;
  base::TensorView ids_view;
  base::TensorView offsets_view;
  LookUp look_up;
};

// The other processes, in this one.
class Peers final : public ShardPeers {
 public:
  explicit Peers(const std::vector<std::unique_ptr<Table>>& tables)
      : tables_(tables) {}
  void Ask(absl::Span<ShardCall> calls,
           absl::FunctionRef<void()> meanwhile) override {
    meanwhile();
    for (ShardCall& call : calls) {
      ++asked;
      call.status = lost == static_cast<int>(call.shard)
                        ? absl::UnavailableError("lost")
                        : Answer(call);
    }
  }
  int lost = -1;
  int asked = 0;

 private:
  absl::Status Answer(ShardCall& call) {
    std::vector<OwnedTable> owned;
    for (const auto& table : tables_) owned.push_back(table->Owned(call.shard));
    ShardLookUps look_ups;
    const auto tensors = call.message->tensors();
    if (const absl::Status status = look_ups.Read(tensors, owned, 0);
        !status.ok()) {
      return status;
    }
    EXPECT_EQ(look_ups.answer_floats(), call.message->answer_floats());
    call.answer.resize(static_cast<size_t>(look_ups.answer_floats()));
    RunStats stats;
    const absl::Status status = look_ups.Run(call.answer.data(), stats);
    call.replaced_ids = static_cast<int64_t>(stats.replaced_ids);
    call.first_missing = look_ups.first_missing();
    return status;
  }
  const std::vector<std::unique_ptr<Table>>& tables_;
};

// The result in double, id by id; `lost`: the shard whose rows are zeros.
void CheckAgainstArithmetic(const ShardCase& c, const Table& table,
                            const Request& request, int lost,
                            const std::vector<float>& out) {
  const int64_t dim = table.dim;
  for (int64_t bag = 0; bag < request.look_up.num_bags; ++bag) {
    for (int64_t d = 0; d < dim; ++d) {
      double sum = 0;
      double magnitude = 0;
      double largest = -INFINITY;
      int64_t used = 0;
      for (int64_t i = request.First(bag); i < request.First(bag + 1); ++i) {
        int64_t id = request.rows[static_cast<size_t>(i)];
        const int64_t asked = request.ids[static_cast<size_t>(i)];
        if (request.look_up.padding_id >= 0 &&
            id == request.look_up.padding_id) {
          continue;
        }
        ++used;
        if ((id < 0 || id >= table.rows) &&
            c.policy == models::IdPolicy::kDefaultRow) {
          id = 0;
        }
        double value = 0;
        if (id >= 0 && id < table.rows) {
          if (static_cast<int>(table.OwnerOf(id, asked)) != lost) {
            value = table.values[static_cast<size_t>(id * dim + d)];
          }
        }
        if (c.weighted) value *= request.weights[static_cast<size_t>(i)];
        sum += value;
        magnitude += std::abs(value);
        largest = std::max(largest, value);
      }
      double wanted = used == 0 ? 0 : sum;
      if (c.mode == BagMode::kMean && used > 0) wanted /= used;
      if (c.mode == BagMode::kMax && used > 0) wanted = largest;
      ASSERT_NEAR(out[static_cast<size_t>(bag * dim + d)], wanted,
                  1e-6 * magnitude)
          << "bag " << bag << " column " << d;
    }
  }
}

// Whether the bag's ids inside the table, padding aside, are rows of one shard.
bool HasOneOwner(const Table& table, const Request& request, int64_t bag) {
  std::set<size_t> owners;
  for (int64_t i = request.First(bag); i < request.First(bag + 1); ++i) {
    const int64_t row = request.rows[static_cast<size_t>(i)];
    const int64_t id = request.ids[static_cast<size_t>(i)];
    if (request.look_up.padding_id >= 0 && row == request.look_up.padding_id) {
      continue;
    }
    // The owner of an id outside the table depends on the policy.
    if (row < 0 || row >= table.rows) {
      return request.First(bag + 1) - request.First(bag) == 1;
    }
    owners.insert(table.OwnerOf(row, id));
  }
  return owners.size() <= 1;
}

std::vector<ShardCase> Cases() {
  std::vector<ShardCase> cases;
  for (const models::IdPolicy policy :
       {models::IdPolicy::kError, models::IdPolicy::kZeroRow,
        models::IdPolicy::kDefaultRow}) {
    for (const bool packaged : {false, true}) {
      for (const BagMode mode :
           {BagMode::kSum, BagMode::kMean, BagMode::kMax}) {
        for (const bool padding : {false, true}) {
          cases.push_back({.mode = mode,
                           .padding = padding,
                           .packaged = packaged,
                           .policy = policy});
        }
        cases.push_back({.mode = mode,
                         .packaged = packaged,
                         .by_ids = true,
                         .policy = policy});
      }
      cases.push_back(
          {.weighted = true, .packaged = packaged, .policy = policy});
      for (const bool by_ids : {false, true}) {
        cases.push_back({.bags = false,
                         .packaged = packaged,
                         .by_ids = by_ids,
                         .policy = policy});
      }
      cases.push_back({.weighted = true,
                       .packaged = packaged,
                       .by_ids = true,
                       .policy = policy});
      cases.push_back({.bags = false,
                       .copies = true,
                       .packaged = packaged,
                       .policy = policy,
                       .dim = 5});
      ShardCase padded = {.padding = true,
                          .packaged = packaged,
                          .by_ids = true,
                          .policy = policy};
      for (const BagMode mode :
           {BagMode::kMean, BagMode::kMax, BagMode::kSum}) {
        padded.mode = mode;
        cases.push_back(padded);
      }
      padded.weighted = true;
      cases.push_back(padded);
    }
  }
  return cases;
}

class ShardedLookUpsTest : public ::testing::Test {
 protected:
  // Random look-ups of all cases, one table each.
  void Draw() {
    tables.clear();
    requests.clear();
    whole.clear();
    cases = Cases();
    for (size_t i = 0; i < cases.size(); ++i) {
      tables.push_back(std::make_unique<Table>(cases[i], i, random));
      requests.push_back(
          std::make_unique<Request>(cases[i], *tables[i], random));
    }
  }
  // Runs the look-ups in one process.
  void RunWhole() {
    whole.resize(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      whole[i].resize(requests[i]->floats() + 1);
      LookUp look_up = requests[i]->look_up;
      look_up.out = reinterpret_cast<std::byte*>(whole[i].data());
      RunStats stats;
      ASSERT_TRUE(RunLookUps({&look_up, 1}, stats).ok());
      replaced += stats.replaced_ids;
    }
  }
  // Runs the look-ups as shard `own`; every fourth table is whole there.
  absl::Status RunAt(size_t own, Peers& peers) {
    std::vector<LookUp> look_ups;
    out.assign(requests.size(), {});
    for (size_t i = 0; i < requests.size(); ++i) {
      LookUp look_up = requests[i]->look_up;
      out[i].assign(requests[i]->floats() + 1, NAN);
      look_up.out = reinterpret_cast<std::byte*>(out[i].data());
      if (i % 4 != 3) {
        look_up.table.sharded = &tables[i]->sharded[own];
        look_up.table.peers = &peers;
        if (cases[i].packaged) {
          look_up.table.data = tables[i]->Owned(own).rows.data;
        }
        if (cases[i].by_ids) tables[i]->stored[own]->SetIn(look_up.table);
      }
      look_ups.push_back(look_up);
    }
    stats = RunStats();
    return RunLookUps(look_ups, stats);
  }

  std::mt19937_64 random{7};
  std::vector<ShardCase> cases;
  std::vector<std::unique_ptr<Table>> tables;
  std::vector<std::unique_ptr<Request>> requests;
  std::vector<std::vector<float>> whole;
  std::vector<std::vector<float>> out;
  uint64_t replaced = 0;
  RunStats stats;
};

TEST_F(ShardedLookUpsTest, ResultsAreThoseOfOneProcess) {
  int pooled[2][2] = {};  // bags of several ids, by ids, with padding
  for (int round = 0; round < 40; ++round) {
    Draw();
    replaced = 0;
    RunWhole();
    for (size_t own = 0; own < kShards; ++own) {
      Peers peers(tables);
      const absl::Status status = RunAt(own, peers);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_LE(peers.asked, static_cast<int>(kShards) - 1);
      EXPECT_EQ(stats.replaced_ids, replaced);
      EXPECT_EQ(stats.lost_ids, 0);
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(i);
        CheckAgainstArithmetic(cases[i], *tables[i], *requests[i], -1, out[i]);
        // Bags whose ids have one owner bit for bit.
        const auto bytes = static_cast<size_t>(tables[i]->dim) * sizeof(float);
        for (int64_t bag = 0; bag < requests[i]->look_up.num_bags; ++bag) {
          if (!HasOneOwner(*tables[i], *requests[i], bag)) continue;
          if (requests[i]->First(bag + 1) - requests[i]->First(bag) > 1) {
            ++pooled[cases[i].by_ids ? 1 : 0][cases[i].padding ? 1 : 0];
          }
          const auto at = static_cast<size_t>(bag * tables[i]->dim);
          EXPECT_EQ(
              std::memcmp(out[i].data() + at, whole[i].data() + at, bytes), 0)
              << "bag " << bag;
        }
      }
    }
  }
  for (const auto& by_padding : pooled) {
    for (const int bags : by_padding) EXPECT_GT(bags, 100);
  }
}

TEST_F(ShardedLookUpsTest, RowsOfALostShardAreZerosOnlyIfTheModelSaysSo) {
  for (int round = 0; round < 10; ++round) {
    Draw();
    for (const auto& table : tables) {
      for (ShardedTable& shard : table->sharded) shard.zero_when_lost = true;
    }
    Peers peers(tables);
    peers.lost = 1;
    ASSERT_TRUE(RunAt(0, peers).ok());
    EXPECT_GT(stats.lost_ids, 0);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      CheckAgainstArithmetic(cases[i], *tables[i], *requests[i],
                             i % 4 == 3 ? -1 : peers.lost, out[i]);
    }
    for (const auto& table : tables) {
      for (ShardedTable& shard : table->sharded) shard.zero_when_lost = false;
    }
    EXPECT_TRUE(absl::IsUnavailable(RunAt(0, peers)));
  }
}

TEST_F(ShardedLookUpsTest, AWrongIdIsNamedAsInOneProcessAndNobodyIsAsked) {
  Draw();
  // A look-up of policy kError whose table is divided by row numbers.
  requests[6]->ids.assign(5, 0);
  requests[6]->ids[3] = tables[6]->rows;
  requests[6]->ids_view = View(base::DType::kInt64, requests[6]->ids);
  requests[6]->offsets = {0, 5};
  requests[6]->offsets_view = View(base::DType::kInt64, requests[6]->offsets);
  requests[6]->look_up.num_bags = 1;
  Peers peers(tables);
  const absl::Status status = RunAt(0, peers);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status, CheckIds({&requests[6]->look_up, 1}));
  EXPECT_THAT(std::string(status.message()), HasSubstr("at position 3"));
  EXPECT_EQ(peers.asked, 0);
}

TEST_F(ShardedLookUpsTest, TheFirstUnknownIdIsNamedAsInOneProcess) {
  for (int round = 0; round < 200; ++round) {
    Draw();
    // One divided look-up by ids, in bags, of policy kError, with unknown ids.
    size_t wrong = random() % cases.size();
    while (!cases[wrong].by_ids || !cases[wrong].bags || wrong % 4 == 3 ||
           cases[wrong].policy != models::IdPolicy::kError) {
      wrong = (wrong + 1) % cases.size();
    }
    Request& request = *requests[wrong];
    if (request.ids.empty()) continue;
    for (int n = 0; n < 3; ++n) {
      request.ids[random() % request.ids.size()] =
          static_cast<int64_t>(random());
    }
    Peers peers(tables);
    const absl::Status status = RunAt(round % kShards, peers);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(status, CheckIds({&request.look_up, 1}));
    EXPECT_THAT(std::string(status.message()), HasSubstr("has no row"));
  }
}

TEST_F(ShardedLookUpsTest, WithoutPeersARunThatNeedsThemFails) {
  Draw();
  Peers peers(tables);
  std::vector<LookUp> look_ups;
  for (size_t i = 0; i < requests.size(); ++i) {
    look_ups.push_back(requests[i]->look_up);
    out.emplace_back(requests[i]->floats() + 1);
    look_ups.back().out = reinterpret_cast<std::byte*>(out.back().data());
    look_ups.back().table.sharded = &tables[i]->sharded[0];
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(RunLookUps(look_ups, stats)));
}

}  // namespace
}  // namespace refract::runtime::cpu
