// partitioner/costs/message_bytes.h against the transport, which it may not
// include.
#include "partitioner/costs/message_bytes.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"
#include "transport/messages/wire.h"

namespace refract::partitioner {
namespace {

TEST(MessageBytesTest, AreWhatTheTransportLaysOut) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto below = [&](int bound) {
    return std::uniform_int_distribution<int>(0, bound - 1)(random);
  };
  for (int round = 0; round < 500; ++round) {
    models::Graph graph;
    std::vector<models::ValueId> ids;
    std::vector<double> bytes;
    std::vector<base::TensorSpec> specs;
    for (int i = below(40); i > 0; --i) {
      base::TensorSpec spec;
      spec.dtype = below(2) == 0 ? base::DType::kFloat32 : base::DType::kInt64;
      models::Value value;
      value.name = absl::StrCat("v", i);
      value.has_shape = true;
      if (below(5) == 0) {  // a size travels as a scalar
        value.kind = models::ValueKind::kSymInt;
        spec.dtype = base::DType::kInt64;
      } else {
        value.dtype = spec.dtype;
        for (int d = below(4); d > 0; --d) {
          spec.dims.push_back(below(9));
          value.shape.push_back(models::SymExpr(spec.dims.back()));
        }
      }
      const auto size = base::ByteSize(spec.dtype, spec.dims);
      ASSERT_TRUE(size.ok());
      ids.push_back(graph.AddValue(std::move(value)));
      bytes.push_back(static_cast<double>(*size));
      specs.push_back(std::move(spec));
    }
    const auto layout = transport::LayoutMessage(specs, 0, size_t{1} << 30);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(MessageBytes(graph, ids, bytes),
              static_cast<double>(layout->total_bytes));
  }
}

}  // namespace
}  // namespace refract::partitioner
