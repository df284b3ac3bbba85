// Definitions of cost and legality. They are written from the definition,
// without the tricks of the networks, so that they can serve as the oracle of
// the search.

#include "partitioner/cut/problem.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace refract::partitioner::cut {
namespace {

bool Reads(const std::vector<int>& readers, const Stages& stages, bool hn) {
  return std::any_of(readers.begin(), readers.end(),
                     [&](int reader) { return (stages[reader] == kHn) == hn; });
}

// The tensor is on the CN and some reader is on the HN.
bool GoesUp(const Tensor& tensor, const Stages& stages) {
  const bool made_on_hn =
      tensor.producer != Tensor::kRequest && stages[tensor.producer] == kHn;
  return !made_on_hn && Reads(tensor.readers, stages, /*hn=*/true);
}

// The tensor is made on the HN and the CN needs it.
bool ComesDown(const Tensor& tensor, const Stages& stages) {
  const bool made_on_hn =
      tensor.producer != Tensor::kRequest && stages[tensor.producer] == kHn;
  return made_on_hn &&
         (tensor.is_result || Reads(tensor.readers, stages, /*hn=*/false));
}

absl::Status CheckReaders(const std::vector<int>& readers, int after, int count,
                          absl::string_view what, size_t index) {
  for (const int reader : readers) {
    if (reader > after && reader < count) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, " ", index, " is read by node ", reader,
                     reader >= 0 && reader < count
                         ? ", which does not come after its producer"
                         : ", which does not exist"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateProblem(const Problem& problem) {
  const int count = problem.num_nodes();
  for (int n = 0; n < count; ++n) {
    if (problem.allowed[n] == 0 || problem.allowed[n] > kAnyStage) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", n, " has no stage that it may run in"));
    }
  }
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    const Tensor& tensor = problem.tensors[t];
    if (tensor.producer < Tensor::kRequest || tensor.producer >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", t, " is computed by node ", tensor.producer,
                       ", which does not exist"));
    }
    if (absl::Status status =
            CheckReaders(tensor.readers, tensor.producer, count, "tensor", t);
        !status.ok()) {
      return status;
    }
  }
  for (size_t s = 0; s < problem.shared.size(); ++s) {
    if (absl::Status status = CheckReaders(
            problem.shared[s].readers, Tensor::kRequest, count, "shared", s);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateMeasure(const Problem& problem, const Measure& measure,
                             const std::string& name) {
  if (measure.stage.size() != problem.allowed.size() ||
      measure.up.size() != problem.tensors.size() ||
      measure.down.size() != problem.tensors.size() ||
      measure.shared_on_cn.size() != problem.shared.size() ||
      measure.shared_on_hn.size() != problem.shared.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": the measure has other nodes or tensors than the problem"));
  }
  Cost total = 0;
  bool negative = false;
  bool too_large = false;
  const auto add = [&](Cost cost) {
    if (cost < 0) {
      negative = true;
    } else if (cost > kMaxTotal - total) {
      too_large = true;
    } else {
      total += cost;
    }
  };
  // The largest total of any choice: the dearest stage of each node, and every
  // crossing and weight charged.
  for (const auto& costs : measure.stage) {
    for (const Cost cost : costs) negative = negative || cost < 0;
    add(std::max(*std::max_element(costs.begin(), costs.end()), Cost{0}));
  }
  for (const auto* costs : {&measure.up, &measure.down, &measure.shared_on_cn,
                            &measure.shared_on_hn}) {
    for (const Cost cost : *costs) add(cost);
  }
  add(measure.hn_used);
  if (negative) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the measure has a negative cost"));
  }
  if (too_large) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the costs add up to more than ", kMaxTotal));
  }
  return absl::OkStatus();
}

Cost Price(const Problem& problem, const Measure& measure,
           const Stages& stages) {
  Cost price = 0;
  bool hn_used = false;
  for (size_t n = 0; n < stages.size(); ++n) {
    price += measure.stage[n][stages[n]];
    hn_used = hn_used || stages[n] == kHn;
  }
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    if (GoesUp(problem.tensors[t], stages)) price += measure.up[t];
    if (ComesDown(problem.tensors[t], stages)) price += measure.down[t];
  }
  for (size_t s = 0; s < problem.shared.size(); ++s) {
    const std::vector<int>& readers = problem.shared[s].readers;
    if (Reads(readers, stages, /*hn=*/true)) price += measure.shared_on_hn[s];
    if (Reads(readers, stages, /*hn=*/false)) price += measure.shared_on_cn[s];
  }
  // Charged once, for the first use of the HN.
  return hn_used ? price + measure.hn_used : price;
}

bool IsLegal(const Problem& problem, const Stages& stages) {
  for (size_t n = 0; n < stages.size(); ++n) {
    if ((problem.allowed[n] & (1 << stages[n])) == 0) return false;
  }
  for (const Tensor& tensor : problem.tensors) {
    // The request's tensors are on the CN before everything else.
    const Stage from =
        tensor.producer == Tensor::kRequest ? kPre : stages[tensor.producer];
    for (const int reader : tensor.readers) {
      if (stages[reader] < from) return false;
    }
    if (!tensor.may_go_up && GoesUp(tensor, stages)) return false;
    if (!tensor.may_come_down && ComesDown(tensor, stages)) return false;
  }
  return true;
}

bool Propagate(const Problem& problem, Domains& domains) {
  // Interval arithmetic on stages. A reader's lowest stage depends on its
  // producers alone, a producer's highest stage on its readers alone, so one
  // sweep in each direction is enough. Sweeping tensors in the order of their
  // producers makes every producer final before its readers use it.
  const auto lowest = [](StageSet set) {
    return set & kOnPre ? kPre : set & kOnHn ? kHn : kPost;
  };
  const auto highest = [](StageSet set) {
    return set & kOnPost ? kPost : set & kOnHn ? kHn : kPre;
  };
  // kFrom[s]: the stages from s on; kUpTo[s]: the stages up to s.
  constexpr StageSet kFrom[] = {kAnyStage, kOnHn | kOnPost, kOnPost};
  constexpr StageSet kUpTo[] = {kOnPre, kOnPre | kOnHn, kAnyStage};

  std::vector<const Tensor*> by_producer;
  for (const Tensor& tensor : problem.tensors) {
    if (tensor.producer != Tensor::kRequest) by_producer.push_back(&tensor);
  }
  std::stable_sort(by_producer.begin(), by_producer.end(),
                   [](const Tensor* a, const Tensor* b) {
                     return a->producer < b->producer;
                   });
  const auto all_nonempty = [&] {
    return std::none_of(domains.begin(), domains.end(),
                        [](StageSet set) { return set == 0; });
  };
  if (!all_nonempty()) return false;
  for (const Tensor* tensor : by_producer) {
    const StageSet later = kFrom[lowest(domains[tensor->producer])];
    for (const int reader : tensor->readers) {
      if ((domains[reader] &= later) == 0) return false;
    }
  }
  for (auto it = by_producer.rbegin(); it != by_producer.rend(); ++it) {
    StageSet& domain = domains[(*it)->producer];
    for (const int reader : (*it)->readers) {
      if ((domain &= kUpTo[highest(domains[reader])]) == 0) return false;
    }
  }
  return true;
}

}  // namespace refract::partitioner::cut
