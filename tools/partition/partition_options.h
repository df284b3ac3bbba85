#ifndef REFRACT_TOOLS_PARTITION_PARTITION_OPTIONS_H_
#define REFRACT_TOOLS_PARTITION_PARTITION_OPTIONS_H_

// The options of `refract partition`, grouped by the struct that they fill in.

#include <string>

#include "absl/status/status.h"
#include "partitioner/conditions/split_conditions.h"
#include "partitioner/verify/verify_split.h"
#include "partitioner/wire/forms.h"

namespace CLI {
class App;
}  // namespace CLI

namespace refract::tools {

// Costs, limits and the objective.
void AddConditionOptions(CLI::App& command,
                         partitioner::ConditionOptions& options);
// --wire-dtype, --wire-error-bound, --sample, --wire-seed.
void AddWireOptions(CLI::App& command, partitioner::WireOptions& options);
// --verify and the options that only --verify reads.
void AddVerifyOptions(CLI::App& command,
                      partitioner::VerifySplitOptions& options);

// The actions of a command line of `refract partition` that decide which
// options have a use.
struct PartitionUses {
  std::string method;
  bool costs = false;   // --method optimal, --report or --verify
  bool cuts = false;    // costs, and --json, --report or --verify shows them
  bool verify = false;  // --verify
  bool draws =
      false;  // requests are drawn: wire forms or --verify, no --sample
};

// InvalidArgument names an option on the command line of `command` that nothing
// reads, and another option that would read it.
absl::Status RefuseIgnored(const CLI::App& command, const PartitionUses& uses);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_PARTITION_PARTITION_OPTIONS_H_
