#include "cpu_node/http/infer_codec.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace refract::cpu_node {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Time kNow = absl::UnixEpoch() + absl::Seconds(100);

class HttpCodecTest : public ::testing::Test {
 protected:
  absl::StatusOr<HttpInferRequest> Decode(const std::string& json) {
    return DecodeHttpRequest(json, std::nullopt, kNow, memory_);
  }
  absl::StatusOr<HttpInferRequest> Decode(const std::string& json,
                                          const std::string& binary) {
    return DecodeHttpRequest(json + binary, absl::StrCat(json.size()), kNow,
                             memory_);
  }
  // The error's text; the budget must be whole again.
  std::string ErrorOf(const std::string& json, const std::string& binary = "") {
    const auto request = binary.empty() ? Decode(json) : Decode(json, binary);
    EXPECT_TRUE(absl::IsInvalidArgument(request.status())) << request.status();
    EXPECT_EQ(memory_.held(), 0);
    return std::string(request.status().message());
  }

  base::ByteBudget memory_{size_t{1} << 20, "--request-memory"};
};

template <typename T>
std::vector<T> Elements(const InputTensor& input) {
  const absl::Span<const T> view = input.tensor.view().as<T>();
  return std::vector<T>(view.begin(), view.end());
}

template <typename T>
std::string Raw(std::vector<T> values) {
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(T));
}

std::string Input(const std::string& fields) {
  return "{\"inputs\":[{\"name\":\"x\"," + fields + "}]}";
}

TEST_F(HttpCodecTest, ReadsJsonOfEveryDatatype) {
  const auto request = Decode(R"({
    "id": "7", "parameters": {"timeout": 2000000},
    "inputs": [
      {"name": "b", "shape": [2], "datatype": "BOOL", "data": [true, false]},
      {"name": "i8", "shape": [2], "datatype": "INT8", "data": [-128, 127]},
      {"name": "u8", "shape": [1], "datatype": "UINT8", "data": [255]},
      {"name": "i16", "shape": [1], "datatype": "INT16", "data": [-32768]},
      {"name": "i32", "shape": [1], "datatype": "INT32", "data": [-7]},
      {"name": "i64", "shape": [2, 1], "datatype": "INT64",
       "data": [[9223372036854775807], [-9223372036854775808]]},
      {"data": [[1, 0.1], [-2.5e3, 3]], "name": "f32", "shape": [2, 2],
       "datatype": "FP32", "unknown": {"data": [null, {}]}},
      {"name": "f64", "shape": [1], "datatype": "FP64", "data": [1e300]},
      {"name": "none", "shape": [0, 4], "datatype": "FP32", "data": []},
      {"name": "absent", "shape": [0], "datatype": "INT64"}],
    "outputs": [{"name": "score"}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->id, "7");
  EXPECT_EQ(request->request.deadline, kNow + absl::Seconds(2));
  EXPECT_THAT(request->request.outputs, ElementsAre("score"));
  EXPECT_FALSE(request->forms.IsBinary(0));
  const std::vector<InputTensor>& inputs = request->request.inputs;
  ASSERT_EQ(inputs.size(), 10);
  EXPECT_THAT(Elements<uint8_t>(inputs[0]), ElementsAre(1, 0));
  EXPECT_THAT(Elements<int8_t>(inputs[1]), ElementsAre(-128, 127));
  EXPECT_THAT(Elements<uint8_t>(inputs[2]), ElementsAre(255));
  EXPECT_THAT(Elements<int16_t>(inputs[3]), ElementsAre(-32768));
  EXPECT_THAT(Elements<int32_t>(inputs[4]), ElementsAre(-7));
  EXPECT_THAT(Elements<int64_t>(inputs[5]),
              ElementsAre(std::numeric_limits<int64_t>::max(),
                          std::numeric_limits<int64_t>::min()));
  EXPECT_THAT(inputs[5].tensor.dims(), ElementsAre(2, 1));
  EXPECT_EQ(inputs[6].name, "f32");
  EXPECT_THAT(Elements<float>(inputs[6]), ElementsAre(1, 0.1f, -2500, 3));
  EXPECT_THAT(Elements<double>(inputs[7]), ElementsAre(1e300));
  EXPECT_EQ(memory_.held(), BytesOf(request->request));
}

TEST_F(HttpCodecTest, NullOfAnOptionalFieldIsItsAbsence) {
  EXPECT_THAT(ErrorOf("{\"inputs\": null}"), HasSubstr("'inputs' must be"));
  EXPECT_THAT(ErrorOf(Input("\"shape\": null")), HasSubstr("'shape' must be"));
  const auto request = Decode(R"({"id": null, "parameters": null,
    "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1],
                "parameters": null}],
    "outputs": null})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->id, "");
  EXPECT_TRUE(request->request.outputs.empty());
}

TEST_F(HttpCodecTest, ReadsBinaryTensorsBesideJson) {
  const auto request = Decode(
      R"({"parameters": {"binary_data_output": true}, "inputs": [
        {"name": "a", "shape": [2], "datatype": "FP32",
         "parameters": {"binary_data_size": 8}},
        {"name": "b", "shape": [1], "datatype": "INT64", "data": [5]},
        {"name": "c", "shape": [1], "datatype": "FP16",
         "parameters": {"binary_data_size": 2}},
        {"name": "d", "shape": [0], "datatype": "FP32",
         "parameters": {"binary_data_size": 0}}],
       "outputs": [{"name": "p"},
                   {"name": "q", "parameters": {"binary_data": false}}]})",
      Raw<float>({1.5f, -2}) + "\x01\x3c");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(Elements<float>(request->request.inputs[0]),
              ElementsAre(1.5f, -2));
  EXPECT_THAT(Elements<int64_t>(request->request.inputs[1]), ElementsAre(5));
  EXPECT_THAT(Elements<uint16_t>(request->request.inputs[2]),
              ElementsAre(0x3c01));
  EXPECT_TRUE(request->forms.IsBinary(0));
  EXPECT_FALSE(request->forms.IsBinary(1));
  EXPECT_TRUE(request->forms.IsBinary(2));  // not listed
}

TEST_F(HttpCodecTest, MalformedJsonIsRefusedWithItsPosition) {
  EXPECT_THAT(ErrorOf("{\n  \"inputs\": [,]}"),
              AllOf(HasSubstr("line 2, column 14"),
                    testing::Not(HasSubstr("json.exception"))));
  EXPECT_THAT(ErrorOf(""), HasSubstr("unexpected end of input"));
  EXPECT_THAT(ErrorOf("{\"inputs\": []} x"), HasSubstr("column 16"));
  EXPECT_THAT(ErrorOf("{\"id\": \"\xff\"}"), HasSubstr("UTF-8"));
  EXPECT_THAT(ErrorOf(Input("\"data\": [1e999]")), HasSubstr("overflow"));
  for (const char* value : {"NaN", "1, NaN", "Infinity", "[-Infinity"}) {
    EXPECT_THAT(ErrorOf(Input(absl::StrCat("\"data\": [", value, "]"))),
                AllOf(HasSubstr("line 1, column "), HasSubstr("as bytes")));
  }
  EXPECT_THAT(ErrorOf(Input("\"data\": [x]")),
              testing::Not(HasSubstr("as bytes")));
  EXPECT_THAT(ErrorOf("{\"x\": " + std::string(100, '[')),
              HasSubstr("levels of nesting"));
}

TEST_F(HttpCodecTest, FieldsOfWrongTypesAreNamed) {
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("must be an object"));
  EXPECT_THAT(ErrorOf("3"), HasSubstr("must be an object"));
  EXPECT_THAT(ErrorOf("{\"id\": 3}"), HasSubstr("'id' must be a string"));
  EXPECT_THAT(ErrorOf("{\"inputs\": {}}"), HasSubstr("'inputs' must be"));
  EXPECT_THAT(ErrorOf("{\"inputs\": [{}, 3]}"), HasSubstr("'inputs' must be"));
  EXPECT_THAT(ErrorOf("{\"inputs\": [{}, {\"shape\": [1.5]}]}"),
              HasSubstr("inputs[1]: 'shape' must be an array of integers"));
  EXPECT_THAT(ErrorOf(Input("\"shape\": 3")), HasSubstr("'shape' must be"));
  EXPECT_THAT(ErrorOf(Input("\"datatype\": []")),
              HasSubstr("'datatype' must be a string"));
  EXPECT_THAT(ErrorOf(Input("\"data\": 3")),
              HasSubstr("'data' must be an array"));
  EXPECT_THAT(ErrorOf(Input("\"data\": [\"a\"]")),
              HasSubstr("'data' must be numbers or booleans"));
  EXPECT_THAT(ErrorOf(Input("\"data\": [null]")), HasSubstr("'data' must be"));
  EXPECT_THAT(ErrorOf(Input("\"data\": [1, true]")),
              HasSubstr("booleans and numbers"));
  EXPECT_THAT(ErrorOf("{\"parameters\": {\"p\": []}}"), HasSubstr("'p'"));
  EXPECT_THAT(ErrorOf("{\"parameters\": 1}"), HasSubstr("'parameters' must"));
  EXPECT_THAT(ErrorOf("{\"outputs\": [{\"name\": 1}]}"),
              HasSubstr("outputs[0]: 'name' must be a string"));
  EXPECT_THAT(ErrorOf(Input("\"data\": [1], \"data\": [2]")),
              HasSubstr("'data' twice"));
  EXPECT_THAT(ErrorOf("{\"parameters\": {\"p\": 1, \"p\": 2}}"),
              HasSubstr("'p' twice"));
}

TEST_F(HttpCodecTest, DataThatDoNotFitAreRefused) {
  const auto error = [&](const std::string& shape, const std::string& datatype,
                         const std::string& data) {
    return ErrorOf(Input(absl::StrCat("\"shape\":", shape, ",\"datatype\":\"",
                                      datatype, "\",\"data\":", data)));
  };
  EXPECT_THAT(error("[2]", "FP32", "[1]"),
              AllOf(HasSubstr("input 'x'"), HasSubstr("1 elements"),
                    HasSubstr("its shape has 2")));
  EXPECT_THAT(ErrorOf(Input("\"datatype\":\"FP32\",\"data\":[1, 2]")),
              HasSubstr("has 2 elements of data and no shape"));
  // More than any machine has.
  EXPECT_THAT(error("[4611686018427387]", "FP32", "[1]"),
              HasSubstr("1 elements"));
  EXPECT_THAT(error("[-1]", "FP32", "[1]"), HasSubstr("bad shape"));
  EXPECT_THAT(error("[1]", "FP99", "[1]"), HasSubstr("'FP99'"));
  EXPECT_THAT(error("[1]", "BYTES", "[1]"), HasSubstr("'BYTES'"));
  EXPECT_THAT(error("[1]", "FP16", "[1]"), HasSubstr("binary"));
  EXPECT_THAT(error("[2]", "INT8", "[1, 128]"),
              HasSubstr("element 1 is 128, out of range"));
  EXPECT_THAT(error("[1]", "INT64", "[1.5]"), HasSubstr("not all integers"));
  EXPECT_THAT(error("[1]", "INT64", "[9223372036854775808]"),
              HasSubstr("not all integers in its range"));
  EXPECT_THAT(error("[1]", "FP32", "[1e39]"), HasSubstr("out of range"));
  EXPECT_THAT(error("[1]", "FP32", "[true]"), HasSubstr("booleans"));
  EXPECT_THAT(error("[1]", "BOOL", "[1]"), HasSubstr("numbers"));
}

TEST_F(HttpCodecTest, BinarySizesMustAddUp) {
  const auto json = [](const std::string& parameters,
                       const std::string& more = "") {
    return Input("\"shape\":[1],\"datatype\":\"FP32\",\"parameters\":{" +
                 parameters + "}" + more);
  };
  const std::string four = Raw<float>({1});
  EXPECT_TRUE(Decode(json("\"binary_data_size\":4"), four).ok());
  EXPECT_THAT(ErrorOf(json("\"binary_data_size\":4"), "abc"),
              AllOf(HasSubstr("'x'"), HasSubstr("4"), HasSubstr("3 bytes")));
  EXPECT_THAT(ErrorOf(json("\"binary_data_size\":4")),
              HasSubstr("Inference-Header-Content-Length"));
  EXPECT_THAT(ErrorOf(json("\"binary_data_size\":4"), four + "rest"),
              HasSubstr("4 bytes of binary data that belong to no input"));
  EXPECT_THAT(ErrorOf(json("\"binary_data_size\":3"), "abc"),
              HasSubstr("has 3 raw bytes, FP32[1] needs 4"));
  EXPECT_THAT(ErrorOf(json("\"binary_data_size\":-1"), four),
              HasSubstr("binary_data_size"));
  EXPECT_THAT(ErrorOf(json("\"binary_data_size\":\"4\""), four),
              HasSubstr("binary_data_size"));
  EXPECT_THAT(ErrorOf(json("\"binary_data_size\":18446744073709551615"), four),
              HasSubstr("binary_data_size"));
  EXPECT_THAT(ErrorOf(json("\"binary_data_size\":4", ",\"data\":[1]"), four),
              HasSubstr("both"));
  for (const char* length : {"x", "-1", "99999", "0", ""}) {
    const auto request = DecodeHttpRequest("{}", length, kNow, memory_);
    EXPECT_THAT(request.status().message(),
                HasSubstr("Inference-Header-Content-Length"))
        << length;
  }
}

TEST_F(HttpCodecTest, ParametersThatGrpcRefusesAreRefused) {
  EXPECT_THAT(ErrorOf("{\"parameters\":{\"timeout\":-1}}"),
              HasSubstr("'timeout' must be"));
  EXPECT_THAT(ErrorOf("{\"parameters\":{\"sequence_id\":5}}"),
              HasSubstr("no sequences"));
  EXPECT_THAT(ErrorOf("{\"parameters\":{\"binary_data_output\":1}}"),
              HasSubstr("'binary_data_output' must be true or false"));
  EXPECT_THAT(ErrorOf(R"({"outputs":[{"name":"o","parameters":
                         {"classification":3}}]})"),
              AllOf(HasSubstr("'o'"), HasSubstr("'classification'")));
  EXPECT_THAT(ErrorOf(Input("\"parameters\":{\"shared_memory_region\":\"r\"}")),
              HasSubstr("shared memory"));
}

TEST_F(HttpCodecTest, CountsAreBounded) {
  std::string inputs = "{\"inputs\":[{}";
  for (int i = 0; i < 1 << 14; ++i) inputs += ",{}";
  EXPECT_THAT(ErrorOf(inputs + "]}"), HasSubstr("more than 16384 inputs"));
  std::string shape = "\"shape\":[1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  EXPECT_THAT(ErrorOf(Input(shape + "]")), HasSubstr("64 dimensions"));
  std::string parameters = "{\"parameters\":{\"p\":1";
  for (int i = 0; i < 1024; ++i) absl::StrAppend(&parameters, ",\"", i, "\":1");
  EXPECT_THAT(ErrorOf(parameters + "}}"), HasSubstr("1024 parameters"));
}

TEST_F(HttpCodecTest, ElementsBeyondTheBudgetAreRefused) {
  // 2 MiB of elements in 512 KiB of text.
  std::string json = "\"shape\":[262144],\"datatype\":\"INT8\",\"data\":[1";
  for (int i = 1; i < 262144; ++i) json += ",1";
  const auto request = Decode(Input(json + "]"));
  EXPECT_TRUE(absl::IsResourceExhausted(request.status())) << request.status();
  EXPECT_THAT(request.status().message(), HasSubstr("--request-memory"));
  EXPECT_EQ(memory_.held(), 0);
}

// A response with one output; `values` must outlive it.
template <typename T>
InferResponse Response(base::DType dtype, const std::vector<T>& values) {
  InferResponse response;
  response.model_name = "m\"1";
  response.model_version = 3;
  response.outputs.push_back(
      {"out",
       {dtype,
        {static_cast<int64_t>(values.size()), 1},
        reinterpret_cast<const std::byte*>(values.data()),
        values.size() * sizeof(T)}});
  return response;
}

TEST_F(HttpCodecTest, JsonAnswersReadAsTheSameNumbers) {
  const std::vector<float> values = {0,       -0.0f,         1,          0.1f,
                                     -1e-40f, 3.4028235e38f, 16777217.f, 1e10f};
  const auto answer =
      EncodeHttpAnswer(Response(base::DType::kFloat32, values), "i\n", {});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_FALSE(answer->json_bytes.has_value());
  const auto json = nlohmann::json::parse(answer->body);
  EXPECT_EQ(json["id"], "i\n");
  EXPECT_EQ(json["model_name"], "m\"1");
  EXPECT_EQ(json["model_version"], "3");
  EXPECT_EQ(json["outputs"][0]["datatype"], "FP32");
  EXPECT_EQ(json["outputs"][0]["shape"], nlohmann::json({8, 1}));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& element = json["outputs"][0]["data"][i];
    EXPECT_TRUE(element.is_number_float()) << element;
    const auto read = static_cast<float>(element.get<double>());
    EXPECT_EQ(std::memcmp(&read, &values[i], 4), 0) << element;
  }
}

TEST_F(HttpCodecTest, BinaryAnswersFollowTheirJson) {
  const std::vector<int64_t> values = {1, -1};
  OutputForms forms;
  forms.listed = {1};
  const auto answer =
      EncodeHttpAnswer(Response(base::DType::kInt64, values), "", forms);
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_TRUE(answer->json_bytes.has_value());
  const auto json =
      nlohmann::json::parse(answer->body.substr(0, *answer->json_bytes));
  EXPECT_FALSE(json.contains("id"));
  EXPECT_EQ(json["outputs"][0]["parameters"]["binary_data_size"], 16);
  EXPECT_FALSE(json["outputs"][0].contains("data"));
  EXPECT_EQ(answer->body.substr(*answer->json_bytes), Raw(values));
}

TEST_F(HttpCodecTest, WhatJsonCannotCarryIsSaid) {
  const std::vector<float> values = {NAN};
  EXPECT_THAT(EncodeHttpAnswer(Response(base::DType::kFloat32, values), "", {})
                  .status()
                  .message(),
              AllOf(HasSubstr("'out'"), HasSubstr("binary_data")));
  const std::vector<uint16_t> halves = {0};
  EXPECT_THAT(EncodeHttpAnswer(Response(base::DType::kFloat16, halves), "", {})
                  .status()
                  .message(),
              HasSubstr("FP16"));
}

TEST_F(HttpCodecTest, ParametersSayHowAnAnswerCameAbout) {
  const std::vector<float> values = {1};
  InferResponse response = Response(base::DType::kFloat32, values);
  const auto json = [&] {
    return nlohmann::json::parse(EncodeHttpAnswer(response, "", {})->body);
  };
  EXPECT_FALSE(json().contains("parameters"));
  response.retries = 1;
  response.ran_locally = true;
  response.replaced_ids = 7;
  response.newest_version = 12;
  EXPECT_EQ(json()["parameters"], nlohmann::json::parse(R"({
      "retries": 1, "ran_locally": true, "replaced_ids": 7,
      "newest_version": 12})"));
}

}  // namespace
}  // namespace refract::cpu_node
