#ifndef REFRACT_PARTITIONER_VERIFY_VERIFY_H_
#define REFRACT_PARTITIONER_VERIFY_VERIFY_H_

// Compares prediction with measurement: runs plans of a model by a CN and an HN
// of this machine.

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/quantile.h"
#include "models/repository/repository.h"
#include "partitioner/measure/sample_requests.h"
#include "partitioner/profile/drift.h"
#include "partitioner/verify/cut_choice.h"
#include "partitioner/verify/node_pair.h"

namespace refract::partitioner {

struct VerifyOptions {
  NodeOptions nodes;
  int rounds = 25;  // ≥ 1
};

// Seconds that a stage of the CN took per request, as the CN counts them.
struct StageSeconds {
  double queue = 0;   // until a worker began
  double cn_pre = 0;  // split: CN-pre; whole: nothing
  double remote = 0;  // split: from sending until the answer; whole: the model
  double cn_post = 0;
};

struct VerifiedCut {
  Cut cut;
  base::Quartiles measured;  // seconds, from client to client
  size_t samples = 0;        // timed requests
  StageSeconds stages;       // means
  // Per request, as the CN's transport counted; 0 without an HN. Mean over the
  // requests if a form's size depends on the data.
  double bytes_up = 0;
  double bytes_down = 0;
  // With lossy wire forms, in the order of Cut::errors: the largest errors of
  // the nodes' answers over all requests.
  std::vector<models::WireError> errors;

  double predicted_s() const { return cut.prediction.end_to_end_s(); }
  // Predicted ÷ measured.
  double ratio() const { return predicted_s() / measured.median; }
  // Measured ÷ predicted bytes, both directions; nullopt without an HN.
  std::optional<double> bytes_ratio() const;
  bool reprofile() const {
    return ratio() < kLeastRatio || ratio() > kMostRatio;
  }
};

struct Verification {
  std::string transport;  // data path in use: shm, tcp, verbs
  int64_t batch = 0;
  int requests = 0;  // distinct requests
  int rounds = 0;
  std::vector<VerifiedCut> cuts;
  // Spearman's coefficient of predicted times and measured times, the latter
  // without the drift of the machine between rounds; nullopt: too few cuts.
  std::optional<double> rank_correlation;
};

// The largest error of any output.
double WorstOf(const VerifiedCut& cut);
// Whether some cut answers with errors.
bool IsLossy(const Verification& verification);
// One line of advice that names the cuts whose ratio is outside the bounds;
// empty when all are inside.
std::string Advice(const Verification& verification);

// Runs `cuts` over real processes; one cut must have all operators on the CN.
// First every cut answers every request: the answers must equal those of the
// cut without HN bit for bit, or with lossy forms have at most the errors of
// Cut::errors. Then bytes are counted. Then requests are timed one at a time,
// in rounds. On failure the nodes' logs go to `err`.
//
// DataLoss names the cut and the output that differ: nothing is timed then.
// Cancelled: InterruptGuard. Errors of NodePair and of the nodes.
absl::StatusOr<Verification> Verify(const models::LoadedModel& model,
                                    std::vector<Cut> cuts,
                                    const SampleRequests& samples,
                                    const VerifyOptions& options,
                                    const ProgressFn& progress,
                                    std::ostream& err);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_VERIFY_VERIFY_H_
