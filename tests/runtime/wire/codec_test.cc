#include "runtime/wire/codec.h"

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/testing/graph_builder.h"

namespace refract::runtime::wire {
namespace {

using base::DType;
using models::WireForm;
using models::WireType;
using runtime::testing::MakeTensor;
using runtime::testing::Must;
using runtime::testing::Sym;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A message in memory of the test.
struct Message {
  std::vector<base::Tensor> tensors;
  std::vector<base::TensorView> views() const {
    std::vector<base::TensorView> views;
    for (const base::Tensor& tensor : tensors) views.push_back(tensor.view());
    return views;
  }
  size_t bytes() const {
    size_t bytes = 0;
    for (const base::Tensor& tensor : tensors) bytes += tensor.bytes();
    return bytes;
  }
};

Message Encode(const Codec& codec, absl::Span<const base::TensorView> values) {
  Encoder encoder(codec);
  Message message;
  std::vector<std::byte*> places;
  for (const base::TensorSpec& spec : Must(encoder.Prepare(values))) {
    message.tensors.push_back(
        Must(base::Tensor::Allocate(spec.dtype, spec.dims)));
    places.push_back(message.tensors.back().data());
  }
  encoder.Write(places);
  return message;
}

// One value of the given dtype and rank.
Codec CodecFor(DType dtype, size_t rank, WireForm form) {
  models::Value value;
  value.name = "x";
  value.dtype = dtype;
  value.has_shape = true;
  value.shape.assign(rank, 4);
  if (rank > 0) value.shape[0] = Sym("B");
  EXPECT_TRUE(models::CheckWireForm(value, form).ok());
  models::Graph graph;
  const models::ValueId id = graph.AddValue(std::move(value));
  const std::vector<WireForm> forms = {form};
  return Codec(graph, {id}, forms);
}

std::vector<std::byte> BytesOf(const base::TensorView& view) {
  return {view.data, view.data + view.bytes};
}

void ExpectSame(const base::TensorView& a, const base::TensorView& b) {
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.dims, b.dims);
  EXPECT_EQ(BytesOf(a), BytesOf(b));
}

TEST(CodecTest, PlainValuesAreTheMessageItself) {
  const Codec codec = CodecFor(DType::kFloat32, 2, {});
  EXPECT_TRUE(codec.plain());
  EXPECT_TRUE(codec.sizes_known());
  const base::Tensor x = MakeTensor<float>({2, 2}, {1, 2, 3, 4});
  const std::vector<base::TensorView> message = {x.view()};
  Decoder decoder(codec);
  const auto values = Must(decoder.Decode(message));
  EXPECT_EQ(values[0].data, x.data());
}

TEST(CodecTest, SizesKnownBeforeTheRunAreThoseOfTheMessage) {
  const base::Tensor x = MakeTensor<float>({3, 5}, std::vector<float>(15, 2));
  const std::map<WireType, size_t> bytes = {{WireType::kFloat16, 30},
                                            {WireType::kBFloat16, 30},
                                            {WireType::kInt8, 3 * 13}};
  for (const auto& [type, wanted] : bytes) {
    const Codec codec = CodecFor(DType::kFloat32, 2, {type, false});
    ASSERT_TRUE(codec.sizes_known());
    const std::vector<base::TensorSpec> values = {{DType::kFloat32, {3, 5}}};
    const std::vector<base::TensorSpec> specs = codec.MessageSpecs(values);
    const Message message = Encode(codec, {{x.view()}});
    EXPECT_EQ(message.bytes(), wanted);
    ASSERT_EQ(specs.size(), 1);
    EXPECT_EQ(specs[0].dims, message.tensors[0].dims());
    EXPECT_EQ(specs[0].dtype, message.tensors[0].dtype());
  }
}

TEST(CodecTest, EveryFloatingDTypeComesBackInEveryForm) {
  const std::vector<double> wanted = {1, -2.5, 0.125, 3, 65504, -0.75, 8, 2};
  for (const DType dtype :
       {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    for (const WireType type :
         {WireType::kFloat16, WireType::kBFloat16, WireType::kInt8}) {
      models::Value value;
      value.dtype = dtype;
      value.has_shape = true;
      value.shape = {4, 2};
      if (!models::CheckWireForm(value, {type, false}).ok()) continue;
      base::Tensor x = Must(base::Tensor::Allocate(dtype, {4, 2}));
      for (size_t i = 0; i < wanted.size(); ++i) {
        const auto f = static_cast<float>(wanted[i]);
        if (dtype == DType::kFloat64) x.as<double>()[i] = wanted[i];
        if (dtype == DType::kFloat32) x.as<float>()[i] = f;
        if (dtype == DType::kBFloat16) {
          x.as<uint16_t>()[i] =
              static_cast<uint16_t>(std::bit_cast<uint32_t>(f) >> 16);
        }
        if (dtype == DType::kFloat16) {
          x.as<uint16_t>()[i] = std::bit_cast<uint16_t>(_Float16(f));
        }
      }
      const Codec codec = CodecFor(dtype, 2, {type, false});
      const Message message = Encode(codec, {{x.view()}});
      Decoder decoder(codec);
      const auto values = Must(decoder.Decode(message.views()));
      ASSERT_EQ(values[0].dtype, dtype);
      ASSERT_EQ(values[0].dims, (base::Dims{4, 2}));
      for (size_t i = 0; i < wanted.size(); ++i) {
        double back = 0;
        if (dtype == DType::kFloat64) back = values[0].as<double>()[i];
        if (dtype == DType::kFloat32) back = values[0].as<float>()[i];
        if (dtype == DType::kBFloat16) {
          back = std::bit_cast<float>(
              static_cast<uint32_t>(values[0].as<uint16_t>()[i]) << 16);
        }
        if (dtype == DType::kFloat16) {
          back = std::bit_cast<_Float16>(values[0].as<uint16_t>()[i]);
        }
        // Rows of two elements are exact as int8 apart from rounding.
        EXPECT_NEAR(back, wanted[i], std::fabs(wanted[i]) / 128)
            << models::Name(type) << " " << base::Name(dtype);
      }
    }
  }
}

TEST(CodecTest, DoublesBeyondFloatStayFinite) {
  const Codec codec = CodecFor(DType::kFloat64, 1, {WireType::kFloat16, false});
  const base::Tensor x = MakeTensor<double>({3}, {1e300, -1e300, HUGE_VAL});
  const Message message = Encode(codec, {{x.view()}});
  Decoder decoder(codec);
  const auto values = Must(decoder.Decode(message.views()));
  EXPECT_THAT(values[0].as<double>(), ElementsAre(65504, -65504, HUGE_VAL));
}

TEST(CodecTest, IdsAreNarrowedUnlessOneDoesNotFit) {
  const Codec codec = CodecFor(DType::kInt64, 1, {WireType::kInt32, false});
  EXPECT_FALSE(codec.sizes_known());
  Decoder decoder(codec);
  for (const int64_t last : {int64_t{-1}, int64_t{1} << 40}) {
    const base::Tensor x = MakeTensor<int64_t>({3}, {1, INT32_MAX, last});
    const Message message = Encode(codec, {{x.view()}});
    EXPECT_EQ(message.bytes(), last == -1 ? 12 : 24);
    ExpectSame(Must(decoder.Decode(message.views()))[0], x.view());
  }
}

TEST(CodecTest, UniqueRowsAreSentOnce) {
  const Codec codec = CodecFor(DType::kFloat32, 2, {WireType::kAsIs, true});
  // 300 rows of two users, one after the other.
  std::vector<float> rows;
  for (int i = 0; i < 300; ++i) {
    for (int d = 0; d < 32; ++d) rows.push_back(i < 100 ? 1.0f : 2.0f + d);
  }
  const base::Tensor x = MakeTensor<float>({300, 32}, rows);
  const Message message = Encode(codec, {{x.view()}});
  ASSERT_EQ(message.tensors.size(), 2);
  EXPECT_EQ(message.tensors[0].dims(), (base::Dims{2, 32}));
  EXPECT_EQ(message.tensors[1].dims(), (base::Dims{2, 2}));  // two runs
  EXPECT_THAT(message.tensors[1].view().as<int32_t>(),
              ElementsAre(0, 100, 1, 200));
  Decoder decoder(codec);
  ExpectSame(Must(decoder.Decode(message.views()))[0], x.view());
}

TEST(CodecTest, NoRepeatsMeansNoIndex) {
  const Codec codec = CodecFor(DType::kFloat32, 2, {WireType::kAsIs, true});
  std::vector<float> rows;
  for (int i = 0; i < 64 * 4; ++i) rows.push_back(static_cast<float>(i));
  const base::Tensor x = MakeTensor<float>({64, 4}, rows);
  const Message message = Encode(codec, {{x.view()}});
  EXPECT_EQ(message.bytes(), x.bytes());
  EXPECT_EQ(message.tensors[1].dims(), base::Dims{0});
  Decoder decoder(codec);
  ExpectSame(Must(decoder.Decode(message.views()))[0], x.view());
}

TEST(CodecTest, ZerosOfEitherSignAndNansAreDifferentRows) {
  const Codec codec = CodecFor(DType::kFloat32, 1, {WireType::kAsIs, true});
  std::vector<float> values(1000, 0.0f);
  values[500] = -0.0f;
  values[700] = std::nanf("1");
  values[900] = std::nanf("2");
  const base::Tensor x = MakeTensor<float>({1000}, values);
  const Message message = Encode(codec, {{x.view()}});
  EXPECT_LT(message.bytes(), x.bytes());
  Decoder decoder(codec);
  ExpectSame(Must(decoder.Decode(message.views()))[0], x.view());
}

// Random tensors, forms and patterns of repeated rows: decoding gives the same
// values as without unique rows, and messages never get longer.
TEST(CodecTest, RandomRowsComeBackTheSameInAnyForm) {
  const uint32_t seed = base::RandomSeed();
  std::mt19937 random(seed);
  for (int round = 0; round < 400; ++round) {
    const int64_t rows = random() % 700;
    const int64_t columns = 1 + random() % 40;
    const int distinct = 1 + static_cast<int>(random() % 500);
    const bool ids = round % 5 == 0;
    base::Tensor x = Must(base::Tensor::Allocate(
        ids ? DType::kInt64 : DType::kFloat32, {rows, columns}));
    for (int64_t r = 0; r < rows; ++r) {
      std::mt19937 row(random() % distinct);
      for (int64_t c = 0; c < columns; ++c) {
        const auto bits = static_cast<int32_t>(row());
        if (ids) {
          x.as<int64_t>()[r * columns + c] = bits;
        } else {
          x.as<float>()[r * columns + c] = static_cast<float>(bits);
        }
      }
    }
    const std::vector<WireType> types =
        ids ? std::vector<WireType>{WireType::kAsIs, WireType::kInt32}
            : std::vector<WireType>{WireType::kAsIs, WireType::kFloat16,
                                    WireType::kBFloat16, WireType::kInt8};
    const WireType type = types[random() % types.size()];
    const Codec plain = CodecFor(x.dtype(), 2, {type, false});
    const Codec unique = CodecFor(x.dtype(), 2, {type, true});
    const Message all = Encode(plain, {{x.view()}});
    const Message some = Encode(unique, {{x.view()}});
    EXPECT_LE(some.bytes(), all.bytes());
    Decoder a(plain);
    Decoder b(unique);
    ExpectSame(Must(a.Decode(all.views()))[0], Must(b.Decode(some.views()))[0]);
    if (type == WireType::kAsIs || type == WireType::kInt32) {
      ExpectSame(Must(b.Decode(some.views()))[0], x.view());
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(CodecTest, IndexWidensWithTheNumberOfRows) {
  for (const int distinct : {2, 256, 257, 32768, 32769}) {
    const int64_t rows = 2 * distinct;
    std::vector<float> values;
    for (int64_t r = 0; r < rows; ++r) {
      for (int c = 0; c < 8; ++c) {
        values.push_back(static_cast<float>(r % distinct));
      }
    }
    const base::Tensor x = MakeTensor<float>({rows, 8}, values);
    const UniqueRows unique = FindUniqueRows(x.view());
    EXPECT_EQ(unique.first.size(), distinct);
    if (distinct == 2) continue;  // runs of one are longer than bytes, here no
    EXPECT_EQ(base::SizeOf(unique.index_spec().dtype), distinct <= 256     ? 1
                                                       : distinct <= 32768 ? 2
                                                                           : 4);
    const Codec codec = CodecFor(DType::kFloat32, 2, {WireType::kAsIs, true});
    const Message message = Encode(codec, {{x.view()}});
    Decoder decoder(codec);
    ExpectSame(Must(decoder.Decode(message.views()))[0], x.view());
  }
}

TEST(CodecTest, EmptyTensorsCrossInEveryForm) {
  for (const WireForm form : {WireForm{},
                              {WireType::kFloat16, false},
                              {WireType::kInt8, false},
                              {WireType::kInt8, true},
                              {WireType::kAsIs, true}}) {
    for (const base::Dims& dims : {base::Dims{0, 4}, {3, 0}, {0, 0}}) {
      const base::Tensor x =
          Must(base::Tensor::Allocate(DType::kFloat32, dims));
      const Codec codec = CodecFor(DType::kFloat32, 2, form);
      const Message message = Encode(codec, {{x.view()}});
      Decoder decoder(codec);
      ExpectSame(Must(decoder.Decode(message.views()))[0], x.view());
    }
  }
}

// ------------------------------------------------------------ hostile messages

std::string Refusal(const Codec& codec, const std::vector<base::Tensor>& sent) {
  std::vector<base::TensorView> views;
  for (const base::Tensor& tensor : sent) views.push_back(tensor.view());
  Decoder decoder(codec);
  const auto values = decoder.Decode(views);
  EXPECT_EQ(values.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(values.status().message());
}

template <typename... T>
std::vector<base::Tensor> List(T... tensors) {
  std::vector<base::Tensor> list;
  (list.push_back(std::move(tensors)), ...);
  return list;
}

TEST(CodecTest, MessagesThatBreakTheFormAreRefusedByName) {
  const Codec int8 = CodecFor(DType::kFloat32, 2, {WireType::kInt8, false});
  EXPECT_THAT(Refusal(int8, {}), HasSubstr("0 tensors, wanted 1"));
  EXPECT_THAT(
      Refusal(int8, List(MakeTensor<float>({1, 2}, {1, 2}))),
      HasSubstr("value 'x' of the message is float32[1, 2], not uint8"));
  EXPECT_THAT(
      Refusal(int8, List(MakeTensor<uint8_t>({1, 7}, std::vector<uint8_t>(7)))),
      HasSubstr("rows without scale and offset"));
  EXPECT_THAT(Refusal(int8, List(MakeTensor<uint8_t>({}, {1}))),
              HasSubstr("rows without scale and offset"));
  const Codec half = CodecFor(DType::kFloat32, 2, {WireType::kFloat16, false});
  EXPECT_THAT(Refusal(half, List(MakeTensor<int32_t>({1}, {1}))),
              HasSubstr("not float16"));
  const Codec ids = CodecFor(DType::kInt64, 1, {WireType::kInt32, false});
  EXPECT_THAT(Refusal(ids, List(MakeTensor<float>({1}, {1}))),
              HasSubstr("not int32"));
}

TEST(CodecTest, IndexesThatReachBeyondTheRowsAreRefused) {
  const Codec codec = CodecFor(DType::kFloat32, 2, {WireType::kAsIs, true});
  const auto refusal = [&](base::Tensor index) {
    return Refusal(codec,
                   List(MakeTensor<float>({2, 1}, {1, 2}), std::move(index)));
  };
  EXPECT_THAT(refusal(MakeTensor<uint8_t>({3}, {0, 1, 2})),
              HasSubstr("index 2 for 2 rows"));
  EXPECT_THAT(refusal(MakeTensor<int32_t>({2}, {0, -1})),
              HasSubstr("index -1 for 2 rows"));
  EXPECT_THAT(refusal(MakeTensor<int32_t>({1, 2}, {2, 1})),
              HasSubstr("index 2 for 2 rows"));
  EXPECT_THAT(refusal(MakeTensor<int32_t>({1, 2}, {0, 0})),
              HasSubstr("run of 0"));
  EXPECT_THAT(refusal(MakeTensor<int32_t>({1, 2}, {0, -5})),
              HasSubstr("run of -5"));
  EXPECT_THAT(refusal(MakeTensor<int32_t>({1, 3}, {0, 1, 1})),
              HasSubstr("index of int32[1, 3]"));
  EXPECT_THAT(refusal(MakeTensor<float>({1}, {0})),
              HasSubstr("index of float32[1]"));
  EXPECT_THAT(refusal(MakeTensor<int64_t>({1}, {0})),
              HasSubstr("index of int64[1]"));
  // An index into zero rows.
  EXPECT_THAT(Refusal(codec, List(MakeTensor<float>({0, 1}, {}),
                                  MakeTensor<uint8_t>({1}, {0}))),
              HasSubstr("index 0 for 0 rows"));
}

TEST(CodecTest, AFewBytesCannotAskForMuchMemory) {
  const Codec codec = CodecFor(DType::kFloat32, 2, {WireType::kAsIs, true});
  EXPECT_THAT(Refusal(codec, List(MakeTensor<float>({1, 1}, {1}),
                                  MakeTensor<int32_t>({1, 2}, {0, INT32_MAX}))),
              HasSubstr("beyond"));
  EXPECT_THAT(
      Refusal(codec, List(MakeTensor<float>({1, 1}, {1}),
                          MakeTensor<int32_t>({3, 2}, {0, 30000000, 0, 30000000,
                                                       0, 30000000}))),
      HasSubstr("beyond"));
  // Empty rows still count with their index.
  EXPECT_THAT(Refusal(codec, List(MakeTensor<float>({1, 0}, {}),
                                  MakeTensor<int32_t>({1, 2}, {0, INT32_MAX}))),
              HasSubstr("beyond"));
}

// The limit counts all values of a message together.
TEST(CodecTest, ValuesShareTheLimit) {
  runtime::testing::GraphBuilder builder;
  std::vector<models::ValueId> ids;
  for (const char* name : {"a", "b"}) {
    ids.push_back(builder.Input(name, DType::kFloat32, {Sym("B"), 1}));
  }
  const std::vector<WireForm> forms(2, {WireType::kAsIs, true});
  const Codec codec(builder.graph(), ids, forms);
  const auto half = static_cast<int32_t>(kMaxExpandedBytes / 8 * 2 / 3);
  const auto run = [&] { return MakeTensor<int32_t>({1, 2}, {0, half}); };
  EXPECT_THAT(Refusal(codec, List(MakeTensor<float>({1, 1}, {1}), run(),
                                  MakeTensor<float>({1, 1}, {1}), run())),
              HasSubstr("value 'b'"));
}

TEST(CodecTest, RandomBytesNeverCrash) {
  const uint32_t seed = base::RandomSeed();
  std::mt19937 random(seed);
  const DType dtypes[] = {DType::kUInt8,   DType::kInt16,   DType::kInt32,
                          DType::kInt64,   DType::kFloat16, DType::kFloat32,
                          DType::kBFloat16};
  const auto any_tensor = [&] {
    base::Dims dims;
    for (size_t d = random() % 4; d > 0; --d) dims.push_back(random() % 12);
    base::Tensor tensor = Must(
        base::Tensor::Allocate(dtypes[random() % std::size(dtypes)], dims));
    for (size_t i = 0; i < tensor.bytes(); ++i) {
      // Small numbers are more often valid indexes.
      tensor.data()[i] =
          static_cast<std::byte>(random() % 3 == 0 ? random() : random() % 2);
    }
    return tensor;
  };
  int decoded = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto type = static_cast<WireType>(random() % models::kNumWireTypes);
    const bool is_int = type == WireType::kInt32;
    const WireForm form = {type, random() % 2 == 0};
    const Codec codec =
        CodecFor(is_int ? DType::kInt64 : DType::kFloat32, 2, form);
    std::vector<base::Tensor> tensors;
    for (size_t i = 0; i < codec.num_tensors(); ++i) {
      tensors.push_back(any_tensor());
    }
    std::vector<base::TensorView> views;
    for (const base::Tensor& tensor : tensors) views.push_back(tensor.view());
    Decoder decoder(codec);
    const auto values = decoder.Decode(views);
    if (!values.ok()) continue;
    ++decoded;
    EXPECT_EQ((*values)[0].bytes,
              *base::ByteSize((*values)[0].dtype, (*values)[0].dims));
  }
  EXPECT_GT(decoded, 100);
}

}  // namespace
}  // namespace refract::runtime::wire
