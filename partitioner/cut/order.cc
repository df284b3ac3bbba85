#include "partitioner/cut/order.h"

#include <algorithm>

namespace refract::partitioner::cut {

Order::Order(const Problem& problem) : readers_(problem.allowed.size()) {
  for (const Tensor& tensor : problem.tensors) {
    if (tensor.producer == Tensor::kRequest) continue;
    std::vector<int>& readers = readers_[tensor.producer];
    readers.insert(readers.end(), tensor.readers.begin(), tensor.readers.end());
  }
  for (std::vector<int>& readers : readers_) {
    std::sort(readers.begin(), readers.end());
    readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
  }
}

int Order::NodeOutOfOrder(const Stages& stages, const Domains& domains) const {
  // Number of HN nodes before and after each node, counted along paths and
  // capped. Branching at a node with many HN nodes on both sides fixes the
  // most.
  constexpr int64_t kMany = int64_t{1} << 20;
  const int count = static_cast<int>(stages.size());
  std::vector<int64_t> before(count, 0);
  std::vector<int64_t> after(count, 0);
  for (int n = 0; n < count; ++n) {
    const int64_t with = before[n] + (stages[n] == kHn ? 1 : 0);
    for (const int reader : readers_[n]) {
      before[reader] = std::min(kMany, before[reader] + with);
    }
  }
  // Nodes are in topological order, so one sweep forwards counts predecessors
  // and one backwards counts successors.
  for (int n = count - 1; n >= 0; --n) {
    for (const int reader : readers_[n]) {
      const int64_t with = after[reader] + (stages[reader] == kHn ? 1 : 0);
      after[n] = std::min(kMany, after[n] + with);
    }
  }
  int between = -1;
  int64_t most = 0;
  for (int n = 0; n < count; ++n) {
    if (stages[n] == kHn) continue;
    const int64_t settles = std::min(before[n], after[n]);
    if (settles > most) {
      most = settles;
      between = n;
    }
  }
  // A CN node between two HN nodes comes first: only it makes a second
  // crossing.
  if (between >= 0) return between;
  const auto is_open = [&](int node) {
    return (domains[node] & (domains[node] - 1)) != 0;
  };
  for (int n = 0; n < count; ++n) {
    for (const int reader : readers_[n]) {
      if (stages[n] <= stages[reader]) continue;
      return is_open(n) ? n : reader;
    }
  }
  return -1;
}

}  // namespace refract::partitioner::cut
