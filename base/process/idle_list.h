#ifndef REFRACT_BASE_PROCESS_IDLE_LIST_H_
#define REFRACT_BASE_PROCESS_IDLE_LIST_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace refract::base {

// Hands values from threads of requests to a thread of idle priority
// (idle_thread.h). A mutex would let a request wait for the idle thread, which
// may lose its processor at any time, also while it holds the mutex. Push() is
// lock-free instead. The caller bounds the number of values (ByteBudget).
template <typename T>
class IdleList {
 public:
  IdleList() = default;
  IdleList(const IdleList&) = delete;
  IdleList& operator=(const IdleList&) = delete;
  // No other thread uses the list any more.
  ~IdleList() {
    Free(pushed_.load(std::memory_order_acquire));
    Free(taken_);
  }

  // Any thread. Never waits for another thread.
  void Push(T value) {
    Node* const node = new Node{std::move(value)};
    node->next = pushed_.load(std::memory_order_relaxed);
    while (!pushed_.compare_exchange_weak(node->next, node,
                                          std::memory_order_release,
                                          std::memory_order_relaxed)) {
    }
    Signal();
  }

  // Any thread: no value follows.
  void Close() {
    closed_.store(true, std::memory_order_release);
    Signal();
  }

  // One thread. The next value in the order of Push(), for which it waits;
  // nullopt: the list is closed and empty.
  std::optional<T> Next() {
    while (true) {
      // Read before the list: a later Push() ends the wait.
      const uint32_t signals = signals_.load(std::memory_order_acquire);
      const bool closed = closed_.load(std::memory_order_acquire);
      if (taken_ == nullptr) TakeAll();
      if (taken_ != nullptr) {
        const std::unique_ptr<Node> node(std::exchange(taken_, taken_->next));
        return std::move(node->value);
      }
      if (closed) return std::nullopt;
      signals_.wait(signals, std::memory_order_acquire);
    }
  }

 private:
  struct Node {
    T value;
    Node* next = nullptr;
  };

  void Signal() {
    signals_.fetch_add(1, std::memory_order_release);
    signals_.notify_one();
  }
  // The value pushed last is the first of `pushed_`, and the last of `taken_`.
  void TakeAll() {
    Node* node = pushed_.exchange(nullptr, std::memory_order_acquire);
    while (node != nullptr) {
      Node* const next = std::exchange(node->next, taken_);
      taken_ = std::exchange(node, next);
    }
  }
  static void Free(Node* node) {
    while (node != nullptr) delete std::exchange(node, node->next);
  }

  std::atomic<Node*> pushed_ = nullptr;
  std::atomic<uint32_t> signals_ = 0;  // calls of Push() and Close()
  std::atomic<bool> closed_ = false;
  Node* taken_ = nullptr;  // of the thread that calls Next()
};

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_IDLE_LIST_H_
