#ifndef REFRACT_CPU_NODE_PLACES_H_
#define REFRACT_CPU_NODE_PLACES_H_

// Who may have how many of the requests that may be under way at a GPU node.

#include <cstddef>
#include <vector>

namespace refract::cpu_node {

// The places of one node and the models that share them, so that one that asks
// for more than the node can do leaves room for others. Half of the places are
// divided among the models that ask; the others are for whoever comes first.
// One is kept for models that the node serves and that do not ask, so that
// their first request finds it.
//
// Taking a place, giving one back and asking for one take constant time:
// requests do that. What changes which models count looks at all of them. Not
// thread-safe.
class Places {
 public:
  // `places` ≥ 1. No model is served yet, and none asks.
  Places(size_t models, int places);

  // Whether the node serves `model`; one that it does not keeps no places.
  void SetServed(size_t model, bool served);
  // Whether `model` has had requests lately, at this node or another.
  void SetAsks(size_t model, bool asks);

  // Whether `model`, which is served and asks, may take one more.
  bool MayTake(size_t model) const;
  void Take(size_t model);
  void GiveBack(size_t model);

  int places() const { return places_; }
  int taken() const { return taken_; }
  int taken(size_t model) const { return models_[model].taken; }

 private:
  struct Model {
    int taken = 0;
    bool served = false;
    bool asks = false;
    bool counts() const { return served && asks; }
  };
  // What of a model's own places is free, and so kept from others.
  int KeptFor(const Model& model) const;
  void Recount();

  const int places_;
  std::vector<Model> models_;
  int taken_ = 0;
  int served_ = 0;
  int asking_ = 0;  // of those
  // Of Recount(): how many places each asking model has of its own, and the
  // sum of those that are free.
  int own_ = 0;
  int kept_ = 0;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_PLACES_H_
