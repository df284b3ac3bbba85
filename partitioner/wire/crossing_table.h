#ifndef REFRACT_PARTITIONER_WIRE_CROSSING_TABLE_H_
#define REFRACT_PARTITIONER_WIRE_CROSSING_TABLE_H_

// Bytes of every value of a model in every wire form that it may have, measured
// on sample requests before there is a plan: the sizes of unique rows and of
// ids depend on the requests.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor.h"
#include "models/repository/repository.h"
#include "models/repository/wire_form.h"
#include "partitioner/measure/sample_requests.h"

namespace refract::partitioner {

class CrossingTable {
 public:
  // Runs the model on each request with all values that may cross as results,
  // so it needs memory for all of them at once. Errors as RequestRunner.
  static absl::StatusOr<CrossingTable> Measure(
      const models::LoadedModel& model,
      const std::vector<SampleRequest>& requests);

  // Means over the requests.
  struct Size {
    double plain_bytes = 0;  // in memory
    double bytes = 0;        // of the tensors that are sent for it, with the
                             // padding between them
    // The same with padding and table entries, as WireReading counts them.
    double message_bytes = 0;
    double distinct = 1;  // part of its rows that is sent
  };
  // `form` must be legal for `value` (CheckWireForm). Zero for a value that
  // never crosses.
  Size Of(models::ValueId value, models::WireForm form) const;
  // Whether all of an int64 value fits int32, in every request.
  bool Narrows(models::ValueId value) const;

 private:
  // A value in one request.
  struct Seen {
    base::TensorSpec spec;
    bool fits_int32 = false;
    int64_t distinct_rows = 0;  // 0: it has no rows
    base::TensorSpec index;
  };
  static Seen Look(const base::TensorView& view);

  std::vector<std::vector<Seen>> values_;  // per value, per request
};

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_WIRE_CROSSING_TABLE_H_
