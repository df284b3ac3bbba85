#ifndef REFRACT_PARTITIONER_REPORT_PAGE_FILES_H_
#define REFRACT_PARTITIONER_REPORT_PAGE_FILES_H_

#include <vector>

#include "base/html_page.h"

namespace refract::partitioner {

// The files of partitioner/report/page/, by name.
const std::vector<base::PageFile>& SplitPageFiles();

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_REPORT_PAGE_FILES_H_
