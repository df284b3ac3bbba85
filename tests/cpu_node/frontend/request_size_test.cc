// Oracle: Protobuf itself. A request that MeasureRequest() accepts must decode
// into no more memory than the measured size.
#include "cpu_node/frontend/request_size.h"

#include <cstring>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "gtest/gtest.h"
#include "proto/inference/grpc_service.pb.h"
#include "tests/base/random_seed.h"

namespace refract::cpu_node {
namespace {

using ::inference::ModelInferRequest;
using ::testing::HasSubstr;

constexpr size_t kMaxBytes = size_t{1} << 20;

// In blocks of 7 bytes, so that fields lie across blocks.
absl::Status Measure(const std::string& bytes, RequestSize& size,
                     int block = 7) {
  google::protobuf::io::ArrayInputStream stream(
      bytes.data(), static_cast<int>(bytes.size()), block);
  return MeasureRequest(stream, kMaxBytes, size, absl::OkStatus);
}

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  uint64_t Below(uint64_t end) { return random_() % end; }
  std::string Text(uint64_t most) {
    return std::string(Below(most + 1), static_cast<char>('a' + Below(26)));
  }

 private:
  std::mt19937_64 random_;
};

void FillContents(Dice& dice, inference::InferTensorContents& contents) {
  const uint64_t count = dice.Below(40);
  for (uint64_t i = 0; i < count; ++i) {
    switch (dice.Below(8)) {
      case 0:
        contents.add_bool_contents(dice.Below(2) == 1);
        break;
      case 1:
        contents.add_int_contents(static_cast<int32_t>(dice.Below(1u << 31)) -
                                  (1 << 30));
        break;
      case 2:
        contents.add_int64_contents(static_cast<int64_t>(dice.Below(~0ull)));
        break;
      case 3:
        contents.add_uint_contents(static_cast<uint32_t>(dice.Below(1000)));
        break;
      case 4:
        contents.add_uint64_contents(dice.Below(1000));
        break;
      case 5:
        contents.add_fp32_contents(1.5f);
        break;
      case 6:
        contents.add_fp64_contents(2.5);
        break;
      default:
        contents.add_bytes_contents(dice.Text(50));
    }
  }
}

ModelInferRequest RandomRequest(Dice& dice) {
  ModelInferRequest request;
  request.set_model_name(dice.Text(20));
  request.set_model_version(dice.Text(3));
  request.set_id(dice.Text(200));
  const auto parameters = [&dice](auto& map) {
    for (uint64_t i = dice.Below(3); i > 0; --i) {
      map[dice.Text(10)].set_int64_param(static_cast<int64_t>(i));
    }
  };
  parameters(*request.mutable_parameters());
  for (uint64_t i = dice.Below(5); i > 0; --i) {
    auto& input = *request.add_inputs();
    input.set_name(dice.Text(30));
    input.set_datatype(dice.Text(5));
    for (uint64_t d = dice.Below(5); d > 0; --d) {
      input.add_shape(static_cast<int64_t>(dice.Below(1000)) - 1);
    }
    parameters(*input.mutable_parameters());
    if (dice.Below(2) == 0) FillContents(dice, *input.mutable_contents());
  }
  for (uint64_t i = dice.Below(3); i > 0; --i) {
    auto& output = *request.add_outputs();
    output.set_name(dice.Text(30));
    parameters(*output.mutable_parameters());
  }
  for (uint64_t i = dice.Below(4); i > 0; --i) {
    request.add_raw_input_contents(dice.Text(300));
  }
  return request;
}

// Bytes of the tensors that `request` may become.
size_t TensorBytes(const ModelInferRequest& request) {
  size_t bytes = 0;
  for (const std::string& raw : request.raw_input_contents()) {
    bytes += raw.size();
  }
  for (const auto& input : request.inputs()) {
    const auto& contents = input.contents();
    bytes += static_cast<size_t>(
        contents.bool_contents_size() + 4 * contents.int_contents_size() +
        8 * contents.int64_contents_size() + 4 * contents.uint_contents_size() +
        8 * contents.uint64_contents_size() +
        4 * contents.fp32_contents_size() + 8 * contents.fp64_contents_size());
  }
  return bytes;
}

TEST(RequestSizeTest, IsExactForTensorsAndEnoughForTheMessage) {
  const uint64_t seed = base::RandomSeed();
  Dice dice(seed);
  for (int i = 0; i < 2000; ++i) {
    const ModelInferRequest request = RandomRequest(dice);
    const std::string bytes = request.SerializeAsString();
    RequestSize size;
    ASSERT_TRUE(Measure(bytes, size).ok()) << seed << ", " << i;
    EXPECT_EQ(size.model_name, request.model_name());
    EXPECT_EQ(size.model_version, request.model_version());
    EXPECT_EQ(size.message_bytes, bytes.size());
    EXPECT_EQ(size.tensor_bytes, TensorBytes(request)) << seed << ", " << i;
    ModelInferRequest decoded;
    ASSERT_TRUE(decoded.ParseFromString(bytes));
    EXPECT_GE(size.decoded_bytes + sizeof(ModelInferRequest),
              decoded.SpaceUsedLong())
        << seed << ", " << i << "\n"
        << request.DebugString();
  }
}

void ExpectEnoughForTheMessage(const ModelInferRequest& request) {
  const std::string bytes = request.SerializeAsString();
  RequestSize size;
  ASSERT_TRUE(Measure(bytes, size).ok());
  ModelInferRequest decoded;
  ASSERT_TRUE(decoded.ParseFromString(bytes));
  EXPECT_GE(size.decoded_bytes + sizeof(ModelInferRequest),
            decoded.SpaceUsedLong());
}

TEST(RequestSizeTest, DimensionsOfOneByteAreEnoughForTheMessage) {
  ModelInferRequest request;
  for (int i = 0; i < 100; ++i) {
    auto& input = *request.add_inputs();
    for (size_t d = 0; d < kMaxDimsOfTensor; ++d) input.add_shape(1);
  }
  ExpectEnoughForTheMessage(request);
}

TEST(RequestSizeTest, OneElementOfEachTypeIsEnoughForTheMessage) {
  ModelInferRequest request;
  for (int i = 0; i < 100; ++i) {
    auto& input = *request.add_inputs();
    // Longer than a string holds without memory of its own.
    input.set_name("seventeen letters");
    input.set_datatype("seventeen letters");
    input.add_shape(1);
    auto& contents = *input.mutable_contents();
    contents.add_bool_contents(true);
    contents.add_int_contents(1);
    contents.add_int64_contents(1);
    contents.add_uint_contents(1);
    contents.add_uint64_contents(1);
    contents.add_fp32_contents(1);
    contents.add_fp64_contents(1);
  }
  ExpectEnoughForTheMessage(request);
}

TEST(RequestSizeTest, NamesAreKnownBeforeTensorsAndARefusalEndsTheWalk) {
  ModelInferRequest request;
  request.set_model_name("m");
  request.set_model_version("3");
  request.set_id("id");
  const std::string names = request.SerializeAsString();
  request.add_inputs()->set_name("x");
  request.add_raw_input_contents("1234");
  std::string bytes = request.SerializeAsString();
  for (const std::string& message :
       {names, bytes, bytes.substr(0, bytes.size() - 2)}) {
    RequestSize size;
    int calls = 0;
    google::protobuf::io::ArrayInputStream stream(
        message.data(), static_cast<int>(message.size()));
    const absl::Status status =
        MeasureRequest(stream, kMaxBytes, size, [&]() -> absl::Status {
          ++calls;
          EXPECT_EQ(size.model_name, "m");
          EXPECT_EQ(size.model_version, "3");
          EXPECT_EQ(size.tensor_bytes, 0);
          return absl::UnavailableError("no");
        });
    // The reservation refuses a cut message, too: its tensors are not read.
    EXPECT_EQ(status, absl::UnavailableError("no"));
    EXPECT_EQ(calls, 1);
  }
}

TEST(RequestSizeTest, BrokenBytesAreRefusedOrDecodeIntoNoMore) {
  const uint64_t seed = base::RandomSeed();
  Dice dice(seed);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = RandomRequest(dice).SerializeAsString();
    for (uint64_t n = dice.Below(4); n > 0 && !bytes.empty(); --n) {
      const size_t at = dice.Below(bytes.size());
      switch (dice.Below(3)) {
        case 0:
          bytes[at] = static_cast<char>(dice.Below(256));
          break;
        case 1:
          bytes.resize(at);
          break;
        default:
          bytes.insert(at, 1, static_cast<char>(dice.Below(256)));
      }
    }
    RequestSize size;
    if (!Measure(bytes, size).ok()) continue;
    ++accepted;
    ModelInferRequest decoded;
    // Strings that are no UTF-8 are Protobuf's to refuse.
    if (!decoded.ParseFromString(bytes)) continue;
    EXPECT_GE(size.decoded_bytes + sizeof(ModelInferRequest),
              decoded.SpaceUsedLong())
        << seed << ", " << i;
    EXPECT_GE(size.tensor_bytes, TensorBytes(decoded)) << seed << ", " << i;
  }
  EXPECT_GT(accepted, 1000);
}

TEST(RequestSizeTest, NamesTheLimitThatIsPassed) {
  struct Case {
    std::string bytes;
    std::string text;
  };
  const auto repeat = [](absl::string_view part, int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) absl::StrAppend(&bytes, part);
    return bytes;
  };
  const std::string empty_input("\x2a\0", 2);
  const std::string empty_output("\x32\0", 2);
  const std::string empty_raw("\x3a\0", 2);
  const std::string empty_parameter("\x22\0", 2);
  const std::string unknown("\x50\1", 2);  // field 10, a varint
  // Dimensions count for each input.
  ModelInferRequest shape;
  for (int i = 0; i < 65; ++i) shape.add_inputs()->add_shape(1);
  RequestSize size_of_shape;
  EXPECT_TRUE(Measure(shape.SerializeAsString(), size_of_shape).ok());
  for (int i = 0; i < 64; ++i) shape.mutable_inputs(0)->add_shape(1 << 20);
  const Case cases[] = {
      {repeat(empty_input, 16385), "16384 inputs"},
      {repeat(empty_output, 16385), "16384 outputs"},
      {repeat(empty_raw, 16385), "16384 raw_input_contents"},
      {repeat(empty_parameter, 1025), "1024 parameters"},
      {repeat(unknown, 1025), "1024 unknown fields"},
      {shape.SerializeAsString(), "65 dimensions, at most 64"},
      {std::string("\x53", 1), "not a ModelInferRequest"},  // a group
  };
  for (const Case& each : cases) {
    RequestSize size;
    const absl::Status status = Measure(each.bytes, size);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << each.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(each.text));
  }
  for (const std::string& bytes :
       {repeat(empty_input, 16384), repeat(empty_output, 16384),
        repeat(empty_raw, 16384), repeat(empty_parameter, 1024),
        repeat(unknown, 1024)}) {
    RequestSize size;
    EXPECT_TRUE(Measure(bytes, size).ok());
  }
}

TEST(RequestSizeTest, AMessageIsAtMostAsLongAsAllowed) {
  ModelInferRequest request;
  request.set_model_name("m");
  request.add_raw_input_contents("");
  const size_t rest = request.ByteSizeLong() + 2;  // a longer length
  for (const int block : {1, 4096, 1 << 22}) {
    request.set_raw_input_contents(0, std::string(kMaxBytes - rest, 'x'));
    ASSERT_EQ(request.ByteSizeLong(), kMaxBytes);
    RequestSize size;
    EXPECT_TRUE(Measure(request.SerializeAsString(), size, block).ok());
    request.mutable_raw_input_contents(0)->push_back('x');
    EXPECT_EQ(Measure(request.SerializeAsString(), size, block).code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(size.model_name, "m");
    // Many short fields.
    const std::string many(2 * kMaxBytes, '\x0a');
    EXPECT_FALSE(Measure(many, size, block).ok());
  }
}

TEST(RequestSizeTest, LongNamesAreCut) {
  ModelInferRequest request;
  request.set_model_name(std::string(100000, 'x'));
  RequestSize size;
  ASSERT_TRUE(Measure(request.SerializeAsString(), size).ok());
  EXPECT_EQ(size.model_name.size(), 128);
}

}  // namespace
}  // namespace refract::cpu_node
