#ifndef REFRACT_TOOLS_BENCH_SERVING_SERVING_PAGE_H_
#define REFRACT_TOOLS_BENCH_SERVING_SERVING_PAGE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/html_page.h"

namespace refract::tools {

// page/*, built into the library.
const std::vector<base::PageFile>& ServingPageFiles();

// A run of `refract bench serving`.
struct NamedReport {
  std::string path;  // its file name is shown
  std::string json;  // of ServingJson()
};

// One HTML page with the figures, the latencies by percentile and the time line
// of one run, or of two side by side. InvalidArgument names the path of JSON
// that is no such report.
absl::StatusOr<std::string> ServingPage(
    const std::vector<NamedReport>& reports);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_BENCH_SERVING_SERVING_PAGE_H_
