#ifndef REFRACT_METRICS_STATUS_PAGE_H_
#define REFRACT_METRICS_STATUS_PAGE_H_

#include <vector>

#include "base/html_page.h"
#include "metrics/server.h"

namespace refract::metrics {

// page/*, built into the library.
const std::vector<base::PageFile>& StatusPageFiles();

// GET / : a page that shows the node's /status and refreshes itself. It changes
// nothing, and asks this server alone.
Route StatusPageRoute();

}  // namespace refract::metrics

#endif  // REFRACT_METRICS_STATUS_PAGE_H_
