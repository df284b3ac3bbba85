#include "base/html_page.h"

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace refract::base {
namespace {

// For a <script> element: no name can end it or open a comment in it.
std::string ForScript(absl::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    switch (c) {
      case '<':
        text += "\\u003c";
        break;
      case '>':
        text += "\\u003e";
        break;
      case '&':
        text += "\\u0026";
        break;
      default:
        text += c;
    }
  }
  return text;
}

absl::string_view TextOf(absl::Span<const PageFile> files,
                         absl::string_view name) {
  for (const PageFile& file : files) {
    if (file.name == name) return file.text;
  }
  LOG(FATAL) << "the page has no file " << name;
  return "";
}

}  // namespace

std::string FillPage(absl::Span<const PageFile> files, absl::string_view json) {
  std::string page;
  absl::string_view rest = TextOf(files, "page.html");
  while (true) {
    const size_t open = rest.find("{{");
    const size_t close = rest.find("}}", open);
    if (open == absl::string_view::npos || close == absl::string_view::npos) {
      break;
    }
    const absl::string_view name = rest.substr(open + 2, close - open - 2);
    absl::StrAppend(
        &page, rest.substr(0, open),
        name == "data" ? ForScript(json) : std::string(TextOf(files, name)));
    rest.remove_prefix(close + 2);
  }
  absl::StrAppend(&page, rest);
  return page;
}

}  // namespace refract::base
