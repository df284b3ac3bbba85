#include "tools/run/run_report.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/command.h"

namespace refract::tools {

RunReport::RunReport(nlohmann::ordered_json about, size_t total,
                     std::ostream& out)
    : total_(total), out_(out), json_(std::move(about)) {
  json_["requests"] = nlohmann::ordered_json::array();
}

void RunReport::Add(const Request& request) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  out_ << request.inputs << " -> " << request.outputs << ":";
  for (size_t i = 0; i < request.specs.size(); ++i) {
    const base::TensorSpec& spec = request.specs[i];
    out_ << (i == 0 ? " " : ", ") << request.names[i] << " "
         << base::DimsToString(spec.dims);
    tensors.push_back(
        {{"name", request.names[i]},
         {"dtype", std::string(base::Name(spec.dtype))},
         {"shape", std::vector<int64_t>(spec.dims.begin(), spec.dims.end())}});
  }
  nlohmann::ordered_json json = {{"inputs", request.inputs},
                                 {"outputs", request.outputs},
                                 {"tensors", std::move(tensors)},
                                 {"replaced_ids", request.replaced_ids}};
  if (request.elapsed) {
    const double ms = absl::ToDoubleMilliseconds(*request.elapsed);
    out_ << absl::StreamFormat("; %.3g ms", ms);
    json["milliseconds"] = ms;
  }
  out_ << "\n";
  if (request.replaced_ids > 0) {
    out_ << request.inputs << ": " << request.replaced_ids
         << " ids outside their tables were replaced by the id policy\n";
  }
  json_["requests"].push_back(std::move(json));
}

void RunReport::AddFailed(const Request& request, const absl::Status& status) {
  if (failed_++ == 0) first_error_ = status;
  const std::string why = OneLine(status.message());
  // The error of the only request is the command's.
  if (total_ > 1) {
    out_ << request.inputs << " -> " << request.outputs << ": failed: " << why
         << "\n";
  }
  json_["requests"].push_back({{"inputs", request.inputs},
                               {"outputs", request.outputs},
                               {"error", why}});
}

absl::Status RunReport::status() const {
  if (failed_ == 0 || total_ == 1) return first_error_;
  return absl::Status(
      first_error_.code(),
      absl::StrCat(failed_, " of ", total_,
                   " requests failed, the others are answered; the first "
                   "error: ",
                   first_error_.message()));
}

}  // namespace refract::tools
