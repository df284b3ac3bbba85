#include "tools/loadgen/arrivals/trace.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace refract::loadgen {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFormat = 1;
constexpr int64_t kMaxTracedItems = int64_t{1} << 20;
constexpr double kMaxSeconds = 1e9;

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(what);
}

// The member `key` if it is an integer from `least` to `most`.
std::optional<int64_t> Integer(const Json& object, const char* key,
                               int64_t least, int64_t most) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_integer()) return std::nullopt;
  // Numbers above INT64_MAX are unsigned in nlohmann::json; get<int64_t>()
  // would wrap.
  if (it->is_number_unsigned() &&
      it->get<uint64_t>() > static_cast<uint64_t>(most)) {
    return std::nullopt;
  }
  const int64_t value = it->get<int64_t>();
  if (value < least || value > most) return std::nullopt;
  return value;
}

std::string Text(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || !it->is_string() ? "" : it->get<std::string>();
}

absl::StatusOr<base::Tensor> TensorOf(const Json& json,
                                      const ServedInput& input) {
  const std::string datatype = Text(json, "datatype");
  if (base::DTypeFromKServeName(datatype) != input.dtype) {
    return Wrong(absl::StrCat("datatype '", datatype, "', the model's is ",
                              base::KServeName(input.dtype)));
  }
  const auto shape = json.find("shape");
  if (shape == json.end() || !shape->is_array()) return Wrong("has no shape");
  base::Dims dims;
  for (const Json& dim : *shape) {
    if (!dim.is_number_unsigned() ||
        dim.get<uint64_t>() > static_cast<uint64_t>(INT32_MAX)) {
      return Wrong(
          absl::StrCat("shape ", base::FormatJson(*shape), " is none"));
    }
    dims.push_back(dim.get<int64_t>());
  }
  std::string bytes;
  if (!absl::Base64Unescape(Text(json, "data"), &bytes)) {
    return Wrong("data is no base64");
  }
  REFRACT_ASSIGN_OR_RETURN(base::Tensor tensor,
                           base::Tensor::Allocate(input.dtype, dims));
  if (tensor.bytes() != bytes.size()) {
    return Wrong(absl::StrCat("data has ", bytes.size(),
                              " bytes, its shape wants ", tensor.bytes()));
  }
  if (!bytes.empty()) std::memcpy(tensor.data(), bytes.data(), bytes.size());
  return tensor;
}

absl::StatusOr<std::vector<base::Tensor>> TensorsOf(const Json& inputs,
                                                    const ServedModel& model) {
  if (!inputs.is_array()) return Wrong("inputs is no list");
  std::vector<base::Tensor> tensors;
  // In the order of the model's inputs, which Target::Prepare() expects,
  // whatever the order in the file.
  for (const ServedInput& input : model.inputs) {
    const Json* found = nullptr;
    for (const Json& one : inputs) {
      if (!one.is_object()) return Wrong("inputs holds something else");
      if (Text(one, "name") == input.name) found = &one;
    }
    if (found == nullptr) {
      return Wrong(absl::StrCat("input ", input.name, " is missing"));
    }
    absl::StatusOr<base::Tensor> tensor = TensorOf(*found, input);
    if (!tensor.ok()) {
      return base::Annotate(tensor.status(),
                            absl::StrCat("input ", input.name));
    }
    tensors.push_back(*std::move(tensor));
  }
  // After the loop, which says which input is missing: here there are inputs
  // that the model does not have, or one twice.
  if (inputs.size() != model.inputs.size()) {
    return Wrong(absl::StrCat(inputs.size(), " inputs, the model has ",
                              model.inputs.size()));
  }
  return tensors;
}

// Reads one line after the other.
class TraceReader {
 public:
  explicit TraceReader(const ServedModel& model) : model_(model) {}

  // The request of a line; none where the line is a header or of another model.
  absl::StatusOr<std::optional<TracedQuery>> Read(const std::string& line);

 private:
  const ServedModel& model_;
  bool first_line_ = true;
  double begin_s_ = -1;  // of the first request; negative before it
  double last_s_ = 0;
};

absl::StatusOr<std::optional<TracedQuery>> TraceReader::Read(
    const std::string& line) {
  Json json;
  try {
    json = Json::parse(line);
  } catch (const Json::parse_error& error) {
    return Wrong(absl::StrCat("position ", error.byte, ": not JSON"));
  } catch (const Json::out_of_range&) {
    return Wrong("a number is beyond 1.8e308");
  }
  if (!json.is_object()) return Wrong("not a JSON object");
  // The header is optional, and only the first line can be one.
  if (std::exchange(first_line_, false) && json.contains("refract_trace")) {
    if (!Integer(json, "refract_trace", kFormat, kFormat)) {
      return Wrong(absl::StrCat("refract_trace is ",
                                base::FormatJson(json["refract_trace"]),
                                ", this program reads ", kFormat));
    }
    return std::nullopt;
  }
  const auto at = json.find("at_s");
  if (at == json.end() || !at->is_number() || !(at->get<double>() >= 0) ||
      !(at->get<double>() < kMaxSeconds)) {
    return Wrong("at_s is no number of seconds >= 0");
  }
  const double at_s = at->get<double>();
  if (at_s < last_s_) return Wrong("at_s is below that of an earlier line");
  last_s_ = at_s;
  if (const std::string name = Text(json, "model");
      !name.empty() && name != model_.name) {
    return std::nullopt;
  }
  // Times count from the first request to this model, so that a run does not
  // begin with a pause for requests to other models.
  if (begin_s_ < 0) begin_s_ = at_s;
  TracedQuery query{.at = absl::Seconds(at_s - begin_s_)};
  const auto inputs = json.find("inputs");
  if (inputs != json.end()) {
    REFRACT_ASSIGN_OR_RETURN(query.tensors, TensorsOf(*inputs, model_));
  }
  if (json.contains("items") || query.tensors.empty()) {
    const auto items = Integer(json, "items", 1, kMaxTracedItems);
    if (!items) {
      return Wrong(
          absl::StrCat("items is no whole number from 1 to ", kMaxTracedItems));
    }
    query.items = *items;
  } else {
    query.items = ItemsOf(model_, query.tensors);
  }
  return query;
}

}  // namespace

absl::Status ReadTrace(
    const std::string& path, const ServedModel& model,
    const std::function<absl::Status(TracedQuery query)>& take) {
  const std::string what = absl::StrCat("--arrivals: ", path);
  std::ifstream file(path);
  if (!file) return Wrong(absl::StrCat(what, ": cannot be opened"));
  TraceReader reader(model);
  bool any = false;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::StatusOr<std::optional<TracedQuery>> query = reader.Read(line);
    if (!query.ok()) {
      return base::Annotate(query.status(), absl::StrCat(what, ":", number));
    }
    if (!query->has_value()) continue;
    any = true;
    REFRACT_RETURN_IF_ERROR(take(**std::move(query)));
  }
  if (file.bad() || !any) {
    return Wrong(absl::StrCat(what, ": has no request to model ", model.name));
  }
  return absl::OkStatus();
}

}  // namespace refract::loadgen
