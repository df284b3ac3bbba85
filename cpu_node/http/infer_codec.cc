#include "cpu_node/http/infer_codec.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "cpu_node/frontend/codec.h"
#include "cpu_node/http/infer_reader.h"
#include "cpu_node/http/message_json.h"
#include "runtime/tensor_elements.h"

namespace refract::cpu_node {
namespace {

using Parameters =
    google::protobuf::Map<std::string, inference::InferParameter>;

constexpr char kBinarySize[] = "binary_data_size";
constexpr char kJsonLength[] = "Inference-Header-Content-Length";

// Splits `body` into JSON and binary part; returns the length of the JSON.
absl::StatusOr<size_t> JsonBytes(absl::string_view body,
                                 const std::optional<std::string>& header) {
  // Without the header the whole body is JSON.
  if (!header.has_value()) return body.size();
  uint64_t bytes = 0;
  if (!absl::SimpleAtoi(*header, &bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        kJsonLength, " '", base::Shorten(*header), "' is no number of bytes"));
  }
  if (bytes > body.size()) {
    return absl::InvalidArgumentError(absl::StrCat(kJsonLength, " is ", bytes,
                                                   ", but the request has ",
                                                   body.size(), " bytes"));
  }
  if (bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(kJsonLength,
                     " is 0: requests without JSON (Triton's raw "
                     "binary requests) are not supported"));
  }
  return bytes;
}

// Cuts the bytes after the JSON into the binary inputs, in order.
class BinaryInputs {
 public:
  explicit BinaryInputs(absl::string_view bytes) : left_(bytes) {}

  // The bytes of an input with `binary_data_size`; else nullopt.
  absl::StatusOr<std::optional<absl::string_view>> Next(
      const Parameters& parameters) {
    const auto found = parameters.find(kBinarySize);
    if (found == parameters.end()) return std::nullopt;
    const inference::InferParameter& size = found->second;
    if (!size.has_int64_param() || size.int64_param() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("has a ", kBinarySize, " that is no integer ≥ 0"));
    }
    const auto wanted = static_cast<uint64_t>(size.int64_param());
    if (wanted > left_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "has ", kBinarySize, " ", wanted, ", but ", left_.size(),
          " bytes of binary data are left after the JSON (", kJsonLength, ")"));
    }
    const absl::string_view bytes = left_.substr(0, wanted);
    left_.remove_prefix(wanted);
    return bytes;
  }

  absl::Status CheckEmpty() const {
    if (left_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the request has ", left_.size(),
                     " bytes of binary data that belong to no input"));
  }

 private:
  absl::string_view left_;
};

// Reads a boolean parameter; `value` stays if it is missing.
absl::Status ReadFlag(const Parameters& parameters, const char* name,
                      bool& value) {
  const auto found = parameters.find(name);
  if (found == parameters.end()) return absl::OkStatus();
  if (!found->second.has_bool_param()) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter '", name, "' must be true or false"));
  }
  value = found->second.bool_param();
  return absl::OkStatus();
}

absl::StatusOr<OutputForms> FormsOf(
    const inference::ModelInferRequest& message) {
  OutputForms forms;
  REFRACT_RETURN_IF_ERROR(
      ReadFlag(message.parameters(), "binary_data_output", forms.binary));
  forms.listed.reserve(static_cast<size_t>(message.outputs_size()));
  for (const auto& output : message.outputs()) {
    bool binary = forms.binary;
    REFRACT_RETURN_IF_ERROR(base::Annotate(
        ReadFlag(output.parameters(), "binary_data", binary),
        absl::StrCat("output '", base::Shorten(output.name()), "'")));
    forms.listed.push_back(binary ? 1 : 0);
  }
  return forms;
}

// The shortest text that reads as the same number.
template <typename T>
absl::Status AppendNumber(T value, std::string& out) {
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) {
      return absl::InvalidArgumentError(
          "holds NaN or infinity, which JSON cannot carry; ask for it with "
          "binary_data");
    }
  }
  std::array<char, 32> text;
  const char* const end =
      std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  const absl::string_view number(text.data(),
                                 static_cast<size_t>(end - text.data()));
  absl::StrAppend(&out, number);
  // Some clients tell integers from floats by the decimal point.
  if constexpr (std::is_floating_point_v<T>) {
    if (number.find_first_of(".e") == number.npos) out += ".0";
  }
  return absl::OkStatus();
}

absl::Status AppendData(const base::TensorView& tensor, std::string& out) {
  const bool flags = tensor.dtype == base::DType::kBool;
  return runtime::VisitElements(tensor, [&](auto elements) {
    using T = typename decltype(elements)::value_type;
    if constexpr (runtime::kIsHalf<T>) {
      return absl::InvalidArgumentError(
          absl::StrCat("is ", base::KServeName(tensor.dtype),
                       ", which JSON cannot carry; ask for it with "
                       "binary_data"));
    } else {
      absl::string_view comma;
      for (const T element : elements) {
        absl::StrAppend(&out, comma);
        comma = ",";
        if (flags) {
          absl::StrAppend(&out, element != 0 ? "true" : "false");
        } else {
          REFRACT_RETURN_IF_ERROR(AppendNumber(element, out));
        }
      }
      return absl::OkStatus();
    }
  });
}

}  // namespace

absl::StatusOr<HttpInferRequest> DecodeHttpRequest(
    absl::string_view body, const std::optional<std::string>& json_bytes,
    absl::Time now, base::ByteBudget& memory) {
  REFRACT_ASSIGN_OR_RETURN(const size_t cut, JsonBytes(body, json_bytes));
  InferJson json;
  REFRACT_RETURN_IF_ERROR(ReadInferJson(body.substr(0, cut), memory, json));
  inference::ModelInferRequest& message = json.message;
  BinaryInputs binary(body.substr(cut));
  // No tensor is longer than the request's binary bytes or elements.
  size_t tensor_bytes = body.size() - cut;
  for (const JsonElements& elements : json.elements) {
    tensor_bytes += elements.size() * sizeof(uint64_t);
  }
  REFRACT_ASSIGN_OR_RETURN(base::ByteBudget::Hold hold,
                           // Held before the tensors are allocated; shrunk to
                           // their true size below.
                           memory.Take(tensor_bytes));
  HttpInferRequest result;
  REFRACT_ASSIGN_OR_RETURN(result.forms, FormsOf(message));
  REFRACT_ASSIGN_OR_RETURN(
      result.request,
      DecodeRequest(message, now, [&](int i) -> absl::StatusOr<base::Tensor> {
        const auto& input = message.inputs(i);
        const JsonElements& elements = json.elements[static_cast<size_t>(i)];
        REFRACT_ASSIGN_OR_RETURN(const base::TensorSpec spec, SpecOf(input));
        REFRACT_ASSIGN_OR_RETURN(const std::optional<absl::string_view> bytes,
                                 binary.Next(input.parameters()));
        if (!bytes.has_value()) return elements.ToTensor(spec);
        if (elements.size() > 0) {
          return absl::InvalidArgumentError(
              absl::StrCat("has both data and ", kBinarySize));
        }
        return TensorFromRaw(spec, *bytes);
      }));
  REFRACT_RETURN_IF_ERROR(binary.CheckEmpty());
  result.id = std::move(*message.mutable_id());
  hold.Shrink(BytesOf(result.request));
  result.request.memory = std::move(hold);
  return result;
}

absl::StatusOr<HttpInferAnswer> EncodeHttpAnswer(const InferResponse& response,
                                                 absl::string_view id,
                                                 const OutputForms& forms) {
  HttpInferAnswer answer;
  std::string& out = answer.body;
  size_t binary_bytes = 0;
  out = "{";
  if (!id.empty()) absl::StrAppend(&out, "\"id\":", JsonString(id), ",");
  absl::StrAppend(&out, "\"model_name\":", JsonString(response.model_name),
                  ",\"model_version\":\"", response.model_version, "\"");
  // Only parameters that differ from their defaults (ForEachParameter).
  std::string parameters;
  ForEachParameter(response, [&parameters](const char* name, auto value) {
    absl::StrAppend(&parameters, parameters.empty() ? "" : ",", "\"", name,
                    "\":");
    if constexpr (std::is_same_v<decltype(value), bool>) {
      parameters += value ? "true" : "false";
    } else {
      absl::StrAppend(&parameters, value);
    }
  });
  if (!parameters.empty()) {
    absl::StrAppend(&out, ",\"parameters\":{", parameters, "}");
  }
  out += ",\"outputs\":[";
  for (size_t i = 0; i < response.outputs.size(); ++i) {
    const InferResponse::Output& output = response.outputs[i];
    absl::StrAppend(&out, i > 0 ? "," : "",
                    "{\"name\":", JsonString(output.name), ",\"datatype\":\"",
                    base::KServeName(output.tensor.dtype), "\",\"shape\":[");
    absl::string_view comma;
    for (const int64_t dim : output.tensor.dims) {
      absl::StrAppend(&out, comma, dim);
      comma = ",";
    }
    if (forms.IsBinary(i)) {
      absl::StrAppend(&out, "],\"parameters\":{\"", kBinarySize,
                      "\":", output.tensor.bytes, "}}");
      binary_bytes += output.tensor.bytes;
      answer.json_bytes = 0;  // replaced below
      continue;
    }
    absl::StrAppend(&out, "],\"data\":[");
    const absl::Status status = AppendData(output.tensor, out);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("output '", output.name,
                                                      "' ", status.message()));
    }
    out += "]}";
  }
  out += "]}";
  if (!answer.json_bytes.has_value()) return answer;
  // Binary outputs follow the JSON in its order, without gaps: the client cuts
  // them by binary_data_size.
  answer.json_bytes = out.size();
  out.reserve(out.size() + binary_bytes);
  for (size_t i = 0; i < response.outputs.size(); ++i) {
    const base::TensorView& tensor = response.outputs[i].tensor;
    if (!forms.IsBinary(i) || tensor.bytes == 0) continue;
    out.append(reinterpret_cast<const char*>(tensor.data), tensor.bytes);
  }
  return answer;
}

}  // namespace refract::cpu_node
