#ifndef REFRACT_PARTITIONER_REPORT_PAGE_FILES_H_
#define REFRACT_PARTITIONER_REPORT_PAGE_FILES_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace refract::partitioner {

// A piece of the report's page, built into the library.
struct SplitPageFile {
  absl::string_view name;  // "page.html"
  absl::string_view text;
};

// The files of partitioner/report/page/, by name.
const std::vector<SplitPageFile>& SplitPageFiles();

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_REPORT_PAGE_FILES_H_
