#ifndef REFRACT_PARTITIONER_PROFILE_PROFILE_H_
#define REFRACT_PARTITIONER_PROFILE_PROFILE_H_

// Measured times of a model's operators on one machine: the result of `refract
// profile`, by which the partitioner prices plans.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "base/quantile.h"
#include "models/graph/graph.h"
#include "partitioner/costs/wire_rates.h"
#include "partitioner/profile/line_fit.h"

namespace refract::partitioner {

// Seconds as a function of the batch size.
struct Timing {
  struct Sample {
    int64_t batch = 1;
    base::Quartiles seconds;
  };
  std::vector<Sample> samples;  // ascending batches
  Line line;                    // through the medians

  // Fitted ÷ median − 1; 0 where the median is 0.
  double Residual(const Sample& sample) const;

  // Time at `batch`: the line, corrected by its error at the nearest measured
  // sizes, in proportion to the distance in log(batch), and beyond the measured
  // sizes by its error at the last. So a measured size gives its median, and
  // kernels with a bend (bound by memory at small batches, by arithmetic at
  // large ones) keep it.
  double At(double batch) const;
};

// `samples` must ascend by batch.
Timing MakeTiming(std::vector<Timing::Sample> samples);

struct Profile {
  base::Digest model;
  std::string model_name;
  std::string device = "cpu";
  std::string cpu;
  uint32_t cpus = 0;
  uint64_t memory_bytes = 0;
  std::string kernel;
  std::string revision;
  std::string time;
  std::string inputs;
  // Symbol → number per item, or −N for N in every request; default 1.
  std::map<std::string, int64_t> sizes;
  std::vector<int64_t> batches;
  uint32_t repetitions = 0;
  double clock_s = 0;

  struct Operator {
    std::vector<models::NodeId> nodes;  // one, or several computed as one
    std::string kernel;
    Timing timing;
    // For several nodes: times of pieces with the values between them written
    // to memory; together the pieces have all the nodes. Empty: not measured.
    struct Piece {
      std::vector<models::NodeId> nodes;
      Timing timing;
    };
    std::vector<Piece> pieces;
  };
  std::vector<Operator> operators;  // in the order in which they run
  std::vector<models::NodeId> free_nodes;
  Timing run;    // besides the operators
  Timing whole;  // everything, measured apart
  WireRates wire;

  // Operators and the run around them.
  double SumAt(double batch) const;
};

// The file's name beside a model version.
inline constexpr absl::string_view kProfileFile = "profile.textproto";

// A profile's stored form, proto/profile.proto as text.
std::string ProfileToText(const models::Graph& graph, const Profile& profile);

// `file` appears in errors. InvalidArgument names the line, field or operator
// that is damaged, negative, not a number or out of order; nodes that `graph`
// lacks or that occur twice; and a profile of another model than `model`.
absl::StatusOr<Profile> ParseProfile(absl::string_view text,
                                     absl::string_view file,
                                     const models::Graph& graph,
                                     const base::Digest& model);

// NotFound when there is no file `path`; else as ParseProfile().
absl::StatusOr<Profile> LoadProfile(absl::string_view path,
                                    const models::Graph& graph,
                                    const base::Digest& model);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_PROFILE_PROFILE_H_
