// `refract bench transport` as a program of its own. It loads no LibTorch, so
// it starts at once on small machines, such as the one of tests/rdma_vm.

#include <iostream>

#include "CLI/CLI.hpp"
#include "base/process/mutex_checks.h"
#include "tools/command.h"

int main(int argc, char** argv) {
  refract::base::StopMutexDeadlockChecks();
  using refract::tools::kExitBadInput;
  std::ostream text(std::cout.rdbuf());  // --json - gives it that of stderr
  refract::tools::Context context{.out = text,
                                  .err = std::cerr,
                                  .json = std::cout,
                                  .action = nullptr};
  CLI::App app("Measures Refract's transport.", "bench_transport");
  app.option_defaults()->always_capture_default();
  app.require_subcommand(1);
  refract::tools::AddBenchTransportCommand(app, context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int exit_status = app.exit(error, std::cout, std::cerr);
    return exit_status == 0 ? 0 : kExitBadInput;
  }
  const absl::Status status = context.action();
  if (status.ok()) return 0;
  std::cerr << "bench_transport: "
            << refract::tools::OneLine(std::string(status.message())) << "\n";
  return refract::tools::ExitStatusOf(status);
}
