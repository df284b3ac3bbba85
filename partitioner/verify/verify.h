#ifndef REFRACT_PARTITIONER_VERIFY_VERIFY_H_
#define REFRACT_PARTITIONER_VERIFY_VERIFY_H_

// Prediction against measurement: plans of a model, run by a CN and an HN of
// this machine, beside what the partitioner said of them.

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
#include "partitioner/verify/ranking.h"

namespace refract::partitioner {

struct VerifyOptions {
  NodeOptions nodes;
  int rounds = 25;  // ≥ 1
};

// Measurements beside more than this are not to be relied on: each round of a
// cut may meet others' work or not.
inline constexpr double kMostOtherProcessors = 0.1;

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
  // Per request, as the CN's transport counted; 0 without an HN. Where sizes
  // depend on what is sent, the mean over the requests.
  double bytes_up = 0;
  double bytes_down = 0;
  // With forms on the wire, in the order of Cut::errors: how far the nodes'
  // answers were off, over all requests.
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
  std::string transport;  // that was used: shm, tcp, verbs
  int64_t batch = 0;
  int requests = 0;  // distinct ones
  int rounds = 0;
  // How many processors other programs (or other guests of this machine's host)
  // kept busy while requests were timed; nullopt: unknown.
  std::optional<double> other_processors;
  std::vector<VerifiedCut> cuts;
  Ranking ranking;  // in the order of `cuts`
};

// The largest error of any output.
double WorstOf(const VerifiedCut& cut);
// Whether some cut answers with errors.
bool IsLossy(const Verification& verification);
// One line: what to do about cuts whose ratio is outside; empty when none is.
std::string Advice(const Verification& verification);

// Runs `cuts`, of which one must have everything on the CN, over real
// processes: first every cut answers every request, and answers have to equal
// those of the cut without HN bit for bit, or with lossy forms on the wire be
// no further off than Cut::errors says; then bytes are counted; then
// requests are timed one at a time, in rounds. On failure the nodes' logs go to
// `err`.
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
