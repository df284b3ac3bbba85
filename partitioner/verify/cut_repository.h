#ifndef REFRACT_PARTITIONER_VERIFY_CUT_REPOSITORY_H_
#define REFRACT_PARTITIONER_VERIFY_CUT_REPOSITORY_H_

#include <string>

#include "absl/status/status.h"
#include "models/repository/repository.h"
#include "models/repository/split_plan.h"

namespace refract::partitioner {

// Adds `model` to the repository in the folder `repository`, which is made if
// missing, under the name `name` and with `plan`. The files of the version are
// linked, not copied; `model`'s own folder is not touched. InvalidArgument: a
// plan that is not legal; Internal: the folder cannot be written.
absl::Status AddCut(const models::LoadedModel& model, const std::string& name,
                    const models::SplitPlan& plan,
                    const std::string& repository);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_CUT_REPOSITORY_H_
