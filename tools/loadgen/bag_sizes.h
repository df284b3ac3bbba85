#ifndef REFRACT_TOOLS_LOADGEN_BAG_SIZES_H_
#define REFRACT_TOOLS_LOADGEN_BAG_SIZES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/loadgen/random.h"

namespace refract::loadgen {

// How many ids an item has in each of a model's bag inputs; by default one.
class BagSizes {
 public:
  // "fixed:N": always N. "mean:M": uniformly 0 to 2 M, so some bags are empty.
  // "list:A,B,…": A ids in each bag of the first bag input, and so on.
  // "mlperf": the list of DLRM-DCNv2's 26 tables, 214 ids in all.
  static absl::StatusOr<BagSizes> Parse(absl::string_view spec);

  // A list must have as many values as the model has bag inputs.
  absl::Status CheckInputs(size_t bag_inputs) const;

  // `input` counts the model's bag inputs in their order.
  int64_t Draw(size_t input, Random& random) const;

 private:
  bool ragged_ = false;
  // One value for all inputs, or one for each.
  std::vector<int64_t> sizes_ = {1};
};

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_BAG_SIZES_H_
