#ifndef REFRACT_TESTS_PARTITIONER_CUT_EXHAUSTIVE_H_
#define REFRACT_TESTS_PARTITIONER_CUT_EXHAUSTIVE_H_

// The best choice of stages found by trying them all. Shares nothing with the
// solver but the problem: legality and prices are told from their definitions,
// edge by edge.

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "partitioner/cut/problem.h"

namespace refract::partitioner::cut {

class Exhaustive {
 public:
  explicit Exhaustive(const Problem& problem) : problem_(problem) {}

  // Calls `visit` with every legal choice.
  void ForEachLegal(const std::function<void(const Stages&)>& visit) const {
    Stages stages;
    Extend(stages, visit);
  }

  int64_t Price(const Measure& measure, const Stages& stages) const {
    int64_t price = 0;
    for (size_t n = 0; n < stages.size(); ++n) {
      price += measure.stage[n][stages[n]];
    }
    for (size_t t = 0; t < problem_.tensors.size(); ++t) {
      if (Crosses(problem_.tensors[t], stages, kPre, kHn)) {
        price += measure.up[t];
      }
      if (Crosses(problem_.tensors[t], stages, kHn, kPost)) {
        price += measure.down[t];
      }
    }
    for (size_t s = 0; s < problem_.shared.size(); ++s) {
      std::set<bool> sides;
      for (const int reader : problem_.shared[s].readers) {
        sides.insert(stages[reader] == kHn);
      }
      if (sides.count(true)) price += measure.shared_on_hn[s];
      if (sides.count(false)) price += measure.shared_on_cn[s];
    }
    if (std::count(stages.begin(), stages.end(), kHn) > 0) {
      price += measure.hn_used;
    }
    return price;
  }

  struct Limited {
    const Measure* measure;
    int64_t at_most;
  };

  // The least largest objective over all legal choices within the limits;
  // nullopt: there is none.
  std::optional<int64_t> Best(const std::vector<const Measure*>& objectives,
                              const std::vector<Limited>& limits = {}) const {
    std::optional<int64_t> best;
    ForEachLegal([&](const Stages& stages) {
      for (const Limited& limit : limits) {
        if (Price(*limit.measure, stages) > limit.at_most) return;
      }
      int64_t worst = 0;
      for (const Measure* objective : objectives) {
        worst = std::max(worst, Price(*objective, stages));
      }
      if (!best || worst < *best) best = worst;
    });
    return best;
  }

 private:
  // Made in `from` and needed in `to`.
  bool Crosses(const Tensor& tensor, const Stages& stages, Stage from,
               Stage to) const {
    const Stage made = tensor.producer < 0 ? kPre : stages[tensor.producer];
    if (made != from) return false;
    if (to == kPost && tensor.is_result) return true;
    for (const int reader : tensor.readers) {
      if (stages[reader] == to) return true;
    }
    return false;
  }

  bool IsLegalSoFar(const Stages& stages) const {
    const int last = static_cast<int>(stages.size()) - 1;
    for (const Tensor& tensor : problem_.tensors) {
      if (tensor.producer < 0) continue;
      for (const int reader : tensor.readers) {
        if (reader != last) continue;
        if (stages[tensor.producer] > stages[reader]) return false;
      }
    }
    return true;
  }

  bool AllCrossingsAllowed(const Stages& stages) const {
    for (const Tensor& tensor : problem_.tensors) {
      if (!tensor.may_go_up && Crosses(tensor, stages, kPre, kHn)) return false;
      if (!tensor.may_come_down && Crosses(tensor, stages, kHn, kPost)) {
        return false;
      }
    }
    return true;
  }

  void Extend(Stages& stages,
              const std::function<void(const Stages&)>& visit) const {
    if (stages.size() == problem_.allowed.size()) {
      if (AllCrossingsAllowed(stages)) visit(stages);
      return;
    }
    const StageSet allowed = problem_.allowed[stages.size()];
    for (const Stage stage : {kPre, kHn, kPost}) {
      if ((allowed >> stage & 1) == 0) continue;
      stages.push_back(stage);
      if (IsLegalSoFar(stages)) Extend(stages, visit);
      stages.pop_back();
    }
  }

  const Problem& problem_;
};

}  // namespace refract::partitioner::cut

#endif  // REFRACT_TESTS_PARTITIONER_CUT_EXHAUSTIVE_H_
