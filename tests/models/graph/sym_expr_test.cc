#include "models/graph/sym_expr.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SymExpr P(absl::string_view text) {
  auto parsed = SymExpr::Parse(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : SymExpr();
}

TEST(SymExprTest, ReadsWhatSympyPrintsForPeople) {
  EXPECT_EQ(P("26*s49").ToString(), "26*s49");
  EXPECT_EQ(P("1 + s3").ToString(), "s3 + 1");
  EXPECT_EQ(P("(s0//4)").ToString(), "(s0//4)");
  EXPECT_EQ(P("Max(1, s0)").ToString(), "Max(1, s0)");
  EXPECT_EQ(P("s0**2 - 3*s1").ToString(), "s0**2 - 3*s1");
  EXPECT_EQ(P("max(1, min(s0, 7))").ToString(), "Max(1, Min(7, s0))");
  EXPECT_EQ(P("PythonMod(s0, 8)").ToString(), "Mod(s0, 8)");
  EXPECT_EQ(P("-s0**2").ToString(), "-s0**2");
}

TEST(SymExprTest, ReadsSreprAsTorchExportWritesIt) {
  EXPECT_EQ(P("Symbol('s36', positive=True, integer=True)").symbol(), "s36");
  EXPECT_EQ(P("Mul(Integer(2), FloorDiv(Symbol('s23', positive=True, "
              "integer=True), Integer(2)))")
                .ToString(),
            "2*(s23//2)");
  EXPECT_EQ(P("Add(Pow(Symbol('u0', integer=True), Integer(2)), "
              "Mul(Integer(-1), Symbol(\"s1\")), Integer(-7))")
                .ToString(),
            "u0**2 - s1 - 7");
  EXPECT_EQ(P("Integer(-9223372036854775808)").constant(), INT64_MIN);
}

TEST(SymExprTest, CanonicalTextMakesEqualPolynomialsEqual) {
  EXPECT_EQ(P("(s0 + 1)*(s0 - 1)"), P("s0**2 - 1"));
  EXPECT_EQ(P("2*s0 + 3*s1 - s0"), P("s1*3 + s0"));
  EXPECT_EQ(P("(4*s0 + 8)//4"), P("s0 + 2"));
  EXPECT_EQ(P("(4*s0 + 1)//4"), P("s0"));
  EXPECT_EQ(P("(4*s0 + 7) % 4"), P("3"));
  EXPECT_EQ(P("(22*s0 + 66) // (2*s0 + 6)").constant(), 11);
  EXPECT_EQ(P("(22*s0 + 66) % (2*s0 + 6)").constant(), 0);
  EXPECT_EQ(P("(22*s0 + 65) // (2*s0 + 6)").constant(), std::nullopt);
  EXPECT_EQ(P("(22*s0*s1) // (2*s0)"), P("11*s1"));
  EXPECT_EQ(P("(7*s0*s1) // (2*s0)").ToString(), "((7*s0*s1)//(2*s0))");
  EXPECT_EQ(P("s0**3 // s0"), P("s0**2"));
  EXPECT_EQ(P("(s0*s1 + s2) // s1"), P("s0 + (s2//s1)"));
  // The number of rows of a matrix [s0, s1], as arange(0, s0*s1, s1) counts.
  EXPECT_EQ(P("(s0*s1 + s1 - 1) // s1"), P("s0"));
  EXPECT_EQ(P("(s0*s1 + 1) // s1").ToString(), "(1//s1) + s0");
  EXPECT_EQ(P("Mod(s0*s1, s1)").constant(), 0);
  EXPECT_EQ(P("Mod(s0*s1 - 1, s1)"), P("s1 - 1"));
  EXPECT_EQ(P("Max(3, Max(s0, 5), s0)"), P("Max(5, s0)"));
  EXPECT_EQ(P("s0 - s0").constant(), 0);
  EXPECT_FALSE(P("s0") == P("s1"));
}

TEST(SymExprTest, UnknownEqualsNothingAndSpreads) {
  const SymExpr unknown;
  EXPECT_FALSE(unknown == unknown);
  EXPECT_TRUE((unknown + SymExpr(1)).is_unknown());
  EXPECT_TRUE((SymExpr(0) * unknown).is_unknown());
  EXPECT_TRUE(SymExpr::FloorDiv(P("s0"), unknown).is_unknown());
  EXPECT_TRUE(SymExpr::Max(unknown, SymExpr(1)).is_unknown());
  EXPECT_EQ(unknown.ToString(), "?");
  EXPECT_EQ(unknown.Evaluate({}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(SymExprTest, DividesAsPythonDoes) {
  // Python: -7//2 == -4, -7 % 2 == 1, 7 % -2 == -1, 7//-2 == -4.
  EXPECT_EQ(P("-7//2").constant(), -4);
  EXPECT_EQ(P("-7%2").constant(), 1);
  EXPECT_EQ(P("7%-2").constant(), -1);
  EXPECT_EQ(P("7//-2").constant(), -4);
  EXPECT_EQ(P("FloorDiv(s0, s1)").Evaluate({{"s0", -7}, {"s1", 2}}).value(),
            -4);
  EXPECT_EQ(P("CeilDiv(s0, 4)").Evaluate({{"s0", 9}}).value(), 3);
  EXPECT_EQ(P("CeilDiv(s0, 4)").Evaluate({{"s0", 8}}).value(), 2);
}

TEST(SymExprTest, EvaluateReportsWhatIsMissingOrTooLarge) {
  EXPECT_EQ(P("2*s0 + 1").Evaluate({{"s0", 20}}).value(), 41);
  const auto missing = P("s0 + s1").Evaluate({{"s0", 1}}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("s1"));
  EXPECT_EQ(P("s0*s0").Evaluate({{"s0", INT64_MAX}}).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(P("s0 + 1").Evaluate({{"s0", INT64_MAX}}).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(P("4//s0").Evaluate({{"s0", 0}}).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(
      P("s1//s0").Evaluate({{"s0", -1}, {"s1", INT64_MIN}}).status().code(),
      absl::StatusCode::kOutOfRange);
}

TEST(SymExprTest, SolvesOneLinearSymbol) {
  const auto n = P("s3 + 1").Solve(101);
  ASSERT_TRUE(n.has_value());
  EXPECT_EQ(n->symbol, "s3");
  EXPECT_EQ(n->value, 100);
  EXPECT_EQ(P("26*s49").Solve(52)->value, 2);
  EXPECT_EQ(P("10 - s0").Solve(4)->value, 6);
  EXPECT_FALSE(P("26*s49").Solve(53).has_value());  // not integral
  EXPECT_FALSE(P("s0 + 5").Solve(4).has_value());   // negative
  EXPECT_FALSE(P("s0*s1").Solve(4).has_value());
  EXPECT_FALSE(P("s0**2").Solve(4).has_value());
  EXPECT_FALSE(P("s0 + s1").Solve(4).has_value());
  EXPECT_FALSE(P("(s0//2)").Solve(4).has_value());
  EXPECT_FALSE(P("7").Solve(7).has_value());
  EXPECT_FALSE(P("s0 - 9").Solve(INT64_MAX).has_value());
  EXPECT_FALSE(SymExpr().Solve(1).has_value());
}

TEST(SymExprTest, ListsSymbolsOnce) {
  EXPECT_THAT(P("s1*s0 + Max(s2, s0) + s1").Symbols(),
              ElementsAre("s0", "s1", "s2"));
  EXPECT_TRUE(P("12").Symbols().empty());
}

TEST(SymExprTest, RefusesBadText) {
  for (absl::string_view text : {"",
                                 "s0 +",
                                 "(s0",
                                 "s0)",
                                 "foo(s0)",
                                 "1.5*s0",
                                 "s0/2",
                                 "s0 s1",
                                 "99999999999999999999",
                                 "s0**s1",
                                 "s0**-1",
                                 "s0**100",
                                 "Max()",
                                 "FloorDiv(s0)",
                                 "Symbol(s0)",
                                 "Symbol('s0",
                                 "Symbol('')",
                                 "9223372036854775807 + 1",
                                 "Rational(1, 2)",
                                 "s0 != 1",
                                 "?"}) {
    const auto parsed = SymExpr::Parse(text);
    ASSERT_FALSE(parsed.ok()) << text << " → " << parsed->ToString();
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("position"))
        << text;
  }
}

TEST(SymExprTest, BoundsHostileText) {
  EXPECT_FALSE(SymExpr::Parse(std::string(5000, '(')).ok());
  EXPECT_FALSE(SymExpr::Parse(std::string(100000, '1')).ok());
  EXPECT_FALSE(SymExpr::Parse("((((s0+s1)**32)**32)**32)**32").ok());
  EXPECT_FALSE(SymExpr::Parse("(s0+s1+s2+s3+s4+s5+s6+s7+s8+s9)**20").ok());
  std::string minus(8000, '-');
  EXPECT_EQ(P(absl::StrCat(minus, "s0")).ToString(), "s0");
}

// Builds a random expression as Python text and, beside it, its value computed
// directly, so the oracle shares nothing with the canonical form.
struct RandomExpression {
  std::mt19937_64& random;
  const SymbolBindings& bindings;

  std::string Make(int depth, int64_t& value) {
    const int64_t symbol = random() % 3;
    if (depth == 0 || random() % 5 == 0) {
      if (random() % 2 == 0) {
        value = static_cast<int64_t>(random() % 9) - 2;
        return value < 0 ? absl::StrCat("(", value, ")") : absl::StrCat(value);
      }
      const std::string name = absl::StrCat("s", symbol);
      value = bindings.at(name);
      return name;
    }
    int64_t a, b;
    const std::string left = Make(depth - 1, a);
    const std::string right = Make(depth - 1, b);
    auto floor_div = [](int64_t x, int64_t y) {
      return static_cast<int64_t>(std::floor(static_cast<long double>(x) / y));
    };
    const int64_t divisor = bindings.at("s2");
    switch (random() % 9) {
      case 0:
        value = a + b;
        return absl::StrCat("(", left, " + ", right, ")");
      case 1:
        value = a - b;
        return absl::StrCat("(", left, " - ", right, ")");
      case 2:
        value = a * b;
        return absl::StrCat(left, "*", right);
      case 3:
        value = std::max(a, b);
        return absl::StrCat("Max(", left, ", ", right, ")");
      case 4:
        value = std::min(a, b);
        return absl::StrCat("Min(", left, ", ", right, ")");
      case 5:
        value = floor_div(a, 3);
        return absl::StrCat("FloorDiv(", left, ", 3)");
      case 6:
        value = floor_div(a, divisor);
        return absl::StrCat("FloorDiv(", left, ", s2)");
      case 7:
        value = a - divisor * floor_div(a, divisor);
        return absl::StrCat("Mod(", left, ", s2)");
      default:
        value = a - 4 * floor_div(a, 4);
        return absl::StrCat("Mod(", left, ", 4)");
    }
  }
};

TEST(SymExprTest, RandomExpressionsKeepTheirValueThroughText) {
  const uint64_t seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  int checked = 0;
  for (int i = 0; i < 2000; ++i) {
    SymbolBindings bindings;
    for (const char* name : {"s0", "s1", "s2"}) bindings[name] = random() % 7;
    bindings["s2"] += 1;  // a divisor
    int64_t expected = 0;
    const std::string text =
        RandomExpression{random, bindings}.Make(4, expected);
    const auto parsed = SymExpr::Parse(text);
    if (!parsed.ok()) continue;  // grew past the bounds
    ++checked;
    EXPECT_EQ(parsed->Evaluate(bindings).value(), expected) << text;
    const SymExpr again = P(parsed->ToString());
    EXPECT_EQ(again.ToString(), parsed->ToString()) << text;
    EXPECT_EQ(again.Evaluate(bindings).value(), expected) << text;
  }
  EXPECT_GT(checked, 1900);
}

}  // namespace
}  // namespace refract::models
