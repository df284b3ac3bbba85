#ifndef REFRACT_TOOLS_PROGRESS_H_
#define REFRACT_TOOLS_PROGRESS_H_

#include <ostream>
#include <string>

namespace refract::tools {

// Shows progress in one line of a terminal, replaced by the next line and wiped
// at the end. Prints nothing if standard error is no terminal.
class Progress {
 public:
  explicit Progress(std::ostream& err);
  ~Progress();
  void Show(const std::string& text);

 private:
  std::ostream& err_;
  const bool terminal_;
};

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_PROGRESS_H_
