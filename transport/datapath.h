#ifndef REFRACT_TRANSPORT_DATAPATH_H_
#define REFRACT_TRANSPORT_DATAPATH_H_

// Moves bytes between two peers. The message layer uses this interface only and
// never learns which data path is below (transport/shm, tcp, verbs). Every data
// path passes the same suite, tests/transport/testing/datapath_conformance.h.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "transport/memory/mapping.h"

namespace refract::transport {

// Rights of the peer in a region. The owner may always read and write it.
enum class Access : uint8_t {
  kLocal,        // nothing: a destination of the owner's gets
  kRemoteRead,   // get
  kRemoteWrite,  // put
};

// Memory of this side that transfers start or end in. `memory` may outlive the
// DataPath; once the DataPath is gone, the peer no longer reaches `memory`.
struct Region {
  uint32_t id = 0;
  std::shared_ptr<const Mapping> memory;

  std::byte* data() const { return memory->data(); }
  size_t size() const { return memory->size(); }
};

// A region of the peer.
struct RemoteRegion {
  uint32_t id = 0;
  uint64_t bytes = 0;
};

// Per-operation result: an enum, because it is made once per message.
enum class PostResult {
  kPosted,
  kFull,     // too many outstanding: post again after Poll gave a completion
  kInvalid,  // outside the region, over a limit, or not of a Region
  kBroken,   // status() says why
};

struct Completion {
  enum class Kind : uint8_t {
    kPut,     // the source of the put `context` may be reused
    kGet,     // the destination of the get `context` is filled
    kNotify,  // the peer's put_notify `imm` and all its earlier puts are here
  };
  Kind kind = Kind::kPut;
  uint32_t imm = 0;
  uint64_t context = 0;
};

struct PathLimits {
  size_t max_outstanding_puts = 0;
  size_t max_outstanding_gets = 0;
  size_t max_transfer_bytes = 0;  // of one put or get
  size_t max_regions = 0;
};

// Operations that were posted and have not completed.
struct Outstanding {
  size_t puts = 0;
  size_t gets = 0;
};

struct PathCapabilities {
  // Poll costs no system call, so spinning on it makes sense.
  bool cheap_poll = false;
  // Whether a put or get needs no CPU time of the peer.
  bool one_sided = false;
};

// One end of a connected pair. Used by one thread at a time. No call blocks.
//
// Order: puts and put_notifies take effect in the order posted; a notification
// is delivered after the bytes of every put posted before it. Gets are answered
// in the order of gets, unordered against puts. A path may delay posted
// operations until the next Poll or Arm, which send them together.
//
// Failure: once the peer is gone or broke the rules, Poll returns earlier
// arrivals and then nothing, posts return kBroken and status() is an error:
// kUnavailable for a lost peer, kInvalidArgument for a broken rule. Operations
// under way then never complete; their memory is free again when the DataPath
// is destroyed.
class DataPath {
 public:
  virtual ~DataPath() = default;

  // Zeroed memory whose pages are allocated on first touch. Slow: only at
  // start-up. `bytes` > 0. ResourceExhausted: no memory or too many regions.
  virtual absl::StatusOr<Region> CreateRegion(size_t bytes, Access access) = 0;

  // Makes `region` reachable for the peer. The session hands the text to the
  // peer's Import unread.
  virtual absl::StatusOr<std::string> Export(const Region& region) = 0;
  // InvalidArgument: `descriptor` was not made by Export, or does not match the
  // memory behind it.
  virtual absl::StatusOr<RemoteRegion> Import(absl::string_view descriptor) = 0;

  // Copies `source`, which lies in a Region of this DataPath and stays
  // unchanged until the completion, to `offset` of `to`. Completes with kPut.
  virtual PostResult Put(const RemoteRegion& to, uint64_t offset,
                         absl::Span<const std::byte> source,
                         uint64_t context) = 0;
  // As Put, then notifies the peer. `source` may be empty.
  virtual PostResult PutNotify(const RemoteRegion& to, uint64_t offset,
                               absl::Span<const std::byte> source, uint32_t imm,
                               uint64_t context) = 0;
  // Fills `destination`, which lies in a Region of this DataPath. Completes
  // with kGet.
  virtual PostResult Get(const RemoteRegion& from, uint64_t offset,
                         absl::Span<std::byte> destination,
                         uint64_t context) = 0;

  // The next put will probably go to `offset` of `to`. A path may make that put
  // faster; nothing else changes.
  virtual void ExpectPut(const RemoteRegion& to, uint64_t offset) {}
  // The next notification will probably follow a put to `place`, which lies in
  // a Region of this DataPath. A path may make reading that put faster; nothing
  // else changes.
  virtual void ExpectNotify(const std::byte* place) {}

  // Makes progress and takes up to out.size() completions. Returns how many.
  virtual size_t Poll(absl::Span<Completion> out) = 0;

  // Call before sleeping. True: fd() will turn readable as soon as Poll has
  // work. False: Poll may have work now, so poll once more.
  virtual bool Arm() = 0;
  virtual int fd() const = 0;

  virtual Outstanding outstanding() const = 0;
  virtual absl::Status status() const = 0;
  virtual PathLimits limits() const = 0;
  virtual PathCapabilities capabilities() const = 0;
  // Name of the path's rail, such as a port of a device, "mlx5_0:1". A rail
  // fails and recovers on its own. Empty: paths of this kind have a single
  // rail.
  virtual std::string rail() const { return {}; }
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_DATAPATH_H_
