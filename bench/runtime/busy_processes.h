#ifndef REFRACT_BENCH_RUNTIME_BUSY_PROCESSES_H_
#define REFRACT_BENCH_RUNTIME_BUSY_PROCESSES_H_

#include <sys/types.h>

#include <vector>

namespace refract::bench {

// Processes of this machine that do nothing but compute, as a neighbour of a
// server would. Stopped at first; ended with the object, and with this process.
// To be made before the program has threads.
class BusyProcesses {
 public:
  explicit BusyProcesses(int count);
  ~BusyProcesses();
  BusyProcesses(const BusyProcesses&) = delete;
  BusyProcesses& operator=(const BusyProcesses&) = delete;

  // Less than `count` when the system gave no more.
  int count() const { return static_cast<int>(children_.size()); }
  void Go();
  void Stop();

 private:
  std::vector<pid_t> children_;
};

}  // namespace refract::bench

#endif  // REFRACT_BENCH_RUNTIME_BUSY_PROCESSES_H_
