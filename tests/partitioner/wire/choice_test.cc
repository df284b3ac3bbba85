#include "partitioner/wire/choice.h"

#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::partitioner {
namespace {

using models::WireType;
using ::testing::ElementsAre;

constexpr WireType kPlain = WireType::kAsIs;
constexpr WireType kHalf = WireType::kFloat16;
constexpr WireType kByte = WireType::kInt8;

// A tensor of `elements` floats.
WireCandidate Floats(double elements) {
  return {.plain_bytes = 4 * elements,
          .options = {{kHalf, 2 * elements}, {kByte, elements}}};
}

// Errors add up over the tensors: `half` and `byte` per tensor.
class Errors {
 public:
  Errors(std::vector<double> half, std::vector<double> byte)
      : half_(std::move(half)), byte_(std::move(byte)) {}

  MeasureError function() {
    return [this](const std::vector<WireType>& types) {
      ++calls;
      double error = 0;
      for (size_t i = 0; i < types.size(); ++i) {
        if (types[i] == kHalf) error += half_[i];
        if (types[i] == kByte) error += byte_[i];
      }
      return absl::StatusOr<double>(error);
    };
  }
  int calls = 0;

 private:
  std::vector<double> half_;
  std::vector<double> byte_;
};

std::vector<WireType> Choose(const std::vector<WireCandidate>& candidates,
                             double bound, Errors& errors) {
  auto types = ChooseWireTypes(candidates, bound, errors.function());
  EXPECT_TRUE(types.ok()) << types.status();
  return *std::move(types);
}

TEST(ChooseWireTypesTest, SmallestEverywhereIfTheBoundAllowsIt) {
  Errors errors({1, 1}, {4, 4});
  EXPECT_THAT(Choose({Floats(10), Floats(20)}, 8, errors),
              ElementsAre(kByte, kByte));
  EXPECT_EQ(errors.calls, 1);
}

TEST(ChooseWireTypesTest, LargestSavingFirstThenWhatIsLeftOfTheBound) {
  // The second saves most: 4 of 6; 2 are left, which only halves keep.
  Errors errors({1, 1, 1}, {4, 4, 4});
  EXPECT_THAT(Choose({Floats(10), Floats(30), Floats(20)}, 6, errors),
              ElementsAre(kHalf, kByte, kHalf));
}

TEST(ChooseWireTypesTest, TensorsThatNothingKeepsStayAsTheyAre) {
  Errors errors({9, 1}, {9, 4});
  EXPECT_THAT(Choose({Floats(30), Floats(10)}, 4, errors),
              ElementsAre(kPlain, kByte));
  EXPECT_THAT(Choose({Floats(30), Floats(10)}, 0, errors),
              ElementsAre(kPlain, kPlain));
}

TEST(ChooseWireTypesTest, BoundIsIncluded) {
  Errors errors({0.5}, {1});
  EXPECT_THAT(Choose({Floats(1)}, 1, errors), ElementsAre(kByte));
  EXPECT_THAT(Choose({Floats(1)}, 0.999, errors), ElementsAre(kHalf));
}

TEST(ChooseWireTypesTest, OptionsThatSaveNothingAreNotTried) {
  Errors errors({0}, {0});
  WireCandidate scores = {.plain_bytes = 4, .options = {{kByte, 9}}};
  EXPECT_THAT(Choose({scores}, 1, errors), ElementsAre(kPlain));
  EXPECT_EQ(errors.calls, 0);
}

TEST(ChooseWireTypesTest, ErrorsThatDoNotAddUpAreMeasuredTogether) {
  // Each alone is within the bound, both are not.
  const auto measure = [](const std::vector<WireType>& types) {
    const bool both = types[0] != kPlain && types[1] != kPlain;
    return absl::StatusOr<double>(both ? 10 : 1);
  };
  auto types = ChooseWireTypes({Floats(10), Floats(20)}, 1, measure);
  ASSERT_TRUE(types.ok());
  EXPECT_THAT(*types, ElementsAre(kPlain, kByte));
}

TEST(ChooseWireTypesTest, FailuresOfTheMeasurementAreReported) {
  const auto measure =
      [](const std::vector<WireType>&) -> absl::StatusOr<double> {
    return absl::InvalidArgumentError("no such sample");
  };
  EXPECT_EQ(ChooseWireTypes({Floats(1)}, 1, measure).status().message(),
            "no such sample");
}

}  // namespace
}  // namespace refract::partitioner
