#include "runtime/cpu/look_ups/sharded_look_ups.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

struct Case {
  BagMode mode = BagMode::kSum;
  bool bags = true;      // else one id a bag
  bool copies = false;   // only without bags
  bool weighted = false;
  bool padding = false;
  bool packaged = false;
  models::IdPolicy policy = models::IdPolicy::kError;
  int64_t dim = 16;
};

// One table, as one process and as each of kShards processes has it.
struct Table {
  Table(const Case& c, size_t number, std::mt19937_64& random) {
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
    for (size_t k = 0; k < kShards; ++k) {
      sharded[k].rows = shards;
      sharded[k].number = number;
      sharded[k].own = k;
      sharded[k].packaged = c.packaged;
    }
  }
  TableRows Whole() const {
    TableRows result;
    result.data = reinterpret_cast<const std::byte*>(values.data());
    result.rows = rows;
    result.row_bytes = static_cast<size_t>(dim) * sizeof(float);
    return result;
  }
  OwnedTable Owned(size_t shard) const {
    OwnedTable owned;
    owned.rows = Whole();
    owned.rows.data += static_cast<size_t>(sharded[shard].rows.begin(shard)) *
                       owned.rows.row_bytes;
    owned.rows.rows = sharded[shard].rows.rows(shard);
    owned.dim = dim;
    owned.use.table = use.table;
    return owned;
  }

  TableUse use;
  int64_t dim = 0;
  int64_t rows = 0;
  std::vector<float> values;
  ShardedTable sharded[kShards];
};

// A look-up with random ids of a table.
struct Request {
  Request(const Case& c, const Table& table, std::mt19937_64& random) {
    const auto count = static_cast<int64_t>(random() % 60);
    for (int64_t i = 0; i < count; ++i) {
      int64_t id = static_cast<int64_t>(random() % table.rows);
      if (c.policy != models::IdPolicy::kError && random() % 5 == 0) {
        id = random() % 2 == 0 ? -1 - id : table.rows + id;
      }
      ids.push_back(id);
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
    if (c.padding && !ids.empty()) look_up.padding_id = ids.front();
    look_up.use = &table.use;
    look_up.out_stride = table.dim * static_cast<int64_t>(sizeof(float));
  }
  int64_t First(int64_t bag) const {
    return offsets.empty() ? bag : offsets[static_cast<size_t>(bag)];
  }
  size_t floats() const {
    return static_cast<size_t>(look_up.num_bags * look_up.dim);
  }

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
    return look_ups.Run(call.answer.data(), stats);
  }
  const std::vector<std::unique_ptr<Table>>& tables_;
};

// The result in double, id by id; `lost`: the shard whose rows are zeros.
void CheckAgainstArithmetic(const Case& c, const Table& table,
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
        int64_t id = request.ids[static_cast<size_t>(i)];
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
          const auto& ends = table.sharded[0].rows.ends;
          int owner = 0;
          while (id >= ends[static_cast<size_t>(owner)]) ++owner;
          if (owner != lost) {
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

std::vector<Case> Cases() {
  std::vector<Case> cases;
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
      }
      cases.push_back(
          {.weighted = true, .packaged = packaged, .policy = policy});
      cases.push_back({.bags = false, .packaged = packaged, .policy = policy});
      cases.push_back({.bags = false,
                       .copies = true,
                       .packaged = packaged,
                       .policy = policy,
                       .dim = 5});
    }
  }
  return cases;
}

class ShardedLookUpsTest : public testing::Test {
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
  // As one process does it.
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
  // As shard `own` does it; every fourth table is whole there.
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
      }
      look_ups.push_back(look_up);
    }
    stats = RunStats();
    return RunLookUps(look_ups, stats);
  }

  std::mt19937_64 random{7};
  std::vector<Case> cases;
  std::vector<std::unique_ptr<Table>> tables;
  std::vector<std::unique_ptr<Request>> requests;
  std::vector<std::vector<float>> whole;
  std::vector<std::vector<float>> out;
  uint64_t replaced = 0;
  RunStats stats;
};

TEST_F(ShardedLookUpsTest, ResultsAreThoseOfOneProcess) {
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
        // Bags of one id bit for bit.
        const auto bytes = static_cast<size_t>(tables[i]->dim) * sizeof(float);
        for (int64_t bag = 0; bag < requests[i]->look_up.num_bags; ++bag) {
          if (requests[i]->First(bag + 1) - requests[i]->First(bag) > 1) {
            continue;
          }
          const auto at = static_cast<size_t>(bag * tables[i]->dim);
          EXPECT_EQ(
              std::memcmp(out[i].data() + at, whole[i].data() + at, bytes), 0)
              << "bag " << bag;
        }
      }
    }
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
  // The third look-up of policy kError; its table and the next are divided.
  requests[2]->ids.assign(5, 0);
  requests[2]->ids[3] = tables[2]->rows;
  requests[2]->ids_view = View(base::DType::kInt64, requests[2]->ids);
  requests[2]->offsets = {0, 5};
  requests[2]->offsets_view = View(base::DType::kInt64, requests[2]->offsets);
  requests[2]->look_up.num_bags = 1;
  Peers peers(tables);
  const absl::Status status = RunAt(0, peers);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status, CheckIds({&requests[2]->look_up, 1}));
  EXPECT_THAT(std::string(status.message()), HasSubstr("at position 3"));
  EXPECT_EQ(peers.asked, 0);
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

// ------------------------------------------------------------------- messages

class ShardMessageTest : public testing::Test {
 protected:
  ShardMessageTest() {
    for (size_t i = 0; i < 3; ++i) {
      OwnedTable table;
      table.rows.data = reinterpret_cast<const std::byte*>(values.data());
      table.rows.rows = 10;
      table.rows.row_bytes = 64;
      table.dim = 16;
      table.use.table = "t" + std::to_string(i);
      owned.push_back(table);
    }
    message.Begin(0, ShardLookUpKind::kSum, 16);
    message.Add(3, 0, 1);
    message.Add(9, 0, 1);
    message.Add(0, 4, 1);
    message.Begin(1, ShardLookUpKind::kMax, 16);  // nothing
    message.Begin(2, ShardLookUpKind::kWeighted, 16);
    message.Add(1, 1, 0.5F);
    message.Begin(1, ShardLookUpKind::kCopy, 16);
    message.Add(7, 0, 1);
    message.Add(7, 1, 1);
  }
  const std::vector<float> values = std::vector<float>(10 * 16, 1.0F);
  std::vector<OwnedTable> owned;
  ShardMessage message;
};

TEST_F(ShardMessageTest, HasTheTensorsOfThePage) {
  const auto tensors = message.tensors();
  const auto ints = [&](size_t t) {
    const auto view = tensors[t].as<int64_t>();
    return std::vector<int64_t>(view.begin(), view.end());
  };
  EXPECT_EQ(tensors[0].dims, (base::Dims{3, 4}));
  EXPECT_EQ(ints(0), (std::vector<int64_t>{0, 2, 2, 3,  //
                                           2, 3, 1, 1,  //
                                           1, 0, 2, 2}));
  const auto lengths = tensors[1].as<int32_t>();
  EXPECT_EQ(std::vector<int32_t>(lengths.begin(), lengths.end()),
            (std::vector<int32_t>{2, 1, 1}));
  EXPECT_EQ(ints(2), (std::vector<int64_t>{3, 9, 0, 1, 7, 7}));
  const auto weights = tensors[3].as<float>();
  EXPECT_EQ(std::vector<float>(weights.begin(), weights.end()),
            (std::vector<float>{0.5F}));
  EXPECT_EQ(message.answer_floats(), 5 * 16);
  EXPECT_THAT(message.BagsOf(0), testing::ElementsAre(0, 4));
  EXPECT_THAT(message.BagsOf(1), testing::IsEmpty());
  EXPECT_EQ(message.AnswerOf(3), 3 * 16);
}

// Whatever bytes a peer sends, Read() refuses them or Run() reads inside the
// tables (ASan and the guard behind the answer would notice otherwise).
TEST_F(ShardMessageTest, AnyBytesAreRefusedOrAnsweredWithinTheTables) {
  std::mt19937_64 random(99);
  const auto tensors = message.tensors();
  int answered = 0;
  for (int round = 0; round < 200000; ++round) {
    std::vector<std::vector<char>> bytes;
    std::vector<base::TensorView> sent(tensors.begin(), tensors.end());
    for (base::TensorView& tensor : sent) {
      const char* const from = reinterpret_cast<const char*>(tensor.data);
      bytes.emplace_back(from, from + tensor.bytes);
    }
    const int edits = 1 + static_cast<int>(random() % 3);
    for (int e = 0; e < edits; ++e) {
      const size_t t = random() % sent.size();
      switch (random() % 4) {
        case 0:  // a shape
          if (!sent[t].dims.empty()) {
            const int64_t step = random() % 2 == 0 ? 1 : -1;
            sent[t].dims[0] = std::max<int64_t>(0, sent[t].dims[0] + step);
            const size_t per_row =
                base::SizeOf(sent[t].dtype) * (sent[t].dims.size() > 1 ? 4 : 1);
            bytes[t].resize(static_cast<size_t>(sent[t].dims[0]) * per_row);
          }
          break;
        case 1: {  // a number
          if (bytes[t].size() < 8) break;
          const int64_t values[] = {-1, 0, 1, 2, 3, 4, 5, 10, 1 << 20,
                                    int64_t{1} << 62, INT64_MIN, INT64_MAX};
          const int64_t value = values[random() % std::size(values)];
          std::memcpy(bytes[t].data() + random() % (bytes[t].size() / 8) * 8,
                      &value, 8);
          break;
        }
        case 2:  // a byte
          if (!bytes[t].empty()) {
            bytes[t][random() % bytes[t].size()] ^=
                static_cast<char>(1 << random() % 8);
          }
          break;
        default:
          if (random() % 16 == 0) sent.pop_back();
          if (sent.empty()) sent.emplace_back();
          break;
      }
    }
    for (size_t t = 0; t < sent.size() && t < bytes.size(); ++t) {
      sent[t].data = reinterpret_cast<const std::byte*>(bytes[t].data());
      sent[t].bytes = bytes[t].size();
    }
    ShardLookUps look_ups;
    if (!look_ups.Read(sent, owned, 0).ok()) continue;
    ASSERT_LE(look_ups.answer_floats(), 1000);
    std::vector<float> answer(
        static_cast<size_t>(look_ups.answer_floats()) + 16, 123.0F);
    RunStats stats;
    ASSERT_TRUE(look_ups.Run(answer.data(), stats).ok());
    for (size_t i = answer.size() - 16; i < answer.size(); ++i) {
      ASSERT_EQ(answer[i], 123.0F);
    }
    ++answered;
  }
  EXPECT_GT(answered, 100);
}

}  // namespace
}  // namespace refract::runtime::cpu
