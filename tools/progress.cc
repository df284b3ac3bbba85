#include "tools/progress.h"

#include <unistd.h>

namespace refract::tools {
namespace {

constexpr char kWipe[] = "\r\033[K";

}  // namespace

Progress::Progress(std::ostream& err)
    : err_(err), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (terminal_) err_ << kWipe << std::flush;
}

void Progress::Show(const std::string& text) {
  if (terminal_) err_ << kWipe << text << std::flush;
}

}  // namespace refract::tools
