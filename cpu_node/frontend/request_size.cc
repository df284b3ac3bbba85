#include "cpu_node/frontend/request_size.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "proto/inference/grpc_service.pb.h"

namespace refract::cpu_node {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using ::inference::InferTensorContents;
using ::inference::ModelInferRequest;
using Input = ModelInferRequest::InferInputTensor;
using Output = ModelInferRequest::InferRequestedOutputTensor;

// Upper bound of a decoded submessage or string without its bytes.
constexpr size_t kObjectBytes = 320;
// InferTensorContents has eight repeated fields, and Protobuf makes room for at
// least four elements in each field that has one.
constexpr size_t kContentsBytes = 2 * kObjectBytes;

// Encoding of an element in the message.
enum class Encoding { kVarint, kFixed32, kFixed64 };

absl::Status TooMany(absl::string_view what, size_t most) {
  return absl::InvalidArgumentError(
      absl::StrCat("the request has more than ", most, " ", what));
}

// Reads a ModelInferRequest field by field without decoding it: counts what
// decoding would allocate, and refuses counts and lengths above the limits.
// Only then does the front end take memory for the request and parse it.
class Walk {
 public:
  Walk(google::protobuf::io::ZeroCopyInputStream& bytes, size_t max_bytes,
       RequestSize& size, absl::FunctionRef<absl::Status()> named)
      : in_(&bytes), max_bytes_(max_bytes), size_(size), named_(named) {
    // One byte above the limit tells a message of exactly the limit from a
    // longer one. SetTotalBytesLimit() is unsuitable: it writes to stderr.
    in_.PushLimit(static_cast<int>(max_bytes) + 1);
  }

  absl::Status Request() {
    REFRACT_RETURN_IF_ERROR(Fields([this](int field, int type) -> absl::Status {
      // Protobuf writes fields by number, so model and version usually precede
      // the inputs. Named() runs before long fields are read; a client that
      // writes another order is judged by what came so far.
      if (field >= ModelInferRequest::kInputsFieldNumber) {
        REFRACT_RETURN_IF_ERROR(Named());
      }
      switch (field) {
        case ModelInferRequest::kModelNameFieldNumber:
          return Text(type, &size_.model_name);
        case ModelInferRequest::kModelVersionFieldNumber:
          return Text(type, &size_.model_version);
        case ModelInferRequest::kIdFieldNumber:
          return Text(type, nullptr);
        case ModelInferRequest::kParametersFieldNumber:
          return Parameter(type);
        case ModelInferRequest::kInputsFieldNumber:
          REFRACT_RETURN_IF_ERROR(Count(inputs_, "inputs"));
          return Nested(type, [this] { return InputTensor(); });
        case ModelInferRequest::kOutputsFieldNumber:
          REFRACT_RETURN_IF_ERROR(Count(outputs_, "outputs"));
          return Nested(type, [this] { return OutputTensor(); });
        case ModelInferRequest::kRawInputContentsFieldNumber:
          REFRACT_RETURN_IF_ERROR(Count(raw_, "raw_input_contents"));
          return Raw(type);
        default:
          return Unknown(type);
      }
    }));
    REFRACT_RETURN_IF_ERROR(Named());
    size_.message_bytes = Position();
    if (size_.message_bytes > max_bytes_) return TooLong();
    // Repeated fields double their capacity as they grow.
    size_.decoded_bytes =
        size_.message_bytes + 2 * typed_bytes_ + 2 * sizeof(int64_t) * dims_ +
        kContentsBytes * contents_ +
        kObjectBytes *
            (1 + inputs_ + outputs_ + raw_ + parameters_ + unknown_ + strings_);
    size_.tensor_bytes = raw_bytes_ + typed_bytes_;
    return absl::OkStatus();
  }

 private:
  absl::Status Named() {
    if (std::exchange(is_named_, true)) return absl::OkStatus();
    return named_();
  }

  // Calls `field(number, wire type)` for each field up to the current limit.
  template <typename Field>
  absl::Status Fields(const Field& field) {
    while (true) {
      const uint32_t tag = in_.ReadTag();
      if (tag == 0) break;
      REFRACT_RETURN_IF_ERROR(field(WireFormatLite::GetTagFieldNumber(tag),
                                    WireFormatLite::GetTagWireType(tag)));
    }
    if (!in_.ConsumedEntireMessage()) return Broken();
    return absl::OkStatus();
  }

  // Reads a submessage by `contents`.
  template <typename Contents>
  absl::Status Nested(int type, const Contents& contents) {
    uint32_t bytes = 0;
    REFRACT_RETURN_IF_ERROR(Length(type, &bytes));
    const auto limit = in_.PushLimit(static_cast<int>(bytes));
    REFRACT_RETURN_IF_ERROR(contents());
    // A truncated message ends its fields early, too.
    if (in_.BytesUntilLimit() != 0) return Broken();
    in_.PopLimit(limit);
    return absl::OkStatus();
  }

  absl::Status InputTensor() {
    size_t dims = 0;
    return Fields([this, &dims](int field, int type) -> absl::Status {
      switch (field) {
        case Input::kNameFieldNumber:
        case Input::kDatatypeFieldNumber:
          return Text(type, nullptr);
        case Input::kShapeFieldNumber: {
          const size_t before = dims;
          REFRACT_RETURN_IF_ERROR(Elements(type, Encoding::kVarint, &dims));
          dims_ += dims - before;
          if (dims <= kMaxDimsOfTensor) return absl::OkStatus();
          return absl::InvalidArgumentError(
              absl::StrCat("an input has a shape of ", dims,
                           " dimensions, at most ", kMaxDimsOfTensor));
        }
        case Input::kParametersFieldNumber:
          return Parameter(type);
        case Input::kContentsFieldNumber:
          ++contents_;
          return Nested(type, [this] { return Contents(); });
        default:
          return Unknown(type);
      }
    });
  }

  absl::Status OutputTensor() {
    return Fields([this](int field, int type) {
      switch (field) {
        case Output::kNameFieldNumber:
          return Text(type, nullptr);
        case Output::kParametersFieldNumber:
          return Parameter(type);
        default:
          return Unknown(type);
      }
    });
  }

  absl::Status Contents() {
    return Fields([this](int field, int type) {
      switch (field) {
        case InferTensorContents::kBoolContentsFieldNumber:
          return Typed(type, Encoding::kVarint, 1);
        case InferTensorContents::kIntContentsFieldNumber:
        case InferTensorContents::kUintContentsFieldNumber:
          return Typed(type, Encoding::kVarint, 4);
        case InferTensorContents::kInt64ContentsFieldNumber:
        case InferTensorContents::kUint64ContentsFieldNumber:
          return Typed(type, Encoding::kVarint, 8);
        case InferTensorContents::kFp32ContentsFieldNumber:
          return Typed(type, Encoding::kFixed32, 4);
        case InferTensorContents::kFp64ContentsFieldNumber:
          return Typed(type, Encoding::kFixed64, 8);
        case InferTensorContents::kBytesContentsFieldNumber:
          REFRACT_RETURN_IF_ERROR(Count(strings_, "bytes_contents"));
          return Text(type, nullptr);
        default:
          return Unknown(type);
      }
    });
  }

  // Counts elements of `bytes_each` once decoded.
  absl::Status Typed(int type, Encoding encoding, size_t bytes_each) {
    size_t count = 0;
    REFRACT_RETURN_IF_ERROR(Elements(type, encoding, &count));
    typed_bytes_ += count * bytes_each;
    return absl::OkStatus();
  }

  // Adds the elements of a repeated field, packed or one by one, to `count`.
  absl::Status Elements(int type, Encoding encoding, size_t* count) {
    if (type != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      ++*count;
      return Skip(type);
    }
    uint32_t bytes = 0;
    REFRACT_RETURN_IF_ERROR(Length(type, &bytes));
    if (encoding != Encoding::kVarint) {
      *count += bytes / (encoding == Encoding::kFixed32 ? 4 : 8);
      return SkipBytes(bytes);
    }
    // Only the last byte of a varint is below 128.
    while (bytes > 0) {
      const void* data = nullptr;
      int size = 0;
      if (!in_.GetDirectBufferPointer(&data, &size)) return Broken();
      const auto part = std::min(bytes, static_cast<uint32_t>(size));
      const auto* const begin = static_cast<const uint8_t*>(data);
      *count += static_cast<size_t>(std::count_if(
          begin, begin + part, [](uint8_t byte) { return byte < 128; }));
      REFRACT_RETURN_IF_ERROR(SkipBytes(part));
      bytes -= part;
    }
    return absl::OkStatus();
  }

  absl::Status Text(int type, std::string* text) {
    uint32_t bytes = 0;
    REFRACT_RETURN_IF_ERROR(Length(type, &bytes));
    if (text == nullptr) return SkipBytes(bytes);
    const auto kept = std::min(bytes, uint32_t{base::kMaxNameTextBytes});
    if (!in_.ReadString(text, static_cast<int>(kept))) return Broken();
    return SkipBytes(bytes - kept);
  }

  absl::Status Raw(int type) {
    uint32_t bytes = 0;
    REFRACT_RETURN_IF_ERROR(Length(type, &bytes));
    raw_bytes_ += bytes;
    return SkipBytes(bytes);
  }

  // Skipped: the message's bytes bound the content of a parameter.
  absl::Status Parameter(int type) {
    if (++parameters_ > kMaxParametersOfRequest) {
      return TooMany("parameters", kMaxParametersOfRequest);
    }
    uint32_t bytes = 0;
    REFRACT_RETURN_IF_ERROR(Length(type, &bytes));
    parameter_bytes_ += bytes;
    if (parameter_bytes_ > kMaxParameterBytesOfRequest) {
      return TooMany("bytes of parameters", kMaxParameterBytesOfRequest);
    }
    return SkipBytes(bytes);
  }

  absl::Status Unknown(int type) {
    if (++unknown_ > kMaxUnknownFields) {
      return TooMany("unknown fields", kMaxUnknownFields);
    }
    return Skip(type);
  }

  static absl::Status Count(size_t& count, absl::string_view what) {
    return ++count <= kMaxTensorsOfRequest
               ? absl::OkStatus()
               : TooMany(what, kMaxTensorsOfRequest);
  }

  absl::Status Skip(int type) {
    uint64_t varint = 0;
    uint32_t bytes = 0;
    switch (type) {
      case WireFormatLite::WIRETYPE_VARINT:
        return in_.ReadVarint64(&varint) ? absl::OkStatus() : Broken();
      case WireFormatLite::WIRETYPE_FIXED32:
        return SkipBytes(4);
      case WireFormatLite::WIRETYPE_FIXED64:
        return SkipBytes(8);
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
        REFRACT_RETURN_IF_ERROR(Length(type, &bytes));
        return SkipBytes(bytes);
      default:  // groups, which nest without end; KServe has none
        return Broken();
    }
  }

  absl::Status Length(int type, uint32_t* bytes) {
    const bool right = type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if (!right || !in_.ReadVarint32(bytes)) return Broken();
    if (*bytes > max_bytes_) return TooLong();
    return absl::OkStatus();
  }
  absl::Status SkipBytes(size_t bytes) {
    return in_.Skip(static_cast<int>(bytes)) ? absl::OkStatus() : Broken();
  }

  size_t Position() const { return static_cast<size_t>(in_.CurrentPosition()); }
  absl::Status Broken() const {
    if (Position() > max_bytes_) return TooLong();
    return absl::InvalidArgumentError(
        "the request is not a ModelInferRequest of KServe v2");
  }
  absl::Status TooLong() const {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the request is longer than ", max_bytes_, " bytes once decompressed"));
  }

  google::protobuf::io::CodedInputStream in_;
  const size_t max_bytes_;
  RequestSize& size_;
  const absl::FunctionRef<absl::Status()> named_;
  bool is_named_ = false;
  size_t inputs_ = 0;
  size_t contents_ = 0;  // of all inputs
  size_t outputs_ = 0;
  size_t raw_ = 0;
  size_t strings_ = 0;
  size_t dims_ = 0;  // of all inputs
  size_t parameters_ = 0;
  size_t parameter_bytes_ = 0;
  size_t unknown_ = 0;
  size_t raw_bytes_ = 0;
  size_t typed_bytes_ = 0;
};

}  // namespace

absl::Status MeasureRequest(google::protobuf::io::ZeroCopyInputStream& bytes,
                            size_t max_bytes, RequestSize& size,
                            absl::FunctionRef<absl::Status()> named) {
  return Walk(bytes, max_bytes, size, named).Request();
}

}  // namespace refract::cpu_node
