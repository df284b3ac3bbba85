#ifndef REFRACT_CPU_NODE_DISPATCH_REQUEST_QUOTA_H_
#define REFRACT_CPU_NODE_DISPATCH_REQUEST_QUOTA_H_

#include <cstddef>
#include <vector>

namespace refract::cpu_node {

// How many requests of each model may be in flight at one GPU node.
//
// Two bounds: all requests together stay within `limit`, and where the node
// serves several models, a model may send a request only while it has fewer
// than kShareOfFree times as many in flight as the node has free places. One
// busy model then leaves a quarter of the node free, two leave a seventh, and
// so on: a model that asks for more than the node can do is refused before it
// takes the room of the others, and which models are busy need not be known.
// (The dynamic threshold of Choudhury and Hahne, "Dynamic Queue Length
// Thresholds for Shared-Memory Packet Switches", IEEE/ACM ToN 6(2), 1998.)
//
// Constant time each. Not thread-safe.
class RequestQuota {
 public:
  // 3: a busy model beside quiet models has 3/4 of the node, and a quiet model
  // finds room for 3/4 of the rest at once. Lower values waste room while one
  // model is busy, higher values leave less for a burst of another model.
  static constexpr int kShareOfFree = 3;

  // `limit` ≥ 1: requests in flight at the node.
  RequestQuota(size_t models, int limit) : limit_(limit), models_(models) {}

  // Sets the number of models. Models whose numbers go must have no request in
  // flight.
  void Resize(size_t models) { models_.resize(models); }

  // Sets how many of the models the node serves: a model that is alone may use
  // all of `limit`.
  void SetServed(size_t models) { shared_ = models > 1; }

  bool HasRoom(size_t model) const {
    const int free = limit_ - in_flight_;
    return free > 0 && (!shared_ || models_[model] < kShareOfFree * free);
  }
  void Take(size_t model) {
    ++models_[model];
    ++in_flight_;
  }
  void Release(size_t model) {
    --models_[model];
    --in_flight_;
  }

  int limit() const { return limit_; }
  int in_flight() const { return in_flight_; }
  int in_flight(size_t model) const { return models_[model]; }

 private:
  const int limit_;
  std::vector<int> models_;  // requests in flight per model
  int in_flight_ = 0;
  bool shared_ = false;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISPATCH_REQUEST_QUOTA_H_
