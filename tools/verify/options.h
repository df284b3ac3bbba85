#ifndef REFRACT_TOOLS_VERIFY_OPTIONS_H_
#define REFRACT_TOOLS_VERIFY_OPTIONS_H_

// Options and text that `refract calibrate` and `refract partition --verify`
// share.

#include <ostream>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tools/verify/calibration.h"
#include "tools/verify/node_pair.h"

namespace CLI {
class App;
}  // namespace CLI

namespace refract::tools {

// --transport and --node-programs.
void AddNodeOptions(CLI::App& command, NodeOptions& options);
// InvalidArgument for a transport that is none.
absl::Status CheckTransport(absl::string_view transport);

void PrintCalibration(const Calibration& calibration, std::ostream& out);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_VERIFY_OPTIONS_H_
