#ifndef REFRACT_PLACEMENT_REPORT_PAGE_FILES_H_
#define REFRACT_PLACEMENT_REPORT_PAGE_FILES_H_

#include <vector>

#include "base/html_page.h"

namespace refract::placement {

// The files of placement/report/page/, by name.
const std::vector<base::PageFile>& PlanPageFiles();

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_REPORT_PAGE_FILES_H_
