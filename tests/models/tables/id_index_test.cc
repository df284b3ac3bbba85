#include "models/tables/id_index.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::models {
namespace {

using ::testing::HasSubstr;

// The index agrees with std::unordered_map on present and absent ids.
void ExpectFinds(const std::vector<int64_t>& ids, std::mt19937_64& random) {
  const auto index = IdIndex::Build(ids);
  ASSERT_TRUE(index.ok()) << index.status();
  std::unordered_map<int64_t, int64_t> rows;
  for (size_t i = 0; i < ids.size(); ++i) {
    rows[ids[i]] = static_cast<int64_t>(i);
  }
  std::vector<int64_t> asked = ids;
  for (int i = 0; i < 1000; ++i) {
    asked.push_back(static_cast<int64_t>(random()));
    asked.push_back(static_cast<int64_t>(random() % 4096) - 2048);
  }
  std::shuffle(asked.begin(), asked.end(), random);
  std::vector<int64_t> found(asked.size(), -7);
  (*index)->Find(asked, found.data());
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto row = rows.find(asked[i]);
    ASSERT_EQ(found[i], row == rows.end() ? IdIndex::kNoRow : row->second)
        << "id " << asked[i];
    ASSERT_EQ((*index)->Find(asked[i]), found[i]);
  }
  std::vector<int32_t> small;
  for (const int64_t id : asked) small.push_back(static_cast<int32_t>(id));
  found.resize(small.size());
  (*index)->Find(small, found.data());
  for (size_t i = 0; i < small.size(); ++i) {
    ASSERT_EQ(found[i], (*index)->Find(small[i]));
  }
}

TEST(IdIndexTest, FindsTheRowsOfDenseAndHashedIds) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  for (const size_t count : {0, 1, 4, 5, 6, 1000, 100'003}) {
    SCOPED_TRACE(absl::StrCat(count, " ids"));
    std::vector<int64_t> hashed;
    std::vector<int64_t> dense;
    std::vector<int64_t> strided;
    for (size_t i = 0; i < count; ++i) {
      hashed.push_back(static_cast<int64_t>(random()));
      dense.push_back(static_cast<int64_t>(i) - 500);
      strided.push_back(static_cast<int64_t>(i << 20));
    }
    ExpectFinds(hashed, random);
    ExpectFinds(dense, random);
    ExpectFinds(strided, random);
  }
  ExpectFinds({0, -1, std::numeric_limits<int64_t>::min(),
               std::numeric_limits<int64_t>::max()},
              random);
}

TEST(IdIndexTest, NamesAnIdThatIsThereTwice) {
  std::vector<int64_t> ids(1000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) * 7;
  ids[900] = ids[13];
  const absl::Status status = IdIndex::Build(ids).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("id 91 is at position 13 and again at 900"));
}

TEST(IdIndexTest, TakesSixteenBytesPerRow) {
  std::vector<int64_t> ids(1 << 20);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  EXPECT_EQ((*IdIndex::Build(ids))->memory_bytes(), ids.size() * 16);
}

}  // namespace
}  // namespace refract::models
