#ifndef REFRACT_TOOLS_LOADGEN_REQUEST_MAKER_H_
#define REFRACT_TOOLS_LOADGEN_REQUEST_MAKER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/tensor.h"
#include "tools/loadgen/bag_sizes.h"
#include "tools/loadgen/criteo.h"
#include "tools/loadgen/ids.h"
#include "tools/loadgen/random.h"
#include "tools/loadgen/served_model.h"

namespace refract::loadgen {

struct RequestOptions {
  IdSkew ids;
  BagSizes bags;
  // Every size that is neither the items nor the ids of a bag (steps of a
  // sequence), and the largest value of kCounts lists. kCounts matrices are
  // all 0, the one value that is likely to be valid. ≥ 0.
  int64_t length = 50;
  uint64_t seed = 1;
  // Rows in place of random values, one after the other and from the start
  // again after the last; one id per bag. Empty: random values.
  std::vector<CriteoRow> criteo;
};

// Whether the meaning of the input's integers is unknown and they may select
// rows: a matrix, or indices. All have the same value, so that they always
// select the same rows.
bool HasUnknownIntegers(const InputPlan& input);

// A refusal (InvalidArgument) of a drawn request, with the option by which
// requests come from files instead; other statuses as they are.
absl::Status WithOptionForFiles(const absl::Status& status,
                                absl::string_view option);

// Makes the tensors of requests, one after the other. The n-th request of a
// plan and options is always the same. Not thread-safe.
class RequestMaker {
 public:
  // InvalidArgument: a list of bag sizes for another number of bags; Criteo
  // rows for a model that has not 13 dense features and 26 columns of ids.
  static absl::StatusOr<RequestMaker> Create(RequestPlan plan,
                                             RequestOptions options);

  // A tensor per input, in the plan's order. `items` ≥ 1. InvalidArgument
  // names the input whose size cannot be worked out.
  absl::StatusOr<std::vector<base::Tensor>> Make(int64_t items);

  // The same with `sizes` for the symbols in it. A bag input whose number of
  // ids follows from them has the ids spread evenly over its bags.
  absl::StatusOr<std::vector<base::Tensor>> Make(
      int64_t items, const models::SymbolBindings& sizes);

  const RequestPlan& plan() const { return plan_; }

 private:
  RequestMaker(RequestPlan plan, RequestOptions options);

  // Gives a symbol without a value `size`, or a size that the model takes: of
  // rows beside the items the least, of others the nearest.
  void BindWithin(const std::string& symbol, int64_t size, bool rows);
  absl::Status BindSizes(int64_t items, const models::SymbolBindings& sizes);
  void FillRandom(const InputPlan& input, base::Tensor& tensor);
  void FillCriteo(const InputPlan& input, size_t first_column,
                  base::Tensor& tensor);
  void FillOffsets(const InputPlan& input, base::Tensor& tensor) const;
  void FillLengths(const InputPlan& input, base::Tensor& tensor) const;
  // Fills in id_of(feature, item) for each element, in order. `features`: of
  // matrices of columns.
  template <typename F>
  void FillIds(const InputPlan& input, size_t features, base::Tensor& tensor,
               F id_of) const;
  // Bags of an input of ids; ids of a bag input. Of the request being made.
  int64_t BagsOf(const InputPlan& ids) const;
  int64_t IdsIn(int bag) const;

  RequestPlan plan_;
  RequestOptions options_;
  Random random_;
  // samplers_[i]: per column of input i; empty for other kinds.
  std::vector<std::vector<IdSampler>> samplers_;
  size_t next_criteo_row_ = 0;

  // Of the request being made.
  models::SymbolBindings bindings_;
  std::vector<std::vector<int64_t>> bag_sizes_;
};

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_REQUEST_MAKER_H_
