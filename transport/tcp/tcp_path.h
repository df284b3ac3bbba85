#ifndef REFRACT_TRANSPORT_TCP_TCP_PATH_H_
#define REFRACT_TRANSPORT_TCP_TCP_PATH_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/datapath.h"
#include "transport/loop/fd.h"
#include "transport/loop/ring_queue.h"
#include "transport/loop/stream.h"
#include "transport/paths/region_table.h"
#include "transport/tcp/frame.h"

namespace refract::transport::tcp {

// DataPath over a stream. Puts become frames whose payload the receiver
// reads directly into the named region; the owner's Poll answers gets. Payload
// is sent from its place (sendmsg with a vector), and received without a copy,
// except for bytes that arrive in one read with a frame header. With TLS,
// encryption and decryption copy each byte once.
class TcpPath final : public DataPath {
 public:
  static absl::StatusOr<std::unique_ptr<TcpPath>> Create(Stream socket);

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
  size_t Poll(absl::Span<Completion> out) override;
  bool Arm() override;
  int fd() const override { return epoll_.get(); }
  Outstanding outstanding() const override {
    return {outstanding_puts_, gets_.size()};
  }
  absl::Status status() const override { return status_; }
  PathLimits limits() const override;
  PathCapabilities capabilities() const override { return {}; }

 private:
  // A frame to send: header, then `payload` from its place.
  struct SendOp {
    std::array<std::byte, kFrameBytes> header;
    absl::Span<const std::byte> payload;
    bool completes_put = false;
    uint64_t context = 0;
  };
  struct PendingGet {
    absl::Span<std::byte> destination;
    uint64_t context = 0;
  };

  TcpPath(Stream socket, UniqueFd epoll);

  PostResult PostPut(FrameType type, const RemoteRegion& to, uint64_t offset,
                     absl::Span<const std::byte> source, uint32_t imm,
                     uint64_t context);
  // Moves queued frames to `wire_`, puts first.
  void Schedule();
  void Send();
  // Reads and handles frames until none is left, `room` completions wait, or
  // the call's share is used up.
  void Receive(size_t room);
  bool ReadSome();
  void HandleStaged(size_t room);
  void StartFrame(const Frame& frame);
  void FinishFrame();
  void Break(absl::Status status);

  Stream socket_;
  const UniqueFd epoll_;
  absl::Status status_;
  absl::Status send_error_;  // becomes status_ once all arrived bytes are read
  RegionTable regions_;
  bool waiting_for_room_ = false;  // epoll also watches for EPOLLOUT

  // Sending. Puts keep their order, and so do get replies; a put may overtake
  // waiting replies, so that long replies do not delay short messages.
  RingQueue<SendOp> puts_;
  RingQueue<SendOp> replies_;
  RingQueue<SendOp> wire_;  // fixed order; the first may be partly sent
  size_t wire_sent_ = 0;    // of the first, header included
  size_t outstanding_puts_ = 0;

  // Receiving.
  std::vector<std::byte> staging_;
  size_t staged_begin_ = 0;
  size_t staged_end_ = 0;
  bool in_payload_ = false;
  Frame frame_;                    // valid while in_payload_
  absl::Span<std::byte> landing_;  // place for the rest of its payload
  RingQueue<PendingGet> gets_;

  RingQueue<Completion> done_;
};

}  // namespace refract::transport::tcp

#endif  // REFRACT_TRANSPORT_TCP_TCP_PATH_H_
