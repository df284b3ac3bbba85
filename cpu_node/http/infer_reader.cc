#include "cpu_node/http/infer_reader.h"

#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/shorten.h"
#include "cpu_node/frontend/request_size.h"
#include "nlohmann/json.hpp"

namespace refract::cpu_node {
namespace {

using ::inference::InferParameter;
using ::inference::ModelInferRequest;

// Deepest nesting of arrays and objects. `data` needs a level for each
// dimension.
constexpr size_t kMaxLevels = kMaxDimsOfTensor + 8;

// nlohmann's text begins with "[json.exception.parse_error.101] " and quotes
// the request, whose bytes may be no text.
std::string TextOf(const nlohmann::json::exception& error) {
  const absl::string_view text = error.what();
  const size_t end = text.find("] ");
  std::string out(end == text.npos ? text : text.substr(end + 2));
  for (char& byte : out) {
    if (byte < ' ' || byte > '~') byte = '?';
  }
  return out;
}

// Receives the JSON's parts in order, as nlohmann::json::sax_parse() calls the
// methods; returning `false` ends the parse. No tree of the JSON is built:
// elements of `data` go into JsonElements, 8 bytes each, within the byte
// budget. levels_ is the stack of open objects and arrays; the top decides what
// the next part means.
class Reader {
 public:
  Reader(base::ByteBudget& memory, InferJson& out)
      : memory_(memory), out_(out) {}

  absl::Status status() const { return status_; }

  // --- nlohmann's interface, which prescribes the names.
  bool null() { return Scalar(nullptr); }
  bool boolean(bool value) {
    if (InData()) return Keep(out_.elements.back().Add(value));
    InferParameter parameter;
    parameter.set_bool_param(value);
    return Scalar(&parameter);
  }
  bool number_integer(int64_t value) {
    if (InData()) return Keep(out_.elements.back().Add(value));
    InferParameter parameter;
    parameter.set_int64_param(value);
    return Scalar(&parameter);
  }
  bool number_unsigned(uint64_t value) {
    if (value <= uint64_t{std::numeric_limits<int64_t>::max()}) {
      return number_integer(static_cast<int64_t>(value));
    }
    // No datatype of KServe has integers as large.
    if (InData()) {
      return Keep(out_.elements.back().Add(static_cast<double>(value)));
    }
    InferParameter parameter;
    parameter.set_uint64_param(value);
    return Scalar(&parameter);
  }
  bool number_float(double value, const std::string&) {
    if (InData()) return Keep(out_.elements.back().Add(value));
    InferParameter parameter;
    parameter.set_double_param(value);
    return Scalar(&parameter);
  }
  bool string(std::string& value) {
    InferParameter parameter;
    parameter.set_string_param(std::move(value));
    return Scalar(&parameter);
  }
  bool binary(nlohmann::json::binary_t&) { return false; }  // not in JSON

  // The parser does not tell sizes in advance. Each case names the fields whose
  // value may be an object; all other fields go to EnterIgnored().
  bool start_object(size_t) {
    switch (place()) {
      case Place::kStart:
        return Enter(Place::kRequest);
      case Place::kRequest:
        if (field() == Key::kParameters) {
          return EnterParameters(out_.message.mutable_parameters());
        }
        break;
      case Place::kInputs:
        if (!Count(out_.message.inputs_size(), "inputs")) return false;
        out_.message.add_inputs();
        out_.elements.emplace_back(memory_);
        return Enter(Place::kInput);
      case Place::kOutputs:
        if (!Count(out_.message.outputs_size(), "outputs")) return false;
        out_.message.add_outputs();
        return Enter(Place::kOutput);
      case Place::kInput:
        if (field() == Key::kParameters) {
          return EnterParameters(input().mutable_parameters());
        }
        break;
      case Place::kOutput:
        if (field() == Key::kParameters) {
          return EnterParameters(output().mutable_parameters());
        }
        break;
      default:
        break;
    }
    return EnterIgnored();
  }

  bool start_array(size_t) {
    switch (place()) {
      case Place::kRequest:
        if (field() == Key::kInputs) return Enter(Place::kInputs);
        if (field() == Key::kOutputs) return Enter(Place::kOutputs);
        break;
      case Place::kInput:
        if (field() == Key::kShape) return Enter(Place::kShape);
        if (field() == Key::kData) return Enter(Place::kData);
        break;
      case Place::kData:  // nested by the shape, or flat
        return Enter(Place::kData);
      default:
        break;
    }
    return EnterIgnored();
  }

  bool key(std::string& name) {
    Level& level = levels_.back();
    if (level.place == Place::kParameters) {
      parameter_ = std::move(name);
      return true;
    }
    level.key = KeyOf(level.place, name);
    if (level.key == Key::kOther) return true;
    const uint32_t bit = uint32_t{1} << static_cast<int>(level.key);
    // A second `data`, for example, would be appended to the first. Unknown
    // fields may repeat, because their values are dropped.
    if ((level.seen & bit) != 0) {
      return Fail(absl::StrCat("has '", name, "' twice"));
    }
    level.seen |= bit;
    return true;
  }

  bool end_object() { return Leave(); }
  bool end_array() { return Leave(); }

  bool parse_error(size_t, const std::string& token,
                   const nlohmann::json::exception& error) {
    // The beginnings of NaN and Infinity, which Python's json module writes.
    const bool not_finite =
        absl::EndsWith(token, "N") || absl::EndsWith(token, "I");
    status_ = absl::InvalidArgumentError(absl::StrCat(
        "the request's JSON: ", TextOf(error),
        not_finite && InData()
            ? "; JSON has no NaN and no infinity: send the tensor as bytes"
            : ""));
    return false;
  }

 private:
  // The JSON object or list that encloses the next part.
  enum class Place : uint8_t {
    kStart,
    kRequest,
    kParameters,
    kInputs,
    kInput,
    kShape,
    kData,
    kOutputs,
    kOutput,
    kIgnored,
  };
  enum class Key : uint8_t {
    kOther,
    kId,
    kParameters,
    kInputs,
    kOutputs,
    kName,
    kShape,
    kDatatype,
    kData,
  };
  struct Level {
    Place place;
    // In an object: the field whose value comes next. In an array: the field
    // whose value is the array.
    Key key = Key::kOther;
    uint32_t seen = 0;  // a bit for each Key
  };

  Place place() const {
    return levels_.empty() ? Place::kStart : levels_.back().place;
  }
  Key field() const {
    return levels_.empty() ? Key::kOther : levels_.back().key;
  }
  bool InData() const { return place() == Place::kData; }
  ModelInferRequest::InferInputTensor& input() {
    return *out_.message.mutable_inputs(out_.message.inputs_size() - 1);
  }
  ModelInferRequest::InferRequestedOutputTensor& output() {
    return *out_.message.mutable_outputs(out_.message.outputs_size() - 1);
  }

  // The key of the field `name` in objects at `place`.
  static Key KeyOf(Place place, absl::string_view name) {
    switch (place) {
      case Place::kRequest:
        if (name == "id") return Key::kId;
        if (name == "parameters") return Key::kParameters;
        if (name == "inputs") return Key::kInputs;
        if (name == "outputs") return Key::kOutputs;
        return Key::kOther;
      case Place::kInput:
        if (name == "shape") return Key::kShape;
        if (name == "datatype") return Key::kDatatype;
        if (name == "data") return Key::kData;
        [[fallthrough]];
      case Place::kOutput:
        if (name == "name") return Key::kName;
        if (name == "parameters") return Key::kParameters;
        return Key::kOther;
      default:
        return Key::kOther;
    }
  }

  static absl::string_view TypeOf(Key key) {
    switch (key) {
      case Key::kId:
        return "'id' must be a string";
      case Key::kParameters:
        return "'parameters' must be an object";
      case Key::kInputs:
        return "'inputs' must be an array of objects";
      case Key::kOutputs:
        return "'outputs' must be an array of objects";
      case Key::kName:
        return "'name' must be a string";
      case Key::kShape:
        return "'shape' must be an array of integers";
      case Key::kDatatype:
        return "'datatype' must be a string";
      case Key::kData:
        return "'data' must be an array";
      case Key::kOther:
        break;
    }
    return "has a field of the wrong type";
  }

  // Whether null may stand for the absence of the present field: serialisers
  // of typed clients write the optional fields that are not set as null.
  bool IsOptional() const {
    return (place() == Place::kRequest &&
            (field() == Key::kId || field() == Key::kOutputs)) ||
           (place() != Place::kParameters && field() == Key::kParameters);
  }

  // Takes a scalar outside of `data`; null: JSON's null.
  bool Scalar(InferParameter* value) {
    std::string* text = value != nullptr && value->has_string_param()
                            ? value->mutable_string_param()
                            : nullptr;
    if (value == nullptr && IsOptional()) return true;
    switch (place()) {
      case Place::kStart:
        return Fail("must be an object");
      case Place::kIgnored:
        return true;
      case Place::kParameters:
        if (value == nullptr) {
          return Fail(absl::StrCat("parameter '", base::Shorten(parameter_),
                                   "' is null"));
        }
        return AddParameter(*value);
      case Place::kRequest:
        if (field() == Key::kOther) return true;
        if (field() != Key::kId || text == nullptr) return WrongType();
        out_.message.set_id(std::move(*text));
        return true;
      case Place::kInput:
        if (field() == Key::kOther) return true;
        if (text != nullptr && field() == Key::kName) {
          input().set_name(std::move(*text));
          return true;
        }
        if (text != nullptr && field() == Key::kDatatype) {
          input().set_datatype(std::move(*text));
          return true;
        }
        return WrongType();
      case Place::kOutput:
        if (field() == Key::kOther) return true;
        if (field() != Key::kName || text == nullptr) return WrongType();
        output().set_name(std::move(*text));
        return true;
      case Place::kShape:
        if (value == nullptr || !value->has_int64_param()) return WrongType();
        if (static_cast<size_t>(input().shape_size()) == kMaxDimsOfTensor) {
          return Fail(absl::StrCat("'shape' has more than ", kMaxDimsOfTensor,
                                   " dimensions"));
        }
        input().add_shape(value->int64_param());
        return true;
      case Place::kInputs:
      case Place::kOutputs:
        return WrongType();
      case Place::kData:  // OnNumber() and boolean() took the scalar
        return Fail("'data' must be numbers or booleans");
    }
    return false;
  }

  bool AddParameter(InferParameter& value) {
    if (++num_parameters_ > kMaxParametersOfRequest) {
      return TooMany("parameters", kMaxParametersOfRequest);
    }
    parameter_bytes_ += parameter_.size() + value.ByteSizeLong();
    if (parameter_bytes_ > kMaxParameterBytesOfRequest) {
      return TooMany("bytes of parameters", kMaxParameterBytesOfRequest);
    }
    if (parameters_->contains(parameter_)) {
      return Fail(absl::StrCat("has parameter '", base::Shorten(parameter_),
                               "' twice"));
    }
    (*parameters_)[parameter_] = std::move(value);
    return true;
  }

  bool Enter(Place place) {
    if (levels_.size() == kMaxLevels) {
      return Fail(
          absl::StrCat("has more than ", kMaxLevels, " levels of nesting"));
    }
    // An array inherits the field, so that WrongType() can name it for an
    // element.
    levels_.push_back({place, field()});
    return true;
  }
  bool EnterParameters(google::protobuf::Map<std::string, InferParameter>* to) {
    parameters_ = to;
    return Enter(Place::kParameters);
  }
  // Enters an array or object that no known field takes.
  bool EnterIgnored() {
    const bool known = field() != Key::kOther;
    switch (place()) {
      case Place::kIgnored:
        return Enter(Place::kIgnored);
      case Place::kStart:
        return Fail("must be an object");
      case Place::kParameters:
        return Fail(absl::StrCat("parameter '", base::Shorten(parameter_),
                                 "' must be a number, a string or a boolean"));
      case Place::kRequest:
      case Place::kInput:
      case Place::kOutput:
        // Unknown fields are skipped with all that they hold; kMaxLevels bounds
        // their nesting.
        return known ? WrongType() : Enter(Place::kIgnored);
      case Place::kData:
        return Fail("'data' must be numbers or booleans");
      default:
        return WrongType();
    }
  }
  bool Leave() {
    levels_.pop_back();
    return true;
  }

  bool Count(int so_far, absl::string_view what) {
    return static_cast<size_t>(so_far) < kMaxTensorsOfRequest ||
           TooMany(what, kMaxTensorsOfRequest);
  }
  bool TooMany(absl::string_view what, size_t most) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat("the request has more than ", most, " ", what));
    return false;
  }
  bool WrongType() { return Fail(TypeOf(field())); }
  // Adds the position in the request.
  bool Fail(absl::string_view what) {
    std::string where = "the request's JSON: ";
    for (const Level& level : levels_) {
      if (level.place == Place::kInput) {
        absl::StrAppend(&where, "inputs[", out_.message.inputs_size() - 1,
                        "]: ");
      } else if (level.place == Place::kOutput) {
        absl::StrAppend(&where, "outputs[", out_.message.outputs_size() - 1,
                        "]: ");
      }
    }
    status_ = absl::InvalidArgumentError(absl::StrCat(where, what));
    return false;
  }
  bool Keep(absl::Status status) {
    if (status.ok()) return true;
    if (!absl::IsInvalidArgument(status)) {
      status_ = std::move(status);
      return false;
    }
    return Fail(status.message());
  }

  base::ByteBudget& memory_;
  InferJson& out_;
  absl::Status status_;
  std::vector<Level> levels_;
  std::string parameter_;  // parameter whose value comes next, in kParameters
  google::protobuf::Map<std::string, InferParameter>* parameters_ = nullptr;
  size_t num_parameters_ = 0;
  size_t parameter_bytes_ = 0;
};

}  // namespace

absl::Status ReadInferJson(absl::string_view json, base::ByteBudget& memory,
                           InferJson& out) {
  Reader reader(memory, out);
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader) &&
      reader.status().ok()) {
    return absl::InternalError("the JSON parser gave no reason");
  }
  return reader.status();
}

}  // namespace refract::cpu_node
