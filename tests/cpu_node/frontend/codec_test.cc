#include "cpu_node/frontend/codec.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace refract::cpu_node {
namespace {

using ::inference::ModelInferRequest;
using ::inference::ModelInferResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Time kNow = absl::UnixEpoch() + absl::Seconds(100);

ModelInferRequest Parse(const std::string& text) {
  ModelInferRequest message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message))
      << text;
  return message;
}

template <typename T>
std::string Raw(std::vector<T> values) {
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(T));
}

template <typename T>
std::vector<T> Elements(const base::Tensor& tensor) {
  const absl::Span<const T> view = tensor.view().as<T>();
  return std::vector<T>(view.begin(), view.end());
}

TEST(DecodeRequestTest, ReadsRawContentsIntoAlignedMemory) {
  ModelInferRequest message = Parse(R"pb(
    model_name: "m"
    model_version: "3"
    inputs { name: "x" datatype: "FP32" shape: 2 shape: 1 }
    inputs { name: "ids" datatype: "INT64" shape: 3 }
    inputs { name: "none" datatype: "INT64" shape: 0 }
    outputs { name: "score" }
  )pb");
  message.add_raw_input_contents(Raw<float>({1.5f, -2.0f}));
  message.add_raw_input_contents(Raw<int64_t>({7, 8, 9}));
  message.add_raw_input_contents("");
  const absl::StatusOr<InferRequest> request = DecodeRequest(message, kNow);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->model_name, "m");
  EXPECT_EQ(request->model_version, "3");
  EXPECT_THAT(request->outputs, ElementsAre("score"));
  EXPECT_EQ(request->deadline, absl::InfiniteFuture());
  ASSERT_EQ(request->inputs.size(), 3);
  const base::Tensor& x = request->inputs[0].tensor;
  EXPECT_EQ(request->inputs[0].name, "x");
  EXPECT_THAT(x.dims(), ElementsAre(2, 1));
  EXPECT_THAT(Elements<float>(x), ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(Elements<int64_t>(request->inputs[1].tensor),
              ElementsAre(7, 8, 9));
  for (const InputTensor& input : request->inputs) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(input.tensor.data()) %
                  base::kTensorAlignBytes,
              0);
  }
}

TEST(DecodeRequestTest, ReadsTypedContentsOfEveryDatatype) {
  const ModelInferRequest message = Parse(R"pb(
    inputs {
      name: "b"
      datatype: "BOOL"
      shape: 2
      contents { bool_contents: true bool_contents: false }
    }
    inputs {
      name: "i8"
      datatype: "INT8"
      shape: 2
      contents { int_contents: -128 int_contents: 127 }
    }
    inputs {
      name: "i16"
      datatype: "INT16"
      shape: 1
      contents { int_contents: -32768 }
    }
    inputs {
      name: "i32"
      datatype: "INT32"
      shape: 1
      contents { int_contents: -7 }
    }
    inputs {
      name: "i64"
      datatype: "INT64"
      shape: 1
      contents { int64_contents: 9223372036854775807 }
    }
    inputs {
      name: "u8"
      datatype: "UINT8"
      shape: 1
      contents { uint_contents: 255 }
    }
    inputs {
      name: "f32"
      datatype: "FP32"
      shape: 1
      shape: 2
      contents { fp32_contents: 0.25 fp32_contents: -1 }
    }
    inputs {
      name: "f64"
      datatype: "FP64"
      contents { fp64_contents: 1e300 }
    }
    inputs { name: "empty" datatype: "INT64" shape: 0 }
  )pb");
  const absl::StatusOr<InferRequest> request = DecodeRequest(message, kNow);
  ASSERT_TRUE(request.ok()) << request.status();
  const auto& inputs = request->inputs;
  EXPECT_THAT(Elements<uint8_t>(inputs[0].tensor), ElementsAre(1, 0));
  EXPECT_THAT(Elements<int8_t>(inputs[1].tensor), ElementsAre(-128, 127));
  EXPECT_THAT(Elements<int16_t>(inputs[2].tensor), ElementsAre(-32768));
  EXPECT_THAT(Elements<int32_t>(inputs[3].tensor), ElementsAre(-7));
  EXPECT_THAT(Elements<int64_t>(inputs[4].tensor), ElementsAre(INT64_MAX));
  EXPECT_THAT(Elements<uint8_t>(inputs[5].tensor), ElementsAre(255));
  EXPECT_THAT(Elements<float>(inputs[6].tensor), ElementsAre(0.25f, -1.0f));
  EXPECT_THAT(Elements<double>(inputs[7].tensor), ElementsAre(1e300));
  EXPECT_TRUE(inputs[7].tensor.dims().empty());
  EXPECT_EQ(inputs[8].tensor.bytes(), 0);
}

TEST(DecodeRequestTest, TimeoutParameterSetsTheDeadline) {
  struct Case {
    const char* parameter;
    absl::Time deadline;
  } const cases[] = {
      {"int64_param: 1500", kNow + absl::Microseconds(1500)},
      {"uint64_param: 20", kNow + absl::Microseconds(20)},
      {"int64_param: 0", absl::InfiniteFuture()},
  };
  for (const Case& c : cases) {
    const ModelInferRequest message =
        Parse(std::string("parameters { key: 'timeout' value { ") +
              c.parameter + " } }");
    EXPECT_EQ(DecodeRequest(message, kNow)->deadline, c.deadline)
        << c.parameter;
  }
}

TEST(DecodeRequestTest, RefusesBadInputAndNamesTheTensor) {
  struct Case {
    const char* what;
    std::string text;
    std::vector<const char*> words;
  };
  const Case cases[] = {
      {"raw bytes too few",
       "inputs { name: 'x' datatype: 'FP32' shape: 2 } "
       "raw_input_contents: '1234'",
       {"'x'", "4 raw bytes", "needs 8"}},
      {"raw bytes too many",
       "inputs { name: 'x' datatype: 'INT8' shape: 2 } "
       "raw_input_contents: '123'",
       {"'x'", "3 raw bytes", "needs 2"}},
      {"raw for one of two",
       "inputs { name: 'x' datatype: 'INT8' shape: 1 } "
       "inputs { name: 'y' datatype: 'INT8' shape: 1 } "
       "raw_input_contents: '1'",
       {"'y'", "raw_input_contents"}},
      {"raw without an input",
       "inputs { name: 'x' datatype: 'INT8' shape: 1 } "
       "raw_input_contents: '1' raw_input_contents: '1'",
       {"2 elements for 1 inputs"}},
      {"raw and typed",
       "inputs { name: 'x' datatype: 'INT8' shape: 1 "
       "contents { int_contents: 1 } } raw_input_contents: '1'",
       {"'x'", "typed", "raw_input_contents"}},
      {"no contents",
       "inputs { name: 'x' datatype: 'FP32' shape: 2 }",
       {"'x'", "no contents"}},
      {"typed too few",
       "inputs { name: 'x' datatype: 'FP32' shape: 2 "
       "contents { fp32_contents: 1 } }",
       {"'x'", "1 elements", "its shape has 2"}},
      {"typed too many",
       "inputs { name: 'x' datatype: 'FP32' shape: 0 "
       "contents { fp32_contents: 1 } }",
       {"'x'", "1 elements", "its shape has 0"}},
      {"field of another datatype",
       "inputs { name: 'x' datatype: 'INT64' shape: 1 "
       "contents { int_contents: 1 } }",
       {"'x'", "another datatype"}},
      {"two fields",
       "inputs { name: 'x' datatype: 'INT64' shape: 1 "
       "contents { int64_contents: 1 fp32_contents: 1 } }",
       {"'x'", "another datatype"}},
      {"FP16 has no field",
       "inputs { name: 'x' datatype: 'FP16' shape: 1 "
       "contents { fp32_contents: 1 } }",
       {"'x'", "FP16", "raw"}},
      {"INT8 overflow",
       "inputs { name: 'x' datatype: 'INT8' shape: 2 "
       "contents { int_contents: 1 int_contents: 128 } }",
       {"'x'", "element 1", "128"}},
      {"UINT8 overflow",
       "inputs { name: 'x' datatype: 'UINT8' shape: 1 "
       "contents { uint_contents: 256 } }",
       {"'x'", "256"}},
      {"negative dimension",
       "inputs { name: 'x' datatype: 'FP32' shape: -1 } "
       "raw_input_contents: ''",
       {"'x'", "negative"}},
      {"overflowing dimensions",
       "inputs { name: 'x' datatype: 'FP32' shape: 4611686018427387904 "
       "shape: 4 } raw_input_contents: ''",
       {"'x'", "overflow"}},
      {"overflow behind a zero",
       "inputs { name: 'x' datatype: 'FP32' shape: 0 "
       "shape: 4611686018427387904 shape: 4 } raw_input_contents: ''",
       {"'x'", "overflow"}},
      {"huge shape, little data",
       "inputs { name: 'x' datatype: 'FP32' shape: 1000000000000 "
       "contents { fp32_contents: 1 } }",
       {"'x'", "1000000000000"}},
      {"unknown datatype",
       "inputs { name: 'x' datatype: 'BYTES' shape: 1 "
       "contents { bytes_contents: 'a' } }",
       {"'x'", "BYTES"}},
      {"BOOL byte that is neither",
       "inputs { name: 'x' datatype: 'BOOL' shape: 1 } "
       "raw_input_contents: '\\002'",
       {"'x'", "BOOL", "2"}},
      {"shared memory",
       "inputs { name: 'x' datatype: 'FP32' shape: 1 parameters { "
       "key: 'shared_memory_region' value { string_param: 'r' } } }",
       {"'x'", "shared memory"}},
      {"classification",
       "outputs { name: 'y' parameters { "
       "key: 'classification' value { int64_param: 3 } } }",
       {"'y'", "classification"}},
      {"sequence",
       "parameters { key: 'sequence_id' value { int64_param: 3 } }",
       {"sequence_id"}},
      {"timeout of another type",
       "parameters { key: 'timeout' value { string_param: '5' } }",
       {"timeout"}},
      {"negative timeout",
       "parameters { key: 'timeout' value { int64_param: -5 } }",
       {"timeout"}},
  };
  for (const Case& c : cases) {
    const absl::Status status = DecodeRequest(Parse(c.text), kNow).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
        << c.what << ": " << status;
    for (const char* word : c.words) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(word)) << c.what;
    }
  }
}

TEST(EncodeResponseTest, ParametersSayHowAnAnswerCameAbout) {
  InferResponse response;
  inference::ModelInferResponse message;
  EncodeResponse(response, message);
  EXPECT_TRUE(message.parameters().empty());
  response.retries = 1;
  response.ran_locally = true;
  response.replaced_ids = 7;
  response.newest_version = 12;
  EncodeResponse(response, message);
  EXPECT_EQ(message.parameters().size(), 4);
  EXPECT_EQ(message.parameters().at("retries").int64_param(), 1);
  EXPECT_TRUE(message.parameters().at("ran_locally").bool_param());
  EXPECT_EQ(message.parameters().at("replaced_ids").int64_param(), 7);
  EXPECT_EQ(message.parameters().at("newest_version").int64_param(), 12);
}

TEST(EncodeResponseTest, GivesRawOutputsInOrder) {
  const std::vector<float> scores = {0.5f, 0.25f};
  const std::vector<int64_t> count = {2};
  const InferResponse::Output score = {
      "score",
      {base::DType::kFloat32,
       {2, 1},
       reinterpret_cast<const std::byte*>(scores.data()),
       8}};
  const InferResponse::Output n = {
      "n",
      {base::DType::kInt64,
       {},
       reinterpret_cast<const std::byte*>(count.data()),
       8}};
  InferResponse response;
  response.model_name = "m";
  response.model_version = 12;
  response.outputs = {score, n};
  ModelInferResponse message;
  EncodeResponse(response, message);
  EXPECT_EQ(message.model_name(), "m");
  EXPECT_EQ(message.model_version(), "12");
  ASSERT_EQ(message.outputs_size(), 2);
  EXPECT_EQ(message.outputs(0).name(), "score");
  EXPECT_EQ(message.outputs(0).datatype(), "FP32");
  EXPECT_THAT(message.outputs(0).shape(), ElementsAre(2, 1));
  EXPECT_EQ(message.outputs(1).datatype(), "INT64");
  EXPECT_EQ(message.outputs(1).shape_size(), 0);
  ASSERT_EQ(message.raw_output_contents_size(), 2);
  EXPECT_EQ(message.raw_output_contents(0), Raw<float>({0.5f, 0.25f}));
  EXPECT_EQ(message.raw_output_contents(1), Raw<int64_t>({2}));
}

}  // namespace
}  // namespace refract::cpu_node
