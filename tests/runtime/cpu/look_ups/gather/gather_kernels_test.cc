// Every instruction set against the loops of bag_reduce.cc, bit for bit. Those
// are compared with PyTorch by rows_torch_test.cc.

#include "runtime/cpu/look_ups/gather/gather_kernels.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "models/tables/row_format.h"
#include "runtime/cpu/look_ups/bag_reduce.h"
#include "runtime/cpu/look_ups/encode_rows.h"
#include "tests/base/random_seed.h"

namespace refract::runtime::cpu {
namespace {

constexpr int64_t kRows = 97;
constexpr int64_t kBags = 23;

std::vector<GatherSet> Sets() {
  std::vector<GatherSet> sets = {GenericGatherSet()};
#if defined(__x86_64__)
  GatherSet set;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      FillAvx2GatherSet(set)) {
    sets.push_back(set);
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && FillAvx512GatherSet(set)) {
    sets.push_back(set);
  }
#endif
  return sets;
}

// Ragged bags, empty ones among them, in a table of one format.
struct Case {
  Case(const std::string& format, int64_t dim, std::mt19937& random)
      : layout(*models::LayoutOf(*models::RowFormatNamed(format), dim, 0,
                                 format == "tbe-int4" ? 16 : 1)) {
    std::uniform_real_distribution<float> uniform(-3, 3);
    std::vector<float> values(static_cast<size_t>(dim));
    table.resize(static_cast<size_t>(kRows * layout.stride));
    for (int64_t r = 0; r < kRows; ++r) {
      for (float& value : values) value = uniform(random);
      if (r % 7 == 0) std::fill(values.begin(), values.end(), -0.0f);
      EXPECT_TRUE(
          EncodeRow(values, layout, table.data() + r * layout.stride).ok());
    }
    for (int64_t b = 0; b < kBags; ++b) {
      offsets.push_back(static_cast<int64_t>(ids.size()));
      for (unsigned n = random() % 3 == 0 ? 0 : random() % 20; n > 0; --n) {
        ids.push_back(static_cast<int64_t>(random() % kRows));
        weights.push_back(uniform(random));
      }
    }
    for (const int64_t id : ids) {
      addresses.push_back(table.data() + id * layout.stride);
    }
    addresses.resize(ids.size() + kGatherPast, table.data());
    for (const int64_t offset : offsets) {
      offsets32.push_back(static_cast<int32_t>(offset));
    }
  }

  // By the loops of bag_reduce.cc.
  std::vector<float> Expected(GatherMode mode, bool weighted, bool bags_of_one,
                              int64_t bags) const {
    BagReduction reduction;
    reduction.mode = static_cast<BagMode>(mode);
    reduction.table = table.data();
    reduction.layout = layout;
    reduction.rows = kRows;
    reduction.dim = layout.dim;
    reduction.ids = {base::DType::kInt64,
                     {static_cast<int64_t>(ids.size())},
                     reinterpret_cast<const std::byte*>(ids.data()),
                     ids.size() * sizeof(int64_t)};
    if (!bags_of_one) {
      reduction.offsets = {base::DType::kInt64,
                           {kBags},
                           reinterpret_cast<const std::byte*>(offsets.data()),
                           offsets.size() * sizeof(int64_t)};
    }
    reduction.num_bags = bags;
    if (weighted) {
      reduction.weights = reinterpret_cast<const std::byte*>(weights.data());
    }
    std::vector<float> out(static_cast<size_t>(bags * layout.dim));
    ReduceBags(reduction, reinterpret_cast<std::byte*>(out.data()));
    return out;
  }

  models::RowLayout layout;
  std::vector<std::byte> table;
  std::vector<int64_t> ids;
  std::vector<int64_t> offsets;
  std::vector<int32_t> offsets32;
  std::vector<float> weights;
  std::vector<const std::byte*> addresses;
};

// `prefetch`: 0 of all lines, 1 of the ends, 2 into the cache of second level,
// 3 as 2 in groups.
void ExpectLikeReduceBags(const Case& c, const GatherSet& set, GatherMode mode,
                          bool weighted, bool bags_of_one, int prefetch) {
  const int64_t bags = bags_of_one ? static_cast<int64_t>(c.ids.size()) : kBags;
  const int64_t gap = 5;  // floats between results
  GatheredBags gathered;
  gathered.rows = c.addresses.data();
  gathered.num_ids = static_cast<int64_t>(c.ids.size());
  gathered.num_bags = bags;
  if (!bags_of_one) {
    if (weighted) {
      gathered.offsets32 = c.offsets32.data();
    } else {
      gathered.offsets64 = c.offsets.data();
    }
  }
  gathered.mode = mode;
  if (weighted) gathered.weights = c.weights.data();
  gathered.dim = c.layout.dim;
  gathered.row_bytes = c.layout.stride;
  gathered.prefetch_ends = prefetch == 1;
  gathered.prefetch_far = prefetch >= 2;
  gathered.prefetch_groups = prefetch == 3;
  gathered.payload = c.layout.payload;
  gathered.parameters = c.layout.parameters;
  gathered.half_parameters =
      c.layout.format.parameter_dtype == base::DType::kFloat16;
  std::vector<float> out(static_cast<size_t>(bags * (c.layout.dim + gap)),
                         42.0f);
  gathered.out = reinterpret_cast<std::byte*>(out.data());
  gathered.out_stride =
      (c.layout.dim + gap) * static_cast<int64_t>(sizeof(float));
  set.pool[static_cast<int>(c.layout.format.element)](gathered);
  const std::vector<float> wanted =
      c.Expected(mode, weighted, bags_of_one, bags);
  for (int64_t b = 0; b < bags; ++b) {
    const float* const row = out.data() + b * (c.layout.dim + gap);
    ASSERT_EQ(std::memcmp(row, wanted.data() + b * c.layout.dim,
                          static_cast<size_t>(c.layout.dim) * sizeof(float)),
              0)
        << "bag " << b;
    for (int64_t i = 0; i < gap; ++i) ASSERT_EQ(row[c.layout.dim + i], 42.0f);
  }
}

TEST(GatherKernelsTest, AllSetsGiveTheBitsOfReduceBags) {
  std::mt19937 random(base::RandomSeed());
  for (const std::string format :
       {"fp32", "fp16", "bf16", "tbe-int8", "tbe-int4", "tbe-int2",
        "fused-8bit", "fused-4bit", "fused-2bit"}) {
    for (const GatherSet& set : Sets()) {
      // One to all of 8 + 4 + 2 + 1 registers.
      for (const int64_t registers : {1, 2, 3, 8, 13, 31}) {
        const Case c(format, registers * set.lanes, random);
        for (const GatherMode mode :
             {GatherMode::kSum, GatherMode::kMean, GatherMode::kMax}) {
          for (const bool weighted : {false, true}) {
            // Only sums have weights, as in PyTorch.
            if (weighted && mode != GatherMode::kSum) continue;
            for (const bool bags_of_one : {false, true}) {
              SCOPED_TRACE(format + ", " + set.name + ", dim " +
                           std::to_string(c.layout.dim) + ", mode " +
                           std::to_string(static_cast<int>(mode)));
              for (const int prefetch : {0, 1, 2, 3}) {
                ExpectLikeReduceBags(c, set, mode, weighted, bags_of_one,
                                     prefetch);
                if (HasFatalFailure()) return;
              }
            }
          }
        }
      }
    }
  }
}

TEST(GatherKernelsTest, CopiesRowsOfAnyLength) {
  std::vector<std::byte> table(3 * 1000);
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<std::byte>(i * 7 % 251);
  }
  for (const GatherSet& set : Sets()) {
    for (const int64_t bytes : {1, 7, 8, 63, 64, 65, 200, 1000}) {
      std::vector<const std::byte*> rows = {table.data() + 2 * bytes,
                                            table.data()};
      rows.resize(2 + kGatherPast, table.data());
      std::vector<std::byte> out(static_cast<size_t>(2 * bytes + 3),
                                 std::byte{99});
      GatheredBags bags;
      bags.rows = rows.data();
      bags.num_ids = bags.num_bags = 2;
      bags.row_bytes = bytes;
      bags.out = out.data();
      bags.out_stride = bytes + 3;
      set.copy(bags);
      EXPECT_EQ(std::memcmp(out.data(), rows[0], bytes), 0);
      EXPECT_EQ(std::memcmp(out.data() + bytes + 3, rows[1], bytes), 0);
      EXPECT_EQ(out[static_cast<size_t>(bytes)], std::byte{99});
    }
  }
}

}  // namespace
}  // namespace refract::runtime::cpu
