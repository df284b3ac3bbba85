#ifndef REFRACT_TOOLS_PARTITION_PARTITION_OPTIONS_H_
#define REFRACT_TOOLS_PARTITION_PARTITION_OPTIONS_H_

// The options of `refract partition`, by what they fill in.

#include "partitioner/conditions/split_conditions.h"
#include "partitioner/verify/verify_split.h"
#include "partitioner/wire/forms.h"

namespace CLI {
class App;
}  // namespace CLI

namespace refract::tools {

// Costs, limits and what is minimised.
void AddConditionOptions(CLI::App& command,
                         partitioner::ConditionOptions& options);
// --wire-dtype, --wire-error-bound, --sample, --wire-seed.
void AddWireOptions(CLI::App& command, partitioner::WireOptions& options);
// --verify and what belongs to it.
void AddVerifyOptions(CLI::App& command,
                      partitioner::VerifySplitOptions& options);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_PARTITION_PARTITION_OPTIONS_H_
