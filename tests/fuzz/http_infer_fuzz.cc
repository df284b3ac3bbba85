// The body of an inference request over HTTP: what is decoded holds as much of
// the budget as its tensors have, and encoded again as JSON and as bytes it is
// the same; what is refused holds nothing.
#include <glog/logging.h>

#include <algorithm>
#include <optional>
#include <string>

#include "cpu_node/http/compression.h"
#include "cpu_node/http/infer_codec.h"
#include "tests/fuzz/target.h"

namespace refract::fuzz {
namespace {

using cpu_node::HttpInferRequest;

constexpr size_t kBudget = size_t{16} << 20;
constexpr size_t kMaxPlainBytes = size_t{1} << 20;

void CheckSame(const HttpInferRequest& first, const HttpInferRequest& second) {
  CHECK_EQ(first.request.inputs.size(), second.request.inputs.size());
  for (size_t i = 0; i < first.request.inputs.size(); ++i) {
    const base::TensorView a = first.request.inputs[i].tensor.view();
    const base::TensorView b = second.request.inputs[i].tensor.view();
    CHECK(a.dtype == b.dtype && a.dims == b.dims);
    CHECK(std::equal(a.data, a.data + a.bytes, b.data, b.data + b.bytes));
  }
}

// Sends the inputs as outputs and reads these as inputs.
void CheckEncodedAgain(const HttpInferRequest& first, bool binary) {
  cpu_node::InferResponse response;
  response.model_name = "m";
  for (const cpu_node::InputTensor& input : first.request.inputs) {
    response.outputs.push_back({input.name, input.tensor.view()});
  }
  const auto answer = cpu_node::EncodeHttpAnswer(
      response, first.id, {.binary = binary, .listed = {}});
  if (!answer.ok()) {
    CHECK(!binary && absl::IsInvalidArgument(answer.status()))
        << answer.status();
    return;  // not in JSON
  }
  std::string body = answer->body;
  const std::string key = "\"outputs\":[";
  const size_t at = body.find(key);
  CHECK_NE(at, std::string::npos);
  body.replace(at, key.size(), "\"inputs\": [");
  std::optional<std::string> json_bytes;
  if (answer->json_bytes.has_value()) {
    json_bytes = std::to_string(*answer->json_bytes);
  }
  base::ByteBudget memory(size_t{1} << 30, "--request-memory");
  const auto again =
      cpu_node::DecodeHttpRequest(body, json_bytes, absl::UnixEpoch(), memory);
  CHECK(again.ok()) << again.status();
  CheckSame(first, *again);
}

void Decode(absl::string_view body,
            const std::optional<std::string>& json_bytes) {
  base::ByteBudget memory(kBudget, "--request-memory");
  {
    const auto request = cpu_node::DecodeHttpRequest(body, json_bytes,
                                                     absl::UnixEpoch(), memory);
    if (request.ok()) {
      CHECK_EQ(memory.held(), BytesOf(request->request));
      CheckEncodedAgain(*request, /*binary=*/true);
      CheckEncodedAgain(*request, /*binary=*/false);
    } else {
      CHECK(absl::IsInvalidArgument(request.status()) ||
            absl::IsResourceExhausted(request.status()))
          << request.status();
    }
  }
  CHECK_EQ(memory.held(), 0);
}

constexpr char kJson[] =
    R"({"id":"7","parameters":{"timeout":5,"binary_data_output":true},)"
    R"("inputs":[{"name":"x","shape":[2,2],"datatype":"FP32",)"
    R"("data":[[1,-2.5],[3e8,0.1]]},{"name":"b","shape":[2],)"
    R"("datatype":"BOOL","data":[true,false]}],)"
    R"("outputs":[{"name":"y","parameters":{"binary_data":false}}]})";
constexpr char kBinary[] =
    R"({"inputs":[{"name":"x","shape":[1],"datatype":"INT64",)"
    R"("parameters":{"binary_data_size":8}},{"name":"h","shape":[2],)"
    R"("datatype":"FP16","parameters":{"binary_data_size":4}}]})";

}  // namespace

// Coding (0: none), length of the header's text (0: no header), the text, the
// body.
std::vector<Seed> Seeds() {
  const std::string binary = std::string(kBinary) + std::string(12, '\x11');
  const std::string length = std::to_string(sizeof(kBinary) - 1);
  return {
      {"json", Script().U8(0).Text("").Raw(kJson).bytes()},
      {"binary", Script().U8(0).Text(length).Raw(binary).bytes()},
      {"gzip",
       Script()
           .U8(1)
           .Text(length)
           .Raw(cpu_node::Compress(binary, cpu_node::ContentCoding::kGzip))
           .bytes()},
      {"nested", Script().U8(0).Text("").Raw(std::string(80, '[')).bytes()},
  };
}

}  // namespace refract::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace refract;
  fuzz::Input input(data, size);
  const auto coding = static_cast<cpu_node::ContentCoding>(input.U8() % 3);
  const absl::string_view length = input.Text();
  std::optional<std::string> json_bytes;
  if (!length.empty()) json_bytes = std::string(length);
  const absl::string_view body = input.Take(size);
  if (coding == cpu_node::ContentCoding::kIdentity) {
    fuzz::Decode(body, json_bytes);
    return 0;
  }
  base::ByteBudget memory(fuzz::kBudget, "--request-memory");
  cpu_node::HttpBody plain(memory, fuzz::kMaxPlainBytes);
  const absl::Status status = cpu_node::Decompress(body, coding, plain);
  if (status.ok()) {
    fuzz::Decode(plain.view(), json_bytes);
  } else {
    CHECK(absl::IsInvalidArgument(status) || absl::IsOutOfRange(status))
        << status;
  }
  return 0;
}
