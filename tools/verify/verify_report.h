#ifndef REFRACT_TOOLS_VERIFY_VERIFY_REPORT_H_
#define REFRACT_TOOLS_VERIFY_VERIFY_REPORT_H_

// What `refract partition --verify` tells: text, and JSON
// (docs/partitioning.md).

#include <ostream>
#include <string>

#include "models/graph/graph.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/verify/calibration.h"
#include "tools/verify/verify.h"

namespace refract::tools {

// A table of the cuts, the rank correlation, which ratios are outside their
// bounds, and whether `calibration` was made over another transport.
void PrintVerification(const Verification& verification,
                       const Calibration& calibration, std::ostream& out);

// One line: what to do about cuts whose ratio is outside; empty when none is.
std::string Advice(const Verification& verification);

nlohmann::ordered_json VerificationToJson(const models::Graph& graph,
                                          const Verification& verification,
                                          const Calibration& calibration);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_VERIFY_VERIFY_REPORT_H_
