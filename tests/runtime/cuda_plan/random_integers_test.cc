// Random graphs of integers and masks on the emulated GPU.

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/runtime/cuda_plan/expect_exact.h"
#include "tests/runtime/cuda_plan/expect_same.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime::cuda_plan {
namespace {

using base::DType;
using models::ValueId;
using runtime::testing::Bool;
using runtime::testing::Int;
using runtime::testing::Ints;
using runtime::testing::List;
using runtime::testing::Ref;
using testing::ExpectExact;
using testing::Model;
using testing::Seed;

// Values of [b, 2, 3] of each type, combined at random.
class RandomIntegers : public Model {
 public:
  explicit RandomIntegers(unsigned seed) : Model(seed), random_(seed) {
    const DType types[] = {DType::kInt64, DType::kInt32, DType::kBool};
    for (int t = 0; t < 3; ++t) {
      values_[t].push_back(In(absl::StrCat("x", t), {2, 3}, types[t]));
    }
    for (int i = 0; i < 24; ++i) Add();
    for (const auto& list : values_) {
      Output(list.back());
      Output(list[random_() % list.size()]);
    }
  }

 private:
  ValueId Pick(int type) {
    return values_[type][random_() % values_[type].size()];
  }
  static DType TypeOf(int type) {
    return type == 0 ? DType::kInt64 : type == 1 ? DType::kInt32 : DType::kBool;
  }
  void Put(int type, const std::string& op,
           std::vector<models::NamedArgument> args) {
    values_[type].push_back(Op(op, std::move(args), {2, 3}, TypeOf(type)));
  }
  void Add() {
    const int type = static_cast<int>(random_() % 2);
    const ValueId x = Pick(type);
    const auto number = static_cast<int64_t>(random_() % 9) - 4;
    const char* const arithmetic[] = {"add", "sub", "mul"};
    const char* const bits[] = {"bitwise_and", "bitwise_or", "bitwise_xor"};
    const char* const comparisons[] = {"eq", "ne", "lt", "le", "gt", "ge"};
    const char* const divisions[] = {"remainder", "fmod", "floor_divide"};
    switch (random_() % 12) {
      case 0:
        return Put(type,
                   absl::StrCat("aten.", arithmetic[random_() % 3], ".Tensor"),
                   {Ref("self", x), Ref("other", Pick(type))});
      case 1:
        // Operands of both widths are computed in 64 bits.
        return Put(0,
                   absl::StrCat("aten.", arithmetic[random_() % 3], ".Tensor"),
                   {Ref("self", Pick(0)), Ref("other", Pick(1))});
      case 2: {
        const int any = static_cast<int>(random_() % 3);
        return Put(any, absl::StrCat("aten.", bits[random_() % 3], ".Tensor"),
                   {Ref("self", Pick(any)), Ref("other", Pick(any))});
      }
      case 3:
        return Put(2,
                   absl::StrCat("aten.", comparisons[random_() % 6], ".Tensor"),
                   {Ref("self", x), Ref("other", Pick(1 - type))});
      case 4:
        return Put(2,
                   absl::StrCat("aten.", comparisons[random_() % 6], ".Scalar"),
                   {Ref("self", x), Int("other", number)});
      case 5: {
        // A tensor as divisor is a constant; none of these is 0.
        const int64_t by = number == 0 ? 5 : number;
        return Put(type,
                   absl::StrCat("aten.", divisions[random_() % 3], ".Scalar"),
                   {Ref("self", x), Int("other", by)});
      }
      case 6:
        return Put(type, "aten.where.self",
                   {Ref("condition", Pick(2)), Ref("self", x),
                    Ref("other", Pick(type))});
      case 7:
        return Put(type, "aten.clamp.default",
                   {Ref("self", x), Int("min", number), Int("max", 2)});
      case 8: {
        const int to = static_cast<int>(random_() % 3);
        const int from = static_cast<int>(random_() % 3);
        if (to == from) return;
        return Put(to, "aten.to.dtype",
                   {Ref("self", Pick(from)), {"dtype", TypeOf(to)}});
      }
      case 9: {
        const ValueId sum =
            Op("aten.sum.dim_IntList",
               {Ref("self", Pick(static_cast<int>(random_() % 3))),
                Ints("dim", {1}), Bool("keepdim", true)},
               {1, 3}, DType::kInt64);
        return Put(0, "aten.sub.Tensor",
                   {Ref("self", Pick(0)), Ref("other", sum)});
      }
      case 10: {
        const ValueId flat =
            Op("aten.reshape.default",
               {Ref("self", Op("aten.transpose.int",
                               {Ref("self", x), Int("dim0", 1), Int("dim1", 2)},
                               {3, 2}, TypeOf(type))),
                Ints("shape", {-1, 2, 3})},
               {2, 3}, TypeOf(type));
        values_[type].push_back(flat);
        return;
      }
      default: {
        const ValueId half =
            Op("aten.select.int",
               {Ref("self", x), Int("dim", 1),
                Int("index", static_cast<int64_t>(random_() % 2))},
               {3}, TypeOf(type));
        return Put(type, "aten.stack.default",
                   {List("tensors", {half, half}), Int("dim", 1)});
      }
    }
  }

  std::mt19937 random_;
  std::vector<ValueId> values_[3];  // int64, int32, bool
};

TEST(RandomIntegersTest, AgreeWithLibTorchAndTheCpuBackend) {
  for (unsigned i = 0; i < 6; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", Seed() + i));
    RandomIntegers model(Seed() + i);
    ExpectExact(model);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace refract::runtime::cuda_plan
