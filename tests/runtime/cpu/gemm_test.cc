// Products against double precision, and bit for bit against each other: every
// instruction set, every division into rows or terms, every form of weights.

#include "runtime/cpu/dense/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/base/random_seed.h"

namespace refract::runtime::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<const TileSet*> TileSets() {
  std::vector<const TileSet*> sets = {&GenericTileSet()};
  if (Avx2TileSet() != nullptr) sets.push_back(Avx2TileSet());
  if (Avx512TileSet() != nullptr) sets.push_back(Avx512TileSet());
  return sets;
}

std::vector<float> Random(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Rows as after a ReLU: half zeros, none, most, all, in turn. A product of one
// row may skip zeros (see gemm.h), a product of several rows does not.
std::vector<float> WithZeros(std::vector<float> a, int64_t m,
                             std::mt19937& random) {
  constexpr double kShares[] = {0.5, 0, 0.9, 1};
  const size_t k = m == 0 ? 0 : a.size() / m;
  for (size_t i = 0; i < a.size(); ++i) {
    std::bernoulli_distribution zero(kShares[i / k % std::size(kShares)]);
    if (zero(random)) a[i] = random() % 2 == 0 ? 0.0f : -0.0f;
  }
  return a;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() ||  // whose data may be no pointer
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Columns [first, first + count) of a [m, k].
std::vector<float> Columns(const std::vector<float>& a, int64_t m, int64_t k,
                           int64_t first, int64_t count) {
  std::vector<float> columns;
  for (int64_t i = 0; i < m; ++i) {
    const auto begin = a.begin() + i * k + first;
    columns.insert(columns.end(), begin, begin + count);
  }
  return columns;
}

struct Case {
  int64_t m;
  int64_t k;
  int64_t n;
};

class GemmTest : public ::testing::TestWithParam<Case> {};

TEST_P(GemmTest, IsRightAndTheSameBitsHoweverItIsCut) {
  const auto [m, k, n] = GetParam();
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto a = WithZeros(Random(m * k, random), m, random);
  const auto w = Random(n * k, random);  // [n, k], as nn.Linear has it
  const auto bias = Random(n, random);
  for (const WeightForm form :
       {WeightForm::kFloat32, WeightForm::kBFloat16, WeightForm::kInt8}) {
    const PackedMatrix packed(w.data(), k, n, 1, k, form);
    for (const Epilogue& epilogue :
         {Epilogue{}, Epilogue{bias.data(), false}, Epilogue{bias.data(), true},
          Epilogue{nullptr, true}}) {
      std::vector<float> first;
      for (const TileSet* set : TileSets()) {
        SCOPED_TRACE(set->name);
        // Columns past n of a wider result must not be written.
        std::vector<float> c(m * (n + 3), -7.0f);
        Gemm(*set, a.data(), k, m, packed, epilogue, c.data(), n + 3);
        if (first.empty()) {
          first = c;
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
              double sum = 0;
              double magnitude = 0;
              for (int64_t l = 0; l < k; ++l) {
                const double term =
                    static_cast<double>(a[i * k + l]) * packed.At(l, j);
                sum += term;
                magnitude += std::abs(term);
              }
              if (epilogue.bias != nullptr) sum += bias[j];
              if (epilogue.relu) sum = std::max(sum, 0.0);
              ASSERT_NEAR(c[i * (n + 3) + j], sum,
                          (2e-7 * std::sqrt(k) + 2e-7) * (magnitude + 1))
                  << i << ", " << j;
            }
            for (int64_t j = n; j < n + 3; ++j) {
              ASSERT_EQ(c[i * (n + 3) + j], -7.0f);
            }
          }
        }
        ASSERT_TRUE(SameBits(c, first));
        // Row by row.
        std::vector<float> rows(m * (n + 3), -7.0f);
        for (int64_t i = 0; i < m; ++i) {
          Gemm(*set, a.data() + i * k, k, 1, packed, epilogue,
               rows.data() + i * (n + 3), n + 3);
        }
        ASSERT_TRUE(SameBits(rows, first));
        // A few terms at a time.
        std::vector<float> parts(m * (n + 3), -7.0f);
        for (int64_t at = 0, count = 0; at == 0 || at < k; at += count) {
          count = std::min<int64_t>(k - at, 1 + random() % (k / 2 + 1));
          const std::vector<float> some = Columns(a, m, k, at, count);
          Gemm(*set, some.data(), count, m, packed,
               {at, count, at > 0, at + count == k}, epilogue, parts.data(),
               n + 3);
          if (count == 0) break;
        }
        ASSERT_TRUE(SameBits(parts, first));
      }
      if (form == WeightForm::kFloat32 && m > 0) {
        base::AlignedBuffer panels(PackedMatrix::PanelBytes(k, n) + 64);
        auto* const floats = reinterpret_cast<float*>(panels.data());
        PackPanels(w.data(), k, n, 1, k, floats);
        std::vector<float> c(m * (n + 3), -7.0f);
        Gemm(a.data(), k, m, floats, k, n, epilogue, c.data(), n + 3);
        ASSERT_TRUE(SameBits(c, first));
        if (m > kStreamingRows || n % kPanelColumns != 0) continue;
        std::vector<float> b(k * n);
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t l = 0; l < k; ++l) b[l * n + j] = w[j * k + l];
        }
        std::fill(c.begin(), c.end(), -7.0f);
        GemmUnpacked(a.data(), k, m, b.data(), k, n, epilogue, c.data(), n + 3);
        ASSERT_TRUE(SameBits(c, first));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GemmTest,
    ::testing::Values(
        Case{1, 13, 512}, Case{1, 1, 1}, Case{2, 7, 130}, Case{3, 64, 48},
        Case{2, 99, 16}, Case{1, 0, 16}, Case{5, 33, 17}, Case{14, 5, 33},
        Case{15, 40, 31}, Case{16, 256, 200}, Case{29, 9, 1}, Case{64, 31, 16},
        Case{0, 4, 4}, Case{3, 0, 5},
        // Five panels, and four where three are a tile.
        Case{1, 40, 80}, Case{3, 12, 70}, Case{8, 21, 64},
        // Rows that are copied (see kAliasBytes), and several
        // blocks of rows.
        Case{20, 512, 144}, Case{150, 1024, 130},
        // Ranges of terms of unequal length (see TileSet::range_terms).
        Case{29, 2049, 40},
        // Zeros of one row, with tiles of four and of three panels.
        Case{1, 300, 256}, Case{6, 67, 145}),
    [](const auto& info) {
      return absl::StrCat(info.param.m, "x", info.param.k, "x", info.param.n);
    });

TEST(GemmTest, NanAndInfinityGoWhereTheyShould) {
  // 0 × inf is NaN: it must not be skipped, and padding must not cause it.
  const std::vector<float> a = {kInf, 0.0f, kNan, 1.0f, -kInf, 1.0f};
  const std::vector<float> w = {1.0f, 0.0f, -1.0f, 2.0f};  // [2, 2]
  for (const TileSet* set : TileSets()) {
    const PackedMatrix packed(w.data(), 2, 2, 1, 2, WeightForm::kFloat32);
    std::vector<float> c(6);
    Gemm(*set, a.data(), 2, 3, packed, {nullptr, true}, c.data(), 2);
    EXPECT_EQ(c[0], kInf) << set->name;  // inf + 0
    EXPECT_EQ(c[1], 0.0f) << set->name;  // relu(-inf + 0)
    EXPECT_TRUE(std::isnan(c[2]));
    EXPECT_TRUE(std::isnan(c[3]));
    EXPECT_EQ(c[4], 0.0f);
    EXPECT_EQ(c[5], kInf);
  }
}

TEST(GemmTest, ZeroTimesInfinityIsNanWhereZerosCouldBeLeftOut) {
  const int64_t k = 40;
  const int64_t n = 256;  // enough for zeros to be left out
  std::vector<float> a(k, 0.0f);
  a[7] = 2.0f;
  for (const float odd : {kInf, -kInf, kNan}) {
    for (const WeightForm form :
         {WeightForm::kFloat32, WeightForm::kBFloat16, WeightForm::kInt8}) {
      std::vector<float> w(k * n, 1.0f);  // [k, n]
      w[12 * n + 200] = odd;
      const PackedMatrix packed(w.data(), k, n, n, 1, form);
      for (const TileSet* set : TileSets()) {
        std::vector<float> c(n);
        Gemm(*set, a.data(), k, 1, packed, {}, c.data(), n);
        for (int64_t j = 0; j < n; ++j) {
          if (j == 200) {
            EXPECT_TRUE(std::isnan(c[j])) << set->name;
          } else {
            ASSERT_NEAR(c[j], 2.0f, 1e-6) << set->name << ", " << j;
          }
        }
      }
    }
  }
}

// Weights of +0: a factor of -1 adds -0 to a sum of -0 and leaves it, a factor
// of +0 adds +0 and makes it +0. So the sign tells whether zeros were
// multiplied.
TEST(GemmTest, ZerosAreLeftOutOfARowWithEnoughOfThem) {
  struct Row {
    int64_t rows, n;
    double zeros;  // share
    bool left_out;
  };
  const int64_t k = 64;
  for (const WeightForm form :
       {WeightForm::kFloat32, WeightForm::kBFloat16, WeightForm::kInt8}) {
    for (const Row& row : {Row{1, 128, 0.5, true}, Row{1, 128, 0.375, true},
                           Row{1, 256, 1, true}, Row{1, 128, 0.25, false},
                           Row{1, 64, 0.5, false}, Row{2, 128, 0.5, false}}) {
      const PackedMatrix packed(std::vector<float>(k * row.n, 0.0f).data(), k,
                                row.n, row.n, 1, form);
      std::vector<float> a(row.rows * k, -1.0f);
      for (int64_t i = 0; i < row.rows; ++i) {
        const auto count = static_cast<int64_t>(row.zeros * k);
        std::fill_n(a.begin() + i * k, count, 0.0f);
      }
      for (const TileSet* set : TileSets()) {
        std::vector<float> c(row.rows * row.n, -0.0f);
        Gemm(*set, a.data(), k, row.rows, packed, Terms{0, k, /*resumes=*/true},
             {}, c.data(), row.n);
        for (const float sum : c) {
          ASSERT_EQ(sum, 0.0f);
          ASSERT_EQ(std::signbit(sum), row.left_out)
              << set->name << ", form " << static_cast<int>(form) << ", "
              << row.rows << " rows, " << row.n << " columns, share "
              << row.zeros;
        }
      }
    }
  }
}

TEST(GemmTest, NanIsNoZero) {
  const int64_t k = 40;
  const int64_t n = 128;
  std::vector<float> a(k, 0.0f);
  a[39] = kNan;
  const PackedMatrix packed(std::vector<float>(k * n, 1.0f).data(), k, n, n, 1,
                            WeightForm::kFloat32);
  for (const TileSet* set : TileSets()) {
    std::vector<float> c(n);
    Gemm(*set, a.data(), k, 1, packed, {}, c.data(), n);
    for (const float value : c) EXPECT_TRUE(std::isnan(value)) << set->name;
  }
}

TEST(PackedMatrixTest, RoundsToTheNearestStep) {
  std::mt19937 random(5);
  const int64_t k = 37;
  const int64_t n = 21;
  auto w = Random(n * k, random);
  for (int64_t i = 0; i < k; ++i) w[3 * k + i] = 0.0f;  // no scale to divide by
  const PackedMatrix bf16(w.data(), k, n, 1, k, WeightForm::kBFloat16);
  const PackedMatrix int8(w.data(), k, n, 1, k, WeightForm::kInt8);
  for (int64_t j = 0; j < n; ++j) {
    float most = 0;
    for (int64_t i = 0; i < k; ++i) {
      most = std::max(most, std::abs(w[j * k + i]));
    }
    for (int64_t i = 0; i < k; ++i) {
      const float value = w[j * k + i];
      EXPECT_NEAR(bf16.At(i, j), value, std::abs(value) / 256);
      EXPECT_NEAR(int8.At(i, j), value, most / 254 * 1.001f);
    }
  }
}

}  // namespace
}  // namespace refract::runtime::cpu
