#ifndef REFRACT_BASE_HTML_PAGE_H_
#define REFRACT_BASE_HTML_PAGE_H_

// Reports as one HTML page that needs neither other files nor a network.

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

// "page.html" of `files`, in which "{{style.css}}" stands for that file and
// "{{data}}" for `json`, escaped for a <script> element. Inserted text is not
// searched for marks. Dies when a file is missing: the program was built wrong.
std::string FillPage(absl::Span<const PageFile> files, absl::string_view json);

}  // namespace refract::base

#endif  // REFRACT_BASE_HTML_PAGE_H_
