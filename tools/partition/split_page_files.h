#ifndef REFRACT_TOOLS_PARTITION_SPLIT_PAGE_FILES_H_
#define REFRACT_TOOLS_PARTITION_SPLIT_PAGE_FILES_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace refract::tools {

// A piece of the report's page, built into the library.
struct SplitPageFile {
  absl::string_view name;  // "page.html"
  absl::string_view text;
};

// Those of tools/partition/page/, by name.
const std::vector<SplitPageFile>& SplitPageFiles();

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_PARTITION_SPLIT_PAGE_FILES_H_
