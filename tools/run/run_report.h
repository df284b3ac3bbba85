#ifndef REFRACT_TOOLS_RUN_RUN_REPORT_H_
#define REFRACT_TOOLS_RUN_RUN_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/tensor.h"
#include "nlohmann/json.hpp"

namespace refract::tools {

// Report of `refract run` on each request: a line of text, and JSON.
class RunReport {
 public:
  struct Request {
    std::string inputs;  // the two files
    std::string outputs;
    std::vector<std::string> names;  // of the outputs
    std::vector<base::TensorSpec> specs;
    std::optional<absl::Duration> elapsed;  // of the model, if it was measured
    int64_t replaced_ids = 0;
  };

  // `about`: the first fields of the JSON. `total`: requests. `out` must
  // outlive this object.
  RunReport(nlohmann::ordered_json about, size_t total, std::ostream& out);

  void Add(const Request& request);
  // Adds a request that failed, with its files only.
  void AddFailed(const Request& request, const absl::Status& status);

  // OK if all requests succeeded, else the first error and how many failed.
  absl::Status status() const;
  const nlohmann::ordered_json& json() const { return json_; }

 private:
  const size_t total_;
  std::ostream& out_;
  nlohmann::ordered_json json_;
  size_t failed_ = 0;
  absl::Status first_error_;
};

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_RUN_RUN_REPORT_H_
