// Choice of the branching node. Settling a node also settles the nodes before
// it (if it leaves the HN) or after it (if it joins the HN), so a good node has
// much weight on both sides.

#include "partitioner/cut/divide.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace refract::partitioner::cut {
namespace {

// Number of candidates, the heaviest first. More would cost more time than they
// save in cuts.
constexpr size_t kCandidates = 512;
constexpr size_t kWordBits = 64;
using Bits = std::vector<uint64_t>;

}  // namespace

Divider::Divider(const Problem& problem)
    : problem_(problem), read_from_(problem.allowed.size()) {
  for (const Tensor& tensor : problem.tensors) {
    if (tensor.producer == Tensor::kRequest) continue;
    for (const int reader : tensor.readers) {
      read_from_[reader].push_back(tensor.producer);
    }
  }
  for (std::vector<int>& producers : read_from_) {
    std::sort(producers.begin(), producers.end());
    producers.erase(std::unique(producers.begin(), producers.end()),
                    producers.end());
  }
}

std::vector<double> Divider::WeightsOf(const Measure& measure) const {
  std::vector<double> weights;
  for (const auto& stage : measure.stage) {
    weights.push_back(static_cast<double>(stage[kHn]) +
                      static_cast<double>(std::min(stage[kPre], stage[kPost])));
  }
  for (size_t t = 0; t < problem_.tensors.size(); ++t) {
    const int producer = problem_.tensors[t].producer;
    if (producer == Tensor::kRequest) continue;
    weights[producer] +=
        static_cast<double>(std::max(measure.up[t], measure.down[t]));
  }
  for (size_t s = 0; s < problem_.shared.size(); ++s) {
    const std::vector<int>& readers = problem_.shared[s].readers;
    for (const int reader : readers) {
      weights[reader] += static_cast<double>(measure.shared_on_cn[s] +
                                             measure.shared_on_hn[s]) /
                         static_cast<double>(readers.size());
    }
  }
  return weights;
}

int Divider::Undecided(
    const std::vector<std::pair<const Stages*, double>>& choices,
    const Domains& domains, const std::vector<double>& weights) const {
  struct Candidate {
    int node;
    double weight;
    double undecided;
    double with_producers = 0;
    double with_readers = 0;
  };
  std::vector<Candidate> candidates;
  for (int n = 0; n < problem_.num_nodes(); ++n) {
    // A single stage is left: nothing to divide.
    if ((domains[n] & (domains[n] - 1)) == 0) continue;
    double on_hn = 0;
    for (const auto& [stages, share] : choices) {
      if ((*stages)[n] == kHn) on_hn += share;
    }
    // 0.5 when half of the mixture has the node on the HN, 0 when all choices
    // agree.
    const double undecided = std::min(on_hn, 1 - on_hn);
    // A weight above 0, so that nodes without cost are settled as well.
    if (undecided > 1e-6) {
      candidates.push_back({n, weights[n] + 1e-30, undecided});
    }
  }
  if (candidates.size() > kCandidates) {
    // Ties by node number keep the search deterministic.
    std::nth_element(
        candidates.begin(), candidates.begin() + kCandidates, candidates.end(),
        [](const Candidate& a, const Candidate& b) {
          return a.weight != b.weight ? a.weight > b.weight : a.node < b.node;
        });
    candidates.resize(kCandidates);
    std::sort(
        candidates.begin(), candidates.end(),
        [](const Candidate& a, const Candidate& b) { return a.node < b.node; });
  }
  // One bit per candidate that a node depends on, propagated in topological
  // order. Every pair of dependent candidates adds to the weight behind both.
  const size_t words = (candidates.size() + kWordBits - 1) / kWordBits;
  Bits on(words * problem_.allowed.size(), 0);
  size_t next = 0;
  for (int n = 0; n < problem_.num_nodes() && next < candidates.size(); ++n) {
    // Dependencies of n: those of its producers, and n itself if it is a
    // candidate.
    uint64_t* const bits = &on[words * n];
    for (const int producer : read_from_[n]) {
      for (size_t w = 0; w < words; ++w) bits[w] |= on[words * producer + w];
    }
    if (candidates[next].node != n) continue;
    Candidate& here = candidates[next];
    bits[next / kWordBits] |= uint64_t{1} << (next % kWordBits);
    ++next;
    for (size_t w = 0; w < words; ++w) {
      for (uint64_t left = bits[w]; left != 0; left &= left - 1) {
        Candidate& before = candidates[w * kWordBits + std::countr_zero(left)];
        here.with_producers += before.weight;
        before.with_readers += here.weight;
      }
    }
  }
  int node = -1;
  double most = -1;
  for (const Candidate& candidate : candidates) {
    // The lesser of both branches counts, because both have to be examined.
    const double settles =
        candidate.undecided *
        std::min(candidate.with_producers, candidate.with_readers);
    if (settles > most) {
      most = settles;
      node = candidate.node;
    }
  }
  return node;
}

}  // namespace refract::partitioner::cut
