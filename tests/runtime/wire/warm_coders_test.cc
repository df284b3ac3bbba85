// Encoders and decoders allocate nothing for a message like an earlier one:
// counted by replacing operator new of this program.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/wire/coder_pool.h"
#include "tests/base/random_seed.h"
#include "tests/transport/testing/allocation_counter.h"

namespace refract::runtime::wire {
namespace {

using base::DType;
using models::WireForm;
using models::WireType;
using transport::AllocationCounter;
using transport::kCountsAllocations;

constexpr int64_t kRows = 96;
constexpr int64_t kColumns = 40;  // no multiple of any vector

struct Sent {
  DType dtype;
  WireForm form;
};

// Every path through the encoder: dtypes that pass through floats, indexes of
// rows and of runs, and tensors sent unchanged.
const std::vector<Sent>& Everything() {
  static const auto& all = *new std::vector<Sent>{
      {DType::kFloat32, {WireType::kAsIs, false}},
      {DType::kFloat32, {WireType::kFloat16, false}},
      {DType::kFloat64, {WireType::kFloat16, false}},
      {DType::kFloat16, {WireType::kBFloat16, false}},
      {DType::kBFloat16, {WireType::kInt8, false}},
      {DType::kFloat64, {WireType::kInt8, true}},
      {DType::kInt64, {WireType::kInt32, true}},
      {DType::kFloat32, {WireType::kAsIs, true}},
      {DType::kFloat32, {WireType::kInt8, true}},
  };
  return all;
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  EXPECT_TRUE(value.ok()) << value.status();
  return *std::move(value);
}

class WarmCodersTest : public ::testing::Test {
 protected:
  WarmCodersTest() {
    std::vector<WireForm> forms;
    for (const Sent& sent : Everything()) {
      models::Value value;
      value.name = absl::StrCat("v", forms.size());
      value.dtype = sent.dtype;
      value.has_shape = true;
      value.shape = {models::SymExpr(kRows), models::SymExpr(kColumns)};
      graph_.inputs.push_back(graph_.AddValue(std::move(value)));
      forms.push_back(sent.form);
    }
    codec_.emplace(graph_, graph_.inputs, forms);
  }

  // Repeated rows, in runs or scattered. Small integers of any dtype.
  std::vector<base::Tensor> Request(bool in_runs, std::mt19937_64& random) {
    std::vector<base::Tensor> values;
    for (const Sent& sent : Everything()) {
      base::Tensor tensor =
          Must(base::Tensor::Allocate(sent.dtype, {kRows, kColumns}));
      const size_t row_bytes = tensor.bytes() / kRows;
      std::vector<std::byte> rows(8 * row_bytes);
      for (std::byte& byte : rows) byte = std::byte(random() % 2);
      for (int64_t row = 0; row < kRows; ++row) {
        const size_t from = in_runs ? row / 24 : random() % 8;
        std::memcpy(tensor.data() + row * row_bytes,
                    rows.data() + from * row_bytes, row_bytes);
      }
      values.push_back(std::move(tensor));
    }
    return values;
  }

  models::Graph graph_;
  std::optional<Codec> codec_;
};

TEST_F(WarmCodersTest, AllocateNothing) {
  REFRACT_NEEDS_ALLOCATION_COUNTS();
  AllocationCounter::CountThisThread();
  const uint64_t seed = base::RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<std::vector<base::Tensor>> requests;
  std::vector<std::vector<base::TensorView>> views;
  for (const bool in_runs : {true, false, true}) {
    requests.push_back(Request(in_runs, random));
    views.emplace_back();
    for (const base::Tensor& value : requests.back()) {
      views.back().push_back(value.view());
    }
  }
  EncoderPool encoders(*codec_);
  DecoderPool decoders(*codec_);
  // Memory for the longest message; the transport owns a message's tensors.
  std::vector<base::Tensor> places;
  for (size_t i = 0; i < codec_->num_tensors(); ++i) {
    places.push_back(
        Must(base::Tensor::Allocate(DType::kFloat64, {kRows, kColumns + 8})));
  }
  std::vector<base::TensorView> message(codec_->num_tensors());
  uint64_t allocations = 0;
  int messages = 0;
  for (int round = 0; round < 4; ++round) {
    for (size_t r = 0; r < requests.size(); ++r) {
      if (round > 0) AllocationCounter::Start();
      {
        EncoderPool::Lease encoder = encoders.Acquire();
        const auto specs = encoder->Prepare(views[r]);
        ASSERT_TRUE(specs.ok()) << specs.status();
        encoder->WriteTo([&](size_t i) { return places[i].data(); });
        for (size_t i = 0; i < specs->size(); ++i) {
          const base::TensorSpec& spec = (*specs)[i];
          message[i] = {spec.dtype, spec.dims, places[i].data(),
                        *base::ByteSize(spec.dtype, spec.dims)};
        }
        DecoderPool::Lease decoder = decoders.Acquire();
        const auto decoded = decoder->Decode(message);
        ASSERT_TRUE(decoded.ok()) << decoded.status();
        // Values that are not narrowed are exact.
        const base::TensorView& exact = (*decoded)[7];
        ASSERT_EQ(exact.bytes, views[r][7].bytes);
        ASSERT_EQ(std::memcmp(exact.data, views[r][7].data, exact.bytes), 0);
        ASSERT_EQ(decoded->size(), Everything().size());
      }
      if (round > 0) {
        allocations += AllocationCounter::Stop();
        ++messages;
      }
    }
  }
  EXPECT_EQ(messages, 9);
  EXPECT_EQ(allocations, 0u) << AllocationCounter::Traces();
  // Both kinds of index occur.
  EXPECT_GT(codec_->num_tensors(), Everything().size());
}

// A decoder works as before after it refused a message half way through.
TEST_F(WarmCodersTest, ABrokenMessageLeavesNothingBehind) {
  std::mt19937_64 random(1);
  const std::vector<base::Tensor> request = Request(false, random);
  std::vector<base::TensorView> values;
  for (const base::Tensor& value : request) values.push_back(value.view());
  Encoder encoder(*codec_);
  const auto specs = Must(encoder.Prepare(values));
  std::vector<base::Tensor> message;
  std::vector<base::TensorView> views;
  for (const base::TensorSpec& spec : specs) {
    message.push_back(Must(base::Tensor::Allocate(spec.dtype, spec.dims)));
    views.push_back(message.back().view());
  }
  encoder.WriteTo([&](size_t i) { return message[i].data(); });
  Decoder decoder(*codec_);
  const auto decode = [&] {
    std::vector<std::string> bytes;
    for (const base::TensorView& value : Must(decoder.Decode(views))) {
      bytes.emplace_back(reinterpret_cast<const char*>(value.data),
                         value.bytes);
    }
    return bytes;
  };
  const std::vector<std::string> before = decode();
  const size_t broken = codec_->values().back().tensor;
  const base::TensorView good = views[broken];
  views[broken].dtype = DType::kFloat64;
  EXPECT_FALSE(decoder.Decode(views).ok());
  views[broken] = good;
  EXPECT_EQ(decode(), before);
}

}  // namespace
}  // namespace refract::runtime::wire
