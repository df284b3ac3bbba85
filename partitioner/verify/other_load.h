#ifndef REFRACT_PARTITIONER_VERIFY_OTHER_LOAD_H_
#define REFRACT_PARTITIONER_VERIFY_OTHER_LOAD_H_

// What else a machine did while something was measured on it.

#include <sys/types.h>

#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace refract::partitioner {

// Seconds that all processors together were busy since the machine started, for
// this machine's programs or, where it is a guest, for others' (steal), from
// the text of /proc/stat. nullopt: it is none.
std::optional<double> BusySeconds(absl::string_view stat,
                                  double ticks_per_second);

// Seconds of processor time of one process, with those of its children that it
// has waited for, from the text of /proc/PID/stat.
std::optional<double> ProcessSeconds(absl::string_view stat,
                                     double ticks_per_second);

// Counts from its construction on. Belongs to one thread.
class OtherLoad {
 public:
  // `own`: processes whose time is the measurement's, beside this one.
  explicit OtherLoad(std::vector<pid_t> own);

  // How many processors others kept busy since then, on average; nullopt where
  // the machine does not tell.
  std::optional<double> Processors() const;

 private:
  // Of all but the measurement's own processes.
  std::optional<double> OthersSeconds() const;

  const std::vector<pid_t> own_;
  const absl::Time begin_;
  const std::optional<double> before_;
};

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_OTHER_LOAD_H_
