#include "transport/session/client_registry.h"

#include <utility>

namespace refract::transport {

ClientRegistry::Entry::~Entry() {
  // Moved-from entries have no flag any more.
  if (flag_ != nullptr) registry_->Remove(client_, flag_);
}

ClientRegistry::Entry ClientRegistry::Add(const std::string& client,
                                          uint64_t epoch, uint64_t oldest_live,
                                          std::shared_ptr<Waker> waker) {
  Entry entry;
  if (client.empty()) return entry;
  entry.registry_ = this;
  entry.client_ = client;
  entry.flag_ = std::make_shared<std::atomic<bool>>(false);
  std::vector<std::shared_ptr<Waker>> to_wake;
  {
    absl::MutexLock lock(&mu_);
    std::vector<Connection>& connections = clients_[client];
    for (Connection& connection : connections) {
      if (connection.epoch >= oldest_live) continue;
      connection.superseded->store(true, std::memory_order_relaxed);
      to_wake.push_back(connection.waker);
    }
    connections.push_back({epoch, entry.flag_, std::move(waker)});
  }
  for (const std::shared_ptr<Waker>& old : to_wake) old->Wake();
  return entry;
}

void ClientRegistry::Remove(const std::string& client,
                            const std::shared_ptr<std::atomic<bool>>& flag) {
  absl::MutexLock lock(&mu_);
  const auto found = clients_.find(client);
  std::erase_if(found->second, [&flag](const Connection& connection) {
    return connection.superseded == flag;
  });
  if (found->second.empty()) clients_.erase(found);
}

}  // namespace refract::transport
