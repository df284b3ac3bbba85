#ifndef REFRACT_TRANSPORT_VERBS_VERBS_PATH_H_
#define REFRACT_TRANSPORT_VERBS_VERBS_PATH_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/datapath.h"
#include "transport/verbs/descriptor.h"
#include "transport/verbs/device/device_choice.h"
#include "transport/verbs/hub.h"
#include "transport/verbs/options.h"
#include "transport/verbs/poll_group.h"
#include "transport/verbs/send_lane.h"

namespace refract::transport::verbs {

// DataPath over two reliable connected queue pairs. On the express pair, puts
// are RDMA writes and notifications their immediates. On the bulk pair, gets
// are RDMA reads, so that a long get does not delay a put.
//
// The first Import, or Connect before it, connects the queue pairs with those
// of the peer, which every descriptor names. Posts before it are kInvalid, and
// the peer must not post before this side is connected: its packets would be
// dropped.
//
// A lone put goes to the device at once; puts that follow while it is under way
// are collected for the next Poll or Arm.
class VerbsPath final : public DataPath {
 public:
  // Errors: the device's, and ResourceExhausted if its limits are reached.
  static absl::StatusOr<std::unique_ptr<VerbsPath>> Create(
      const std::shared_ptr<PollGroup>& group, const LocalAddress& address,
      const PathOptions& options);
  ~VerbsPath() override;

  // Connects the queue pairs to those of `peer`, before there is a region to
  // import; no effect if connected. Unavailable: this address has no route to
  // the peer's. After an error the path is broken.
  absl::Status Connect(const EndpointDescription& peer);

  absl::StatusOr<Region> CreateRegion(size_t bytes, Access access) override;
  absl::StatusOr<std::string> Export(const Region& region) override;
  // Besides the interface's errors: Unavailable if the queue pairs cannot be
  // connected, because there is no route between the two addresses.
  absl::StatusOr<RemoteRegion> Import(absl::string_view descriptor) override;
  PostResult Put(const RemoteRegion& to, uint64_t offset,
                 absl::Span<const std::byte> source, uint64_t context) override;
  PostResult PutNotify(const RemoteRegion& to, uint64_t offset,
                       absl::Span<const std::byte> source, uint32_t imm,
                       uint64_t context) override;
  PostResult Get(const RemoteRegion& from, uint64_t offset,
                 absl::Span<std::byte> destination, uint64_t context) override;
  size_t Poll(absl::Span<Completion> out) override;
  bool Arm() override;
  int fd() const override { return attached_.inbox->epoll.get(); }
  Outstanding outstanding() const override {
    return {express_.num_outstanding(), bulk_.num_outstanding()};
  }
  absl::Status status() const override { return status_; }
  PathLimits limits() const override;
  PathCapabilities capabilities() const override { return {true, true}; }
  std::string rail() const override {
    return RailOf(address_.device, address_.port);
  }

 private:
  struct OwnRegion {
    Region region;
    Access access = Access::kLocal;
    std::unique_ptr<MemoryRegion> registration;  // destroyed before the memory
    uint32_t local_key = 0;
  };

  VerbsPath(std::shared_ptr<CompletionHub> hub,
            CompletionHub::Attached attached, const LocalAddress& address,
            int numa_node, const PathOptions& options,
            const EndpointDescription& own);

  absl::StatusOr<Region> Register(std::shared_ptr<const Mapping> memory,
                                  Access access);
  absl::Status ConnectPair(QueuePair& pair, Lane lane,
                           const EndpointDescription& peer);
  const OwnRegion* Owner(const std::byte* begin, size_t bytes) const;
  // The common part of Put and Get: fills in `operation`, or returns the error.
  PostResult Prepare(SendLane& lane, const RemoteRegion& region, Access access,
                     uint64_t offset, const std::byte* local, size_t bytes,
                     Operation* operation) const;
  PostResult PostPut(const RemoteRegion& to, uint64_t offset,
                     absl::Span<const std::byte> source, bool notify,
                     uint32_t imm, uint64_t context);
  // Posts as many operations as the device and the peer have room for.
  void PostExpress();
  void PostBulk();
  void ReturnCredits();
  void OnDevice(int error);
  // The failure that the inbox reports, or OK.
  absl::Status FailureOf(const Inbox& inbox) const;
  void Break(absl::Status why);

  const std::shared_ptr<CompletionHub> hub_;
  const LocalAddress address_;
  const int numa_node_;  // of the memory; -1: any
  const PathOptions options_;
  const EndpointDescription own_;
  // Registrations outlive the queue pairs, which the destructor ends first, and
  // the domain outlives both.
  const std::unique_ptr<ProtectionDomain> domain_;
  std::vector<OwnRegion> regions_;
  CompletionHub::Attached attached_;
  SendLane express_;
  SendLane bulk_;
  std::optional<EndpointDescription> peer_;
  std::vector<RegionDescription> peer_regions_;
  absl::Status status_;
  // Not OK: posts fail, but notifications that arrived are still taken.
  absl::Status failing_;

  // Notifications, counted from the start; see PathOptions::notify_window.
  uint32_t sent_notes_ = 0;
  uint32_t acknowledged_notes_ = 0;  // by the peer
  uint32_t taken_notes_ = 0;
  uint32_t credited_notes_ = 0;  // to the peer
  bool probe_due_ = false;
};

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_VERBS_PATH_H_
