#ifndef REFRACT_TOOLS_PARTITION_PRINT_H_
#define REFRACT_TOOLS_PARTITION_PRINT_H_

// The printed output of `refract partition`.

#include <ostream>

#include "models/graph/graph.h"
#include "models/repository/split_plan.h"
#include "partitioner/profile/calibration.h"
#include "partitioner/report/split_report.h"
#include "partitioner/verify/verify.h"
#include "partitioner/wire/forms.h"

namespace refract::tools {

// Prints conditions, the table of alternatives, how far the optimum is proven,
// the chosen plan's distance from it, and the assumptions of the costs.
void PrintSplit(const models::Graph& graph,
                const partitioner::SplitReport& report, std::ostream& out);
// The forms of the crossing tensors, largest first, and the errors they cause.
void PrintWire(const models::Graph& graph, const models::SplitPlan& plan,
               const partitioner::WireReport& report, std::ostream& out);
void PrintCalibration(const partitioner::Calibration& calibration,
                      std::ostream& out);
// A table of the cuts, the rank correlation, the ratios outside their bounds,
// and whether `calibration` was made over another transport.
void PrintVerification(const partitioner::Verification& verification,
                       const partitioner::Calibration& calibration,
                       std::ostream& out);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_PARTITION_PRINT_H_
