#ifndef REFRACT_RUNTIME_CUDA_PLAN_CONSTANT_POOL_H_
#define REFRACT_RUNTIME_CUDA_PLAN_CONSTANT_POOL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"

namespace refract::runtime::cuda_plan {

// Constants of a plan in the form that devices take, made once for all its
// programs: equal constants have equal addresses. Results never move. Not
// thread-safe.
class ConstantPool {
 public:
  // Key of a constant: a local may have several forms.
  enum class Use : uint8_t { kPlain, kExact, kMatrix, kTurned, kBias };
  // The constant, made by `make`, a function that returns
  // absl::StatusOr<std::vector<float>>, unless it exists.
  template <typename Make>
  absl::StatusOr<const std::vector<float>*> Floats(int local, Use use,
                                                   Make make) {
    const auto found = floats_.find({local, use});
    if (found != floats_.end()) return &found->second;
    REFRACT_ASSIGN_OR_RETURN(std::vector<float> values, make());
    return &(floats_[{local, use}] = std::move(values));
  }
  // These numbers, shared by value. Not for numbers that depend on a request's
  // sizes.
  const std::vector<int32_t>& Integers(std::vector<int32_t> values) {
    return *integers_.insert(std::move(values)).first;
  }

  // A mask of at least `size` rows and columns: 0 on and below the diagonal,
  // minus infinity above. The largest mask so far; a smaller one is its corner.
  struct Mask {
    int64_t size = 0;
    std::vector<float> values;
  };
  const Mask& CausalMask(int64_t size);
  // 0, 1, 2, … of at least `size` numbers, likewise.
  const std::vector<int64_t>& Counting(int64_t size);

 private:
  std::map<std::pair<int, Use>, std::vector<float>> floats_;
  std::set<std::vector<int32_t>> integers_;
  // Smaller masks stay for the programs that use them.
  std::deque<Mask> masks_;
  std::deque<std::vector<int64_t>> countings_;
};

}  // namespace refract::runtime::cuda_plan

#endif  // REFRACT_RUNTIME_CUDA_PLAN_CONSTANT_POOL_H_
