#ifndef REFRACT_TRANSPORT_SHM_SHM_PATH_H_
#define REFRACT_TRANSPORT_SHM_SHM_PATH_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/datapath.h"
#include "transport/loop/fd.h"
#include "transport/loop/ring_queue.h"
#include "transport/paths/region_table.h"
#include "transport/shm/ring.h"

namespace refract::transport::shm {

// DataPath over shared memory: regions are memory files that the peer maps, so
// puts and gets are copies made when posted. Notifications go through a ring in
// the receiver's memory; a sleeping receiver is woken by an eventfd.
// Descriptors travel over the unix socket in the order of Export.
class ShmPath final : public DataPath {
 public:
  static absl::StatusOr<std::unique_ptr<ShmPath>> Create(UniqueFd socket);

  absl::StatusOr<Region> CreateRegion(size_t bytes, Access access) override;
  absl::StatusOr<std::string> Export(const Region& region) override;
  absl::StatusOr<RemoteRegion> Import(absl::string_view descriptor) override;
  PostResult Put(const RemoteRegion& to, uint64_t offset,
                 absl::Span<const std::byte> source, uint64_t context) override;
  PostResult PutNotify(const RemoteRegion& to, uint64_t offset,
                       absl::Span<const std::byte> source, uint32_t imm,
                       uint64_t context) override;
  PostResult Get(const RemoteRegion& from, uint64_t offset,
                 absl::Span<std::byte> destination, uint64_t context) override;
  void ExpectPut(const RemoteRegion& to, uint64_t offset) override;
  void ExpectNotify(const std::byte* place) override { expected_ = place; }
  size_t Poll(absl::Span<Completion> out) override;
  bool Arm() override;
  int fd() const override { return epoll_.get(); }
  Outstanding outstanding() const override {
    return {outstanding_puts_, outstanding_gets_};
  }
  absl::Status status() const override { return status_; }
  PathLimits limits() const override;
  PathCapabilities capabilities() const override { return {true, true}; }

 private:
  struct PeerRegion {
    uint32_t id = 0;
    std::shared_ptr<const Mapping> memory;
    bool writable = false;
  };
  struct Notification {
    uint32_t imm = 0;
    uint64_t context = 0;
  };

  ShmPath(UniqueFd socket, UniqueFd epoll, UniqueFd wake_me,
          std::shared_ptr<const Mapping> own_ring);

  absl::Status TakeRing();
  const PeerRegion* FindPeer(uint32_t id) const;
  // Address of the peer's bytes; null if out of range.
  std::byte* Reach(const RemoteRegion& region, uint64_t offset, size_t bytes,
                   bool write) const;
  // Moves waiting notifications into the peer's ring.
  void PushNotifications();
  void WakePeer();
  // Clears a wake-up, and checks whether the peer is gone.
  void LookAtEvents();
  void Break(absl::Status status);

  const UniqueFd socket_;
  const UniqueFd epoll_;
  const UniqueFd wake_me_;  // eventfd that the peer signals
  UniqueFd wake_peer_;
  absl::Status status_;
  bool peer_gone_ = false;
  bool armed_ = false;
  int polls_since_look_ = 0;
  RegionTable regions_;
  std::vector<UniqueFd> region_fds_;  // by region id
  std::vector<PeerRegion> peer_regions_;

  std::shared_ptr<const Mapping> own_ring_;   // written by the peer
  std::shared_ptr<const Mapping> peer_ring_;  // null until Import
  RingReader reader_;
  const std::byte* expected_ = nullptr;  // ExpectNotify's, until an entry comes
  std::optional<RingWriter> writer_;

  RingQueue<Notification> waiting_;  // for room in the peer's ring
  size_t outstanding_puts_ = 0;
  size_t outstanding_gets_ = 0;
  RingQueue<Completion> done_;  // puts and gets
};

}  // namespace refract::transport::shm

#endif  // REFRACT_TRANSPORT_SHM_SHM_PATH_H_
