// Decoding trusts no number in the message: counts and sizes are checked before
// memory is allocated for them.

#include "cpu_node/frontend/codec.h"

#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "google/protobuf/text_format.h"

namespace refract::cpu_node {
namespace {

using ::inference::InferTensorContents;
using ::inference::ModelInferRequest;
using InputMessage = ModelInferRequest::InferInputTensor;

// Number of elements in all typed fields.
int64_t CountTyped(const InferTensorContents& contents) {
  return int64_t{contents.bool_contents_size()} + contents.int_contents_size() +
         contents.int64_contents_size() + contents.uint_contents_size() +
         contents.uint64_contents_size() + contents.fp32_contents_size() +
         contents.fp64_contents_size() + contents.bytes_contents_size();
}

// Copies `field` into `tensor`, element by element. InvalidArgument if a number
// does not fit: protobuf has no 8 and 16 bit fields, and wrapping would change
// values silently.
template <typename To, typename Field>
absl::Status CopyElements(const Field& field, base::Tensor& tensor) {
  absl::Span<To> out = tensor.as<To>();
  for (int i = 0; i < field.size(); ++i) {
    const auto value = field.Get(i);
    if constexpr (std::numeric_limits<To>::is_integer &&
                  sizeof(To) < sizeof(value)) {
      if (value < std::numeric_limits<To>::min() ||
          value > std::numeric_limits<To>::max()) {
        return absl::InvalidArgumentError(
            absl::StrCat("element ", i, " is ", value, ", out of range"));
      }
    }
    out[i] = static_cast<To>(value);
  }
  return absl::OkStatus();
}

// Number of elements in the field of `dtype`; nullopt for a dtype without a
// typed field.
std::optional<int64_t> CountMatching(base::DType dtype,
                                     const InferTensorContents& contents) {
  switch (dtype) {
    case base::DType::kBool:
      return contents.bool_contents_size();
    case base::DType::kInt8:
    case base::DType::kInt16:
    case base::DType::kInt32:
      return contents.int_contents_size();
    case base::DType::kInt64:
      return contents.int64_contents_size();
    case base::DType::kUInt8:
      return contents.uint_contents_size();
    case base::DType::kFloat32:
      return contents.fp32_contents_size();
    case base::DType::kFloat64:
      return contents.fp64_contents_size();
    default:
      return std::nullopt;
  }
}

absl::Status CopyTyped(const InferTensorContents& contents,
                       base::Tensor& tensor) {
  switch (tensor.dtype()) {
    case base::DType::kBool:
      return CopyElements<uint8_t>(contents.bool_contents(), tensor);
    case base::DType::kInt8:
      return CopyElements<int8_t>(contents.int_contents(), tensor);
    case base::DType::kInt16:
      return CopyElements<int16_t>(contents.int_contents(), tensor);
    case base::DType::kInt32:
      return CopyElements<int32_t>(contents.int_contents(), tensor);
    case base::DType::kInt64:
      return CopyElements<int64_t>(contents.int64_contents(), tensor);
    case base::DType::kUInt8:
      return CopyElements<uint8_t>(contents.uint_contents(), tensor);
    case base::DType::kFloat32:
      return CopyElements<float>(contents.fp32_contents(), tensor);
    case base::DType::kFloat64:
      return CopyElements<double>(contents.fp64_contents(), tensor);
    default:
      return absl::InternalError("no typed contents for this datatype");
  }
}

// Runs before any allocation: a wrong shape must not allocate more than the
// message holds.
absl::Status CheckTypedCount(const InputMessage& input, base::DType dtype,
                             int64_t wanted) {
  const int64_t total = CountTyped(input.contents());
  if (total == 0 && wanted == 0) return absl::OkStatus();
  if (total == 0) {
    return absl::InvalidArgumentError("has no contents");
  }
  const std::optional<int64_t> matching =
      CountMatching(dtype, input.contents());
  if (!matching.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "is ", input.datatype(), ", which must be given as raw contents"));
  }
  // The datatype names the only field that may have elements.
  if (*matching != total) {
    return absl::InvalidArgumentError(
        absl::StrCat("is ", input.datatype(),
                     ", but has contents in the field of another datatype"));
  }
  if (total != wanted) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has ", total, " elements of contents, its shape has ", wanted));
  }
  return absl::OkStatus();
}

// `raw` is null when the request uses typed contents.
absl::StatusOr<base::Tensor> DecodeTensor(const InputMessage& input,
                                          const std::string* raw) {
  REFRACT_ASSIGN_OR_RETURN(const base::TensorSpec spec, SpecOf(input));
  if (raw != nullptr) {
    // KServe: a request has its tensors either all raw or all typed.
    if (CountTyped(input.contents()) > 0) {
      return absl::InvalidArgumentError(
          "has typed contents, but the request also has raw_input_contents");
    }
    return TensorFromRaw(spec, *raw);
  }
  REFRACT_ASSIGN_OR_RETURN(const int64_t wanted, base::NumElements(spec.dims));
  REFRACT_RETURN_IF_ERROR(CheckTypedCount(input, spec.dtype, wanted));
  REFRACT_ASSIGN_OR_RETURN(base::Tensor tensor,
                           base::Tensor::Allocate(spec.dtype, spec.dims));
  if (wanted > 0) {
    REFRACT_RETURN_IF_ERROR(CopyTyped(input.contents(), tensor));
  }
  return tensor;
}

// Refuses parameters that would change the answer but are not supported,
// instead of ignoring them.
absl::Status CheckParameters(const ModelInferRequest& message) {
  for (const auto& [name, value] : message.parameters()) {
    const bool is_sequence = name == "sequence_id" ||
                             name == "sequence_start" || name == "sequence_end";
    if (is_sequence && (value.int64_param() != 0 || value.bool_param() ||
                        !value.string_param().empty())) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", name, "': this server has no sequences"));
    }
  }
  for (const auto& output : message.outputs()) {
    for (const char* name : {"classification", "shared_memory_region"}) {
      if (!output.parameters().contains(name)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("output '", base::Shorten(output.name()),
                       "': parameter '", name, "' is not supported"));
    }
  }
  return absl::OkStatus();
}

// A parameter that is an integer ≥ 0; 0 where the request does not have it.
absl::StatusOr<int64_t> Count(const ModelInferRequest& message,
                              const char* name, absl::string_view unit) {
  const auto found = message.parameters().find(name);
  if (found == message.parameters().end()) return 0;
  const inference::InferParameter& parameter = found->second;
  std::optional<int64_t> count;
  if (parameter.has_int64_param()) count = parameter.int64_param();
  if (parameter.has_uint64_param() &&
      // Larger values do not fit into int64.
      parameter.uint64_param() <= uint64_t{INT64_MAX}) {
    count = static_cast<int64_t>(parameter.uint64_param());
  }
  if (!count.has_value() || *count < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", name, "' must be an integer ≥ 0", unit));
  }
  return *count;
}

absl::StatusOr<absl::Time> DeadlineOf(const ModelInferRequest& message,
                                      absl::Time now) {
  REFRACT_ASSIGN_OR_RETURN(const int64_t timeout_us,
                           Count(message, "timeout", ", in microseconds"));
  // Triton's meaning of 0: no timeout.
  if (timeout_us == 0) return absl::InfiniteFuture();
  return now + absl::Microseconds(timeout_us);
}

void Set(const ModelStatistics::Sum& sum,
         inference::StatisticDuration* message) {
  message->set_count(sum.count);
  message->set_ns(sum.ns);
}

void EncodeTensorMetadata(
    const TensorInfo& tensor,
    inference::ModelMetadataResponse::TensorMetadata* message) {
  message->set_name(tensor.name);
  message->set_datatype(std::string(base::KServeName(tensor.dtype)));
  for (const int64_t dim : tensor.dims) message->add_shape(dim);
}

}  // namespace

absl::StatusOr<base::TensorSpec> SpecOf(const InputMessage& input) {
  if (input.parameters().contains("shared_memory_region")) {
    return absl::InvalidArgumentError(
        "is in shared memory, which this server does not support");
  }
  const std::optional<base::DType> dtype =
      base::DTypeFromKServeName(input.datatype());
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("has datatype '", base::Shorten(input.datatype()),
                     "', which is not supported"));
  }
  base::TensorSpec spec{*dtype, {input.shape().begin(), input.shape().end()}};
  const absl::StatusOr<size_t> bytes = base::ByteSize(spec.dtype, spec.dims);
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("has a bad shape: ", bytes.status().message()));
  }
  return spec;
}

absl::StatusOr<base::Tensor> TensorFromRaw(const base::TensorSpec& spec,
                                           absl::string_view raw) {
  REFRACT_ASSIGN_OR_RETURN(const size_t bytes,
                           base::ByteSize(spec.dtype, spec.dims));
  if (raw.size() != bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has ", raw.size(), " raw bytes, ", base::KServeName(spec.dtype),
        base::DimsToString(spec.dims), " needs ", bytes));
  }
  REFRACT_ASSIGN_OR_RETURN(base::Tensor tensor,
                           base::Tensor::Allocate(spec.dtype, spec.dims));
  if (bytes > 0) std::memcpy(tensor.data(), raw.data(), bytes);
  if (spec.dtype == base::DType::kBool) {
    // Kernels rely on 0 and 1 as the only values.
    for (const uint8_t value : tensor.as<uint8_t>()) {
      if (value <= 1) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("is BOOL, but holds the byte ", int{value}));
    }
  }
  return tensor;
}

absl::StatusOr<InferRequest> DecodeRequest(const ModelInferRequest& message,
                                           absl::Time now) {
  const int raw_count = message.raw_input_contents_size();
  // Raw contents belong to the inputs by position.
  if (raw_count > message.inputs_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("raw_input_contents has ", raw_count, " elements for ",
                     message.inputs_size(), " inputs"));
  }
  return DecodeRequest(
      message, now, [&](int i) -> absl::StatusOr<base::Tensor> {
        if (raw_count > 0 && i >= raw_count) {
          return absl::InvalidArgumentError(absl::StrCat(
              "has no element in raw_input_contents, which has ", raw_count,
              " for ", message.inputs_size(), " inputs"));
        }
        return DecodeTensor(
            message.inputs(i),
            raw_count > 0 ? &message.raw_input_contents(i) : nullptr);
      });
}

absl::StatusOr<InferRequest> DecodeRequest(
    const ModelInferRequest& message, absl::Time now,
    absl::FunctionRef<absl::StatusOr<base::Tensor>(int input)> tensor_of) {
  InferRequest request;
  request.model_name = message.model_name();
  request.model_version = message.model_version();
  request.id = message.id().substr(0, InferRequest::kMaxIdBytes);
  REFRACT_RETURN_IF_ERROR(CheckParameters(message));
  REFRACT_ASSIGN_OR_RETURN(request.deadline, DeadlineOf(message, now));
  REFRACT_ASSIGN_OR_RETURN(request.priority, Count(message, "priority", ""));
  request.inputs.reserve(static_cast<size_t>(message.inputs_size()));
  for (int i = 0; i < message.inputs_size(); ++i) {
    const InputMessage& input = message.inputs(i);
    absl::StatusOr<base::Tensor> tensor = tensor_of(i);
    if (!tensor.ok()) {
      return absl::Status(tensor.status().code(),
                          absl::StrCat("input '", base::Shorten(input.name()),
                                       "' ", tensor.status().message()));
    }
    request.inputs.push_back({input.name(), *std::move(tensor)});
  }
  request.outputs.reserve(static_cast<size_t>(message.outputs_size()));
  for (const auto& output : message.outputs()) {
    request.outputs.push_back(output.name());
  }
  return request;
}

void EncodeResponse(const InferResponse& response,
                    inference::ModelInferResponse& message) {
  message.set_model_name(std::string(response.model_name));
  message.set_model_version(absl::StrCat(response.model_version));
  ForEachParameter(response, [&message](const char* name, auto value) {
    auto& parameter = (*message.mutable_parameters())[name];
    if constexpr (std::is_same_v<decltype(value), bool>) {
      parameter.set_bool_param(value);
    } else {
      parameter.set_int64_param(value);
    }
  });
  for (const InferResponse::Output& output : response.outputs) {
    auto* tensor = message.add_outputs();
    tensor->set_name(std::string(output.name));
    tensor->set_datatype(std::string(base::KServeName(output.tensor.dtype)));
    for (const int64_t dim : output.tensor.dims) tensor->add_shape(dim);
    // The only copy of an output on the way to the client.
    message.add_raw_output_contents(output.tensor.data, output.tensor.bytes);
  }
}

void EncodeMetadata(const ServedModel& model,
                    const std::vector<std::string>& versions,
                    inference::ModelMetadataResponse& message) {
  message.set_name(model.name());
  message.set_platform("refract");
  for (const std::string& version : versions) message.add_versions(version);
  for (const TensorInfo& input : model.interface().inputs()) {
    EncodeTensorMetadata(input, message.add_inputs());
  }
  for (const TensorInfo& output : model.interface().outputs()) {
    EncodeTensorMetadata(output, message.add_outputs());
  }
}

absl::Status EncodeConfig(const ServedModel& model,
                          inference::ModelConfig& message) {
  if (!google::protobuf::TextFormat::ParseFromString(model.model().config_text,
                                                     &message)) {
    return absl::InternalError(absl::StrCat("model '", model.name(),
                                            "': config.pbtxt does not parse"));
  }
  return absl::OkStatus();
}

void EncodeStatistics(const ServedModel& model,
                      inference::ModelStatistics& message) {
  const ModelStatistics::Snapshot sums = model.statistics().snapshot();
  message.set_name(model.name());
  message.set_version(absl::StrCat(model.version()));
  message.set_last_inference(absl::ToUnixMillis(sums.last));
  message.set_inference_count(sums.rows);
  message.set_execution_count(sums.executions);
  inference::InferStatistics* stats = message.mutable_inference_stats();
  Set(sums.success, stats->mutable_success());
  Set(sums.fail, stats->mutable_fail());
  Set(sums.queue, stats->mutable_queue());
  Set(sums.compute_input, stats->mutable_compute_input());
  Set(sums.compute_infer, stats->mutable_compute_infer());
  Set(sums.compute_output, stats->mutable_compute_output());
  Set({}, stats->mutable_cache_hit());
  Set({}, stats->mutable_cache_miss());
}

}  // namespace refract::cpu_node
