// The `refract` command: see command_line.h and one *_command.cc per
// subcommand.

#include <iostream>
#include <string>
#include <vector>

#include "base/process/exit_now.h"
#include "base/process/mutex_checks.h"
#include "runtime/torch/caller.h"
#include "tools/command_line.h"

int main(int argc, char** argv) {
  refract::base::StopMutexDeadlockChecks();
  // One thread per request, as the nodes run: numbers seen here hold there.
  refract::runtime::aten::UseOneThread();
  const int status = refract::tools::RunCommandLine(
      std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr);
  std::cout.flush();
  std::cerr.flush();
  refract::base::ExitNow(status);
}
