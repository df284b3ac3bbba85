#ifndef REFRACT_TRANSPORT_SESSION_CLIENT_REGISTRY_H_
#define REFRACT_TRANSPORT_SESSION_CLIENT_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "transport/loop/waker.h"

namespace refract::transport {

// Finds the connections that belong to the same client, so that a superseded
// connection ends at once: a client that counts a connection as lost returns
// with a new epoch, while this side may still hold the old connection with
// requests that the client is about to send again. Thread-safe. Holds no more
// entries than there are connections.
class ClientRegistry {
 public:
  // A registered connection. Its destruction ends the registration. Move-only.
  class Entry {
   public:
    Entry() = default;  // no client name: never superseded
    Entry(Entry&& other) noexcept = default;
    Entry& operator=(Entry&& other) = delete;
    ~Entry();

    // Whether the client gave up this connection. Thread-safe.
    bool superseded() const {
      return flag_ != nullptr && flag_->load(std::memory_order_relaxed);
    }

   private:
    friend class ClientRegistry;
    ClientRegistry* registry_ = nullptr;
    std::string client_;
    // Shared with the registry's list.
    std::shared_ptr<std::atomic<bool>> flag_;
  };

  // Supersedes and wakes the connections of `client` whose epoch is below
  // `oldest_live`, and registers the new connection. Empty `client`: no effect.
  // The registry must outlive the entry.
  Entry Add(const std::string& client, uint64_t epoch, uint64_t oldest_live,
            std::shared_ptr<Waker> waker);

 private:
  struct Connection {
    uint64_t epoch = 0;
    std::shared_ptr<std::atomic<bool>> superseded;
    std::shared_ptr<Waker> waker;
  };
  void Remove(const std::string& client,
              const std::shared_ptr<std::atomic<bool>>& flag);

  absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::vector<Connection>> clients_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SESSION_CLIENT_REGISTRY_H_
