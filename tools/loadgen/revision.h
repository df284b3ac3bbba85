#ifndef REFRACT_TOOLS_LOADGEN_REVISION_H_
#define REFRACT_TOOLS_LOADGEN_REVISION_H_

#include "absl/strings/string_view.h"

namespace refract::loadgen {

// "0.1.0"
absl::string_view BuiltVersion();
// The commit that this program was built from, "-dirty" after it when files
// differed; "unknown" outside a checkout.
absl::string_view BuiltRevision();

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_REVISION_H_
