// The `refract` command: see command_line.h and one *_command.cc per
// subcommand.

#include <iostream>
#include <string>
#include <vector>

#include "base/process/mutex_checks.h"
#include "runtime/torch/caller.h"
#include "tools/command_line.h"

int main(int argc, char** argv) {
  refract::base::StopMutexDeadlockChecks();
  // One thread per request, as the nodes run: numbers seen here hold there.
  refract::runtime::aten::UseOneThread();
  return refract::tools::RunCommandLine(
      std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr);
}
