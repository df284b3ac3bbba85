#ifndef REFRACT_TOOLS_LOADGEN_IDS_H_
#define REFRACT_TOOLS_LOADGEN_IDS_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/loadgen/random.h"

namespace refract::loadgen {

// How popular ids are. exponent 0: all alike; a > 0: the k-th most popular id
// has weight k^-a (Zipf). Published generators use 0.9 to 1.3.
struct IdSkew {
  double exponent = 0;
  // True: as often as rows were used in Meta's published traces of embedding
  // look-ups; `exponent` is ignored.
  bool embedding_traces = false;
};

// "uniform", "zipf:ALPHA" with 0 < ALPHA ≤ 10, or "meta"; else
// InvalidArgument.
absl::StatusOr<IdSkew> ParseIdSkew(absl::string_view spec);

// Draws ids of one table. Immutable, so any number of threads may share one;
// the memory it takes does not grow with the table.
class IdSampler {
 public:
  // `rows` ≥ 1.
  IdSampler(IdSkew skew, int64_t rows);

  // An id in [0, rows). Popular ids lie all over the table, as hashed ids do;
  // neighbours would share pages and flatter the memory system.
  int64_t Draw(Random& random) const;

  // The popularity rank behind Draw(), 1 the most popular. For tests.
  int64_t DrawRank(Random& random) const;

 private:
  double Integral(double x) const;
  double InverseIntegral(double x) const;

  // Rows that are used about as often as each other, from the most used.
  struct Band {
    int64_t end = 0;       // rank after the last one
    double accesses = 0;   // share of all look-ups up to here
  };
  static constexpr int kBands = 17;
  void SetBands();
  int64_t DrawBandRank(Random& random) const;

  double exponent_;
  int64_t rows_;
  bool banded_ = false;
  std::array<Band, kBands> bands_ = {};
  // Constants of the rejection method, see ids.cc.
  double integral_first_ = 0;
  double integral_last_ = 0;
  double always_accept_ = 0;
};

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_IDS_H_
