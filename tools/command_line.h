#ifndef REFRACT_TOOLS_COMMAND_LINE_H_
#define REFRACT_TOOLS_COMMAND_LINE_H_

#include <ostream>
#include <string>
#include <vector>

namespace refract::tools {

// Parses and runs one `refract` command line; `arguments` without the program's
// name. Results go to `out`; an error is one line on `err`. Returns the exit
// status: 0 ok, 2 bad usage or bad input, 1 failure.
int RunCommandLine(const std::vector<std::string>& arguments, std::ostream& out,
                   std::ostream& err);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_COMMAND_LINE_H_
