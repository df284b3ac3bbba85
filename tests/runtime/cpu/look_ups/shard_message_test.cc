#include "runtime/cpu/look_ups/shard_message.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/tables/id_index.h"
#include "runtime/cpu/look_ups/row_overlay.h"

namespace refract::runtime::cpu {
namespace {

class ShardMessageTest : public ::testing::Test {
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
    // Ids name the rows of the last table.
    overlay.SetIds(index.get());
    owned[2].rows.overlay = &overlay;
    owned[2].rows.ids = index.get();
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
  const std::vector<int64_t> ids = {5, 4, 3, 2, 1, 0, -1, INT64_MIN, 10, 1 << 20};
  const std::shared_ptr<const models::IdIndex> index =
      *models::IdIndex::Build(ids);
  RowOverlay overlay{10, 64};
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
  EXPECT_THAT(message.BagsOf(0), ::testing::ElementsAre(0, 4));
  EXPECT_THAT(message.BagsOf(1), ::testing::IsEmpty());
  EXPECT_EQ(message.AnswerOf(3), 3 * 16);
}

// Read() refuses the bytes of a peer, or Run() reads inside the
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
