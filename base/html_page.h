#ifndef REFRACT_BASE_HTML_PAGE_H_
#define REFRACT_BASE_HTML_PAGE_H_

// Reports as one HTML page that needs no other files and no network.

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace refract::base {

// A piece of a page, built into the library (cmake/RefractComponent.cmake,
// refract_page_files).
struct PageFile {
  absl::string_view name;  // "page.html"
  absl::string_view text;
};

// "page.html" of `files`, with "{{style.css}}" replaced by that file and
// "{{data}}" by `json`, escaped for a <script> element. Inserted text is not
// searched for marks. Dies if a file is missing: the program was built wrong.
std::string FillPage(absl::Span<const PageFile> files, absl::string_view json);

}  // namespace refract::base

#endif  // REFRACT_BASE_HTML_PAGE_H_
