#include "tools/loadgen/bag_sizes.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace refract::loadgen {
namespace {

// Far above any published model (DLRM-DCNv2's longest is 100).
constexpr int64_t kMaxBagSize = 100'000;

// MLPerf inference, DLRM-DCNv2: multi-hot sizes of the 26 Criteo fields.
constexpr absl::string_view kMlperf =
    "3,2,1,2,6,1,1,1,1,7,3,8,1,6,9,5,1,1,1,12,100,27,10,3,1,1";

}  // namespace

absl::StatusOr<BagSizes> BagSizes::Parse(absl::string_view spec) {
  BagSizes result;
  // A text of unknown form leaves this empty, which is no number.
  absl::string_view numbers = "";
  result.sizes_.clear();
  if (spec == "mlperf") {
    numbers = kMlperf;
  } else if (absl::StartsWith(spec, "list:") ||
             absl::StartsWith(spec, "mean:")) {
    numbers = spec.substr(5);
  } else if (absl::StartsWith(spec, "fixed:")) {
    numbers = spec.substr(6);
  }
  result.ragged_ = absl::StartsWith(spec, "mean:");
  for (absl::string_view number : absl::StrSplit(numbers, ',')) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(number, &size) || size < 0 || size > kMaxBagSize) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--bag-sizes: '", spec,
          "' is none of fixed:N, mean:N, list:N,N,..., mlperf with N from 0 "
          "to ",
          kMaxBagSize));
    }
    result.sizes_.push_back(size);
  }
  if (result.sizes_.size() > 1 && spec != "mlperf" &&
      !absl::StartsWith(spec, "list:")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--bag-sizes: '", spec, "' has more than one number"));
  }
  return result;
}

absl::Status BagSizes::CheckInputs(size_t bag_inputs) const {
  if (sizes_.size() == 1 || sizes_.size() == bag_inputs) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--bag-sizes: lists ", sizes_.size(),
                   " bags, the model has ", bag_inputs, " bag inputs"));
}

int64_t BagSizes::Draw(size_t input, Random& random) const {
  const int64_t size = sizes_.size() == 1 ? sizes_[0] : sizes_[input];
  if (!ragged_) return size;
  // Uniform over 0 … 2 · size: the mean is `size`, and empty bags occur.
  return static_cast<int64_t>(random.Below(2 * size + 1));
}

}  // namespace refract::loadgen
