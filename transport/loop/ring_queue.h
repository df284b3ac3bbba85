#ifndef REFRACT_TRANSPORT_LOOP_RING_QUEUE_H_
#define REFRACT_TRANSPORT_LOOP_RING_QUEUE_H_

#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

namespace refract::transport {

// A queue, first in, first out. Unlike std::deque it allocates only to hold
// more than ever before. T is movable; unused slots hold a default-constructed
// T. Not thread-safe.
template <typename T>
class RingQueue {
 public:
  // Reserves room for `count` values.
  void Reserve(size_t count) {
    if (count > slots_.size()) Grow(std::bit_ceil(count));
  }
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T& front() { return slots_[begin_]; }
  const T& front() const { return slots_[begin_]; }
  // `i` < size(), from the front.
  T& operator[](size_t i) { return slots_[Wrap(begin_ + i)]; }
  const T& operator[](size_t i) const { return slots_[Wrap(begin_ + i)]; }

  T& push_back(T value) {
    if (size_ == slots_.size()) Grow(slots_.empty() ? 8 : 2 * slots_.size());
    T& slot = slots_[Wrap(begin_ + size_++)];
    slot = std::move(value);
    return slot;
  }
  // Destroys the value.
  void pop_front() {
    slots_[begin_] = T();
    begin_ = Wrap(begin_ + 1);
    --size_;
  }
  void clear() {
    while (!empty()) pop_front();
  }

 private:
  size_t Wrap(size_t i) const { return i & (slots_.size() - 1); }
  void Grow(size_t slots) {
    std::vector<T> larger(slots);
    for (size_t i = 0; i < size_; ++i) larger[i] = std::move((*this)[i]);
    slots_.swap(larger);
    begin_ = 0;
  }

  std::vector<T> slots_;  // size: a power of two
  size_t begin_ = 0;
  size_t size_ = 0;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LOOP_RING_QUEUE_H_
