#ifndef REFRACT_TRANSPORT_LOOP_INTRUSIVE_HEAP_H_
#define REFRACT_TRANSPORT_LOOP_INTRUSIVE_HEAP_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace refract::transport {

// Position of an object in its heap; a member of the object.
class HeapSlot {
 public:
  bool in_heap() const { return index_ != kOutside; }

 private:
  template <typename T, HeapSlot T::*slot, typename Before>
  friend class IntrusiveHeap;
  static constexpr size_t kOutside = ~size_t{0};
  size_t index_ = kOutside;
};

// Binary min-heap of objects that live elsewhere and know their position, so
// that any object is removed or moved in O(log n). Allocates only to hold more
// objects than ever before. `Before{}(a, b)`: a leaves first. Objects must not
// move while they are in the heap. Not thread-safe.
template <typename T, HeapSlot T::*slot, typename Before>
class IntrusiveHeap {
 public:
  bool empty() const { return items_.empty(); }
  size_t size() const { return items_.size(); }
  T* top() const { return items_.front(); }
  // In no order.
  absl::Span<T* const> items() const { return items_; }
  void Reserve(size_t count) { items_.reserve(count); }

  void Push(T* item) {
    items_.push_back(item);
    Up(items_.size() - 1, item);
  }
  T* Pop() {
    T* const first = top();
    Remove(first);
    return first;
  }
  void Remove(T* item) {
    const size_t at = std::exchange((item->*slot).index_, HeapSlot::kOutside);
    T* const last = items_.back();
    items_.pop_back();
    if (last != item) Place(at, last);
  }
  // Call when the key of `item`, which is in the heap, has changed.
  void Moved(T* item) { Place((item->*slot).index_, item); }

 private:
  void Set(size_t at, T* item) {
    items_[at] = item;
    (item->*slot).index_ = at;
  }
  void Place(size_t at, T* item) {
    if (at > 0 && Before{}(*item, *items_[(at - 1) / 2])) return Up(at, item);
    Down(at, item);
  }
  void Up(size_t at, T* item) {
    while (at > 0) {
      const size_t parent = (at - 1) / 2;
      if (!Before{}(*item, *items_[parent])) break;
      Set(at, items_[parent]);
      at = parent;
    }
    Set(at, item);
  }
  void Down(size_t at, T* item) {
    while (true) {
      size_t child = 2 * at + 1;
      if (child >= items_.size()) break;
      if (child + 1 < items_.size() &&
          Before{}(*items_[child + 1], *items_[child])) {
        ++child;
      }
      if (!Before{}(*items_[child], *item)) break;
      Set(at, items_[child]);
      at = child;
    }
    Set(at, item);
  }

  std::vector<T*> items_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LOOP_INTRUSIVE_HEAP_H_
