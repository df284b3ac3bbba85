#ifndef REFRACT_BENCH_RUNTIME_BUSY_PROCESSES_H_
#define REFRACT_BENCH_RUNTIME_BUSY_PROCESSES_H_

#include <sys/types.h>

#include <vector>

namespace refract::bench {

// Processes on this machine that only compute, like a server's neighbours.
// Stopped at first; they end with the object, and with this process. Must be
// created before the program has threads.
class BusyProcesses {
 public:
  explicit BusyProcesses(int count);
  ~BusyProcesses();
  BusyProcesses(const BusyProcesses&) = delete;
  BusyProcesses& operator=(const BusyProcesses&) = delete;

  // Less than `count` if the system allowed no more.
  int count() const { return static_cast<int>(children_.size()); }
  void Go();
  void Stop();

 private:
  std::vector<pid_t> children_;
};

}  // namespace refract::bench

#endif  // REFRACT_BENCH_RUNTIME_BUSY_PROCESSES_H_
