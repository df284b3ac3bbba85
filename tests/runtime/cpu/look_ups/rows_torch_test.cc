// Rows of the declared formats against PyTorch's own prepack and look-up
// operators.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cmath>
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

using models::RowFormat;
using models::RowLayout;

// Calls an operator of torch.ops.quantized.
at::Tensor Call(const std::string& name, std::vector<c10::IValue> stack) {
  c10::Dispatcher::singleton()
      .findSchemaOrThrow(("quantized::" + name).c_str(), "")
      .callBoxed(&stack);
  return stack.at(0).toTensor();
}

std::vector<std::byte> Encode(const at::Tensor& table,
                              const RowLayout& layout) {
  std::vector<std::byte> rows(
      static_cast<size_t>(table.size(0) * layout.stride));
  const auto dim = static_cast<size_t>(table.size(1));
  for (int64_t r = 0; r < table.size(0); ++r) {
    const absl::Status status =
        EncodeRow({table.data_ptr<float>() + r * table.size(1), dim}, layout,
                  rows.data() + r * layout.stride);
    EXPECT_TRUE(status.ok()) << "row " << r << ": " << status;
  }
  return rows;
}

RowLayout Layout(const std::string& format, int64_t dim,
                 int64_t alignment = 1) {
  return *models::LayoutOf(*models::RowFormatNamed(format), dim, 0, alignment);
}

struct Fused {
  std::string format;
  std::string same_in_front;  // TBE rows of the same parameters
  std::string prepack;
  std::string look_up;
  int64_t step;  // of dims
};

const Fused kFused[] = {
    {"fused-8bit", "", "embedding_bag_byte_prepack",
     "embedding_bag_byte_rowwise_offsets", 1},
    {"fused-4bit", "tbe-int4", "embedding_bag_4bit_prepack",
     "embedding_bag_4bit_rowwise_offsets", 2},
    {"fused-2bit", "tbe-int2", "embedding_bag_2bit_prepack",
     "embedding_bag_2bit_rowwise_offsets", 4},
};

// Tables with ordinary rows, constant rows, zeros, far-off means, tiny and
// large ranges.
at::Tensor Table(int64_t rows, int64_t dim) {
  at::Tensor table = at::randn({rows, dim});
  for (int64_t r = 0; r < rows; ++r) {
    switch (r % 8) {
      case 1:
        table[r].fill_(0.37f);
        break;
      case 2:
        table[r].zero_();
        break;
      case 3:
        table[r].mul_(1e-3f).add_(100.0f);
        break;
      case 4:
        table[r].mul_(1e-9f);
        break;
      case 5:
        table[r].mul_(1000.0f);
        break;
      case 6:
        table[r].mul_(1e-6f).sub_(0.02f);
        break;
      default:
        break;
    }
  }
  return table;
}

TEST(RowsTest, AreTheBytesOfPyTorchsPrepack) {
  at::manual_seed(base::RandomSeed());
  for (const Fused& fused : kFused) {
    for (const int64_t factor : {1, 3, 8, 16, 33, 64}) {
      const int64_t dim = fused.step * factor;
      SCOPED_TRACE(fused.format + ", dim " + std::to_string(dim));
      const at::Tensor table = Table(64, dim);
      const at::Tensor theirs =
          fused.step == 1 ? Call(fused.prepack, {table})
                          : Call(fused.prepack, {table, false, 100, 0.16});
      const RowLayout layout = Layout(fused.format, dim);
      ASSERT_EQ(theirs.size(1), layout.stride);
      const std::vector<std::byte> ours = Encode(table, layout);
      for (int64_t r = 0; r < table.size(0); ++r) {
        const auto* const row = theirs.data_ptr<uint8_t>() + r * layout.stride;
        EXPECT_EQ(std::memcmp(row, ours.data() + r * layout.stride,
                              static_cast<size_t>(layout.stride)),
                  0)
            << "row " << r;
      }
      if (fused.same_in_front.empty()) continue;
      // TBE rows: the same bytes with the parameters in front.
      const RowLayout front = Layout(fused.same_in_front, dim, 16);
      const std::vector<std::byte> tbe = Encode(table, front);
      for (int64_t r = 0; r < table.size(0); ++r) {
        const std::byte* const last = ours.data() + r * layout.stride;
        const std::byte* const first = tbe.data() + r * front.stride;
        const auto payload = static_cast<size_t>(layout.parameters);
        EXPECT_EQ(std::memcmp(first, last + payload, 4), 0) << "row " << r;
        EXPECT_EQ(std::memcmp(first + 4, last, payload), 0) << "row " << r;
      }
    }
  }
}

struct Ids {
  at::Tensor ids;
  at::Tensor offsets;
};

// Bags of 0 to 40 ids.
Ids RandomBags(int64_t num_bags, int64_t rows, bool wide) {
  std::vector<int64_t> offsets = {0};
  for (int64_t b = 0; b < num_bags; ++b) {
    offsets.push_back(offsets.back() + (b % 3 == 1 ? 0 : b * 7 % 41));
  }
  const auto type = wide ? at::kLong : at::kInt;
  return {at::randint(rows, {offsets.back()}, type),
          at::tensor(offsets, at::kLong).to(type)};
}

base::TensorView View(const at::Tensor& tensor) {
  base::TensorView view;
  view.dtype = tensor.scalar_type() == at::kLong ? base::DType::kInt64
                                                 : base::DType::kInt32;
  view.dims = {tensor.numel()};
  view.data = static_cast<const std::byte*>(tensor.data_ptr());
  view.bytes = tensor.nbytes();
  return view;
}

at::Tensor Reduce(const RowLayout& layout, const std::vector<std::byte>& rows,
                  const Ids& bags, BagMode mode, const at::Tensor& weights) {
  BagReduction reduction;
  reduction.mode = mode;
  reduction.table = rows.data();
  reduction.layout = layout;
  reduction.rows = static_cast<int64_t>(rows.size()) / layout.stride;
  reduction.dim = layout.dim;
  reduction.ids = View(bags.ids);
  reduction.offsets = View(bags.offsets);
  reduction.num_bags = bags.offsets.numel() - 1;
  reduction.include_last_offset = true;
  if (weights.defined()) {
    reduction.weights = static_cast<const std::byte*>(weights.data_ptr());
  }
  at::Tensor out = at::empty({reduction.num_bags, layout.dim});
  ReduceBags(reduction, static_cast<std::byte*>(out.data_ptr()));
  return out;
}

TEST(RowsTest, AreLookedUpAsPyTorchLooksThemUp) {
  at::manual_seed(base::RandomSeed());
  const c10::IValue none;
  for (const Fused& fused : kFused) {
    for (const int64_t dim : {4, 60, 64, 128, 200}) {
      for (const bool wide : {false, true}) {
        for (const bool weighted : {false, true}) {
          SCOPED_TRACE(fused.format + ", dim " + std::to_string(dim));
          const at::Tensor table = at::randn({50, dim});
          const RowLayout layout = Layout(fused.format, dim);
          const std::vector<std::byte> rows = Encode(table, layout);
          const at::Tensor packed =
              at::from_blob(const_cast<std::byte*>(rows.data()),
                            {50, layout.stride}, at::kByte);
          const Ids bags = RandomBags(30, 50, wide);
          const at::Tensor weights =
              weighted ? at::randn({bags.ids.numel()}) : at::Tensor();
          // (weight, indices, offsets, scale_grad_by_freq, mode, pruned,
          //  per_sample_weights, compressed_indices, include_last_offset)
          const at::Tensor theirs =
              Call(fused.look_up,
                   {packed, bags.ids, bags.offsets, false, 0, false,
                    weighted ? c10::IValue(weights) : none, none, true});
          const at::Tensor ours =
              Reduce(layout, rows, bags, BagMode::kSum, weights);
          // Up to 40 rows of magnitudes up to 8 or so.
          EXPECT_TRUE(at::allclose(ours, theirs, 1e-5, 2e-4))
              << (ours - theirs).abs().max().item<float>();
        }
      }
    }
  }
}

// Decoded by hand from the bytes, for all formats and modes: PyTorch's own
// look-ups of quantised rows only sum.
TEST(RowsTest, ArePooledByEveryMode) {
  at::manual_seed(base::RandomSeed());
  for (const char* name :
       {"fp32", "fp16", "bf16", "tbe-int8", "tbe-int4", "tbe-int2",
        "fused-8bit", "fused-4bit", "fused-2bit"}) {
    for (const int64_t dim : {4, 64, 132}) {
      SCOPED_TRACE(std::string(name) + ", dim " + std::to_string(dim));
      const at::Tensor table = at::randn({50, dim});
      const RowLayout layout = Layout(name, dim, 64);
      const std::vector<std::byte> rows = Encode(table, layout);
      // Each id alone: the decoded table.
      at::Tensor decoded = at::empty({50, dim});
      const at::Tensor all = at::arange(50, at::kLong);
      BagReduction one;
      one.table = rows.data();
      one.layout = layout;
      one.rows = 50;
      one.dim = dim;
      one.ids = View(all);
      one.num_bags = 50;
      ReduceBags(one, static_cast<std::byte*>(decoded.data_ptr()));
      // Each element decoded from its bits.
      const RowFormat& format = layout.format;
      for (int64_t r = 0; r < 50; ++r) {
        const std::byte* const row = rows.data() + r * layout.stride;
        const float bound = RowErrorBound(
            {table.data_ptr<float>() + r * dim, static_cast<size_t>(dim)},
            format);
        for (int64_t d = 0; d < dim; ++d) {
          const float got = decoded[r][d].item<float>();
          EXPECT_LE(std::abs(got - table[r][d].item<float>()), bound);
          if (!format.is_quantised()) continue;
          float scale = 0;
          float bias = 0;
          if (format.parameter_dtype == base::DType::kFloat16) {
            c10::Half halves[2];
            std::memcpy(halves, row + layout.parameters, sizeof(halves));
            scale = halves[0];
            bias = halves[1];
          } else {
            std::memcpy(&scale, row + layout.parameters, 4);
            std::memcpy(&bias, row + layout.parameters + 4, 4);
          }
          const int bits = models::BitsOf(format.element);
          const auto byte =
              static_cast<unsigned>(row[layout.payload + d * bits / 8]);
          const unsigned q = byte >> (d * bits % 8) & ((1u << bits) - 1);
          EXPECT_EQ(got, scale * static_cast<float>(q) + bias);
        }
      }
      const Ids bags = RandomBags(20, 50, true);
      for (const BagMode mode :
           {BagMode::kSum, BagMode::kMean, BagMode::kMax}) {
        // The operator over the decoded table.
        const at::Tensor theirs = std::get<0>(
            at::embedding_bag(decoded, bags.ids, bags.offsets, false,
                              static_cast<int64_t>(mode), false, {}, true));
        const at::Tensor ours = Reduce(layout, rows, bags, mode, {});
        EXPECT_TRUE(at::allclose(ours, theirs, 1e-5, 1e-4))
            << "mode " << static_cast<int>(mode);
      }
    }
  }
}

TEST(RowsTest, RefuseValuesThatTheFormatCannotHold) {
  const auto message = [](const std::string& format, std::vector<float> row) {
    const RowLayout layout = Layout(format, static_cast<int64_t>(row.size()));
    std::vector<std::byte> out(static_cast<size_t>(layout.stride));
    return std::string(EncodeRow(row, layout, out.data()).message());
  };
  const float nan = std::nanf("");
  for (const char* format : {"fp32", "fp16", "tbe-int8", "fused-8bit"}) {
    EXPECT_EQ(message(format, {0, 1, nan, 2}), "column 2: nan is not finite");
    EXPECT_EQ(message(format, {0, -INFINITY, 1, 2}),
              "column 1: -inf is not finite");
  }
  EXPECT_EQ(message("fp16", {0, 70000, 1, 2}),
            "column 1: 70000 overflows the format's elements");
  EXPECT_EQ(message("tbe-int8", {0, -70000, 1, 2}),
            "the range [-70000, 2] of the row overflows the fp16 scale or "
            "bias");
  EXPECT_EQ(message("fused-8bit", {-3e38f, 3e38f, 1, 2}),
            "the range [-3e+38, 3e+38] of the row overflows the fp32 scale");
}

}  // namespace
}  // namespace refract::runtime::cpu
