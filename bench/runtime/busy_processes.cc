#include "bench/runtime/busy_processes.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "bench/runtime/peak.h"
#include "runtime/cpu/dense/tile.h"

namespace refract::bench {

BusyProcesses::BusyProcesses(int count) {
  const pid_t parent = getpid();
  for (int i = 0; i < count; ++i) {
    const pid_t child = fork();
    if (child < 0) return;
    if (child == 0) {
      // The child ends if the parent is killed.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(0);
      raise(SIGSTOP);
      for (;;) RunFmaLoop(1e7, runtime::cpu::ChosenTileSet().name);
    }
    // The child stops itself before anything is timed.
    int status = 0;
    waitpid(child, &status, WUNTRACED);
    children_.push_back(child);
  }
}

BusyProcesses::~BusyProcesses() {
  for (const pid_t child : children_) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
}

void BusyProcesses::Go() {
  for (const pid_t child : children_) kill(child, SIGCONT);
}

void BusyProcesses::Stop() {
  for (const pid_t child : children_) {
    kill(child, SIGSTOP);
    // The child may be in the middle of its share of a processor.
    int status = 0;
    waitpid(child, &status, WUNTRACED);
  }
}

}  // namespace refract::bench
