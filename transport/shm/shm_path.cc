#include "transport/shm/shm_path.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "transport/shm/factory.h"
#include "transport/shm/memfd.h"

namespace refract::transport::shm {
namespace {

// Only bounds the queues; a put is done when it is posted.
constexpr size_t kMaxOutstandingPuts = 4096;
constexpr size_t kMaxOutstandingGets = 16;  // as in the other data paths
// Completions that wait for a Poll without an allocation: a round of a large
// connection.
constexpr size_t kUsualCompletions = 128;
// A caller that never sleeps checks for the peer's death once in this many
// polls, because the check takes a system call.
constexpr int kPollsPerLook = 1024;

// Bytes of an expected put: a message's header, table and first payload.
constexpr size_t kExpectedBytes = 256;
constexpr size_t kCacheLineBytes = 64;

// Takes the cache lines from the processor that read them last, as a store to
// them would. Never faults, and changes no byte.
void PrefetchForStores(std::byte* begin, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kCacheLineBytes) {
#ifdef __x86_64__
    // The built-in function prefetches for loads here, and GCC 12 drops calls
    // of functions that do nothing else. Any x86-64 takes the instruction.
    asm volatile("prefetchw %0" : : "m"(begin[at]));
#else
    __builtin_prefetch(begin + at, /*rw=*/1);
#endif
  }
}

void PrefetchForLoads(const std::byte* begin) {
  for (size_t at = 0; at < kExpectedBytes; at += kCacheLineBytes) {
    __builtin_prefetch(begin + at);
  }
}

RingMemory* AsRing(const Mapping& memory) {
  // Zeroed pages are the initial state of every field.
  return reinterpret_cast<RingMemory*>(memory.data());
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataPath>> CreateShmPath(UniqueFd socket) {
  return ShmPath::Create(std::move(socket));
}

absl::StatusOr<std::unique_ptr<ShmPath>> ShmPath::Create(UniqueFd socket) {
  REFRACT_ASSIGN_OR_RETURN(const UniqueFd ring_fd,
                           CreateMemfd(sizeof(RingMemory)));
  REFRACT_ASSIGN_OR_RETURN(
      auto ring, Mapping::Shared(ring_fd.get(), sizeof(RingMemory), true));
  UniqueFd wake_me(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_me.valid()) return ErrnoStatus(errno, "eventfd");
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus(errno, "epoll_create1");
  // Only the socket's hang-up matters: Import reads file descriptors when
  // needed, and unexpected bytes must not keep the poller awake.
  for (const auto& [fd, events] :
       {std::pair<int, uint32_t>{socket.get(), EPOLLRDHUP},
        std::pair<int, uint32_t>{wake_me.get(), EPOLLIN}}) {
    epoll_event event = {};
    event.events = events;
    event.data.fd = fd;
    if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return ErrnoStatus(errno, "epoll_ctl of shared memory");
    }
  }
  REFRACT_RETURN_IF_ERROR(
      SendFds(socket.get(), {FdMessage::Kind::kRing, 0, sizeof(RingMemory)},
              {ring_fd.get(), wake_me.get()}));
  return std::unique_ptr<ShmPath>(new ShmPath(
      std::move(socket), std::move(epoll), std::move(wake_me), ring));
}

ShmPath::ShmPath(UniqueFd socket, UniqueFd epoll, UniqueFd wake_me,
                 std::shared_ptr<const Mapping> own_ring)
    : socket_(std::move(socket)),
      epoll_(std::move(epoll)),
      wake_me_(std::move(wake_me)),
      own_ring_(std::move(own_ring)),
      reader_(AsRing(*own_ring_)) {
  done_.Reserve(kUsualCompletions);
}

PathLimits ShmPath::limits() const {
  return {kMaxOutstandingPuts, kMaxOutstandingGets, kMaxTransferBytes,
          kMaxRegions};
}

absl::StatusOr<Region> ShmPath::CreateRegion(size_t bytes, Access access) {
  REFRACT_RETURN_IF_ERROR(CheckRoomForRegion(regions_.size()));
  // The peer never maps a local region, so it has no file; its place in
  // region_fds_ stays empty.
  if (access == Access::kLocal) {
    REFRACT_ASSIGN_OR_RETURN(auto memory, Mapping::Anonymous(bytes));
    region_fds_.emplace_back();
    return regions_.Add(std::move(memory), access);
  }
  REFRACT_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd(bytes));
  REFRACT_ASSIGN_OR_RETURN(auto memory, Mapping::Shared(fd.get(), bytes, true));
  region_fds_.push_back(std::move(fd));
  return regions_.Add(std::move(memory), access);
}

absl::StatusOr<std::string> ShmPath::Export(const Region& region) {
  REFRACT_ASSIGN_OR_RETURN(const RegionTable::Entry* const entry,
                           regions_.Export(region));
  const FdMessage message{FdMessage::Kind::kRegion, region.id, region.size()};
  const int memfd = region_fds_[region.id].get();
  // The kernel keeps the peer from writing where it may only read: it cannot
  // map a read-only descriptor for writing.
  if (entry->access == Access::kRemoteWrite) {
    REFRACT_RETURN_IF_ERROR(SendFds(socket_.get(), message, {memfd}));
  } else {
    REFRACT_ASSIGN_OR_RETURN(const UniqueFd read_only, ReopenReadOnly(memfd));
    REFRACT_RETURN_IF_ERROR(SendFds(socket_.get(), message, {read_only.get()}));
  }
  return absl::StrCat("shm:", region.id, ":", region.size(), ":",
                      static_cast<int>(entry->access));
}

// Create() of the peer sends the ring before any region, so it is the first
// message of the socket.
absl::Status ShmPath::TakeRing() {
  if (peer_ring_ != nullptr) return absl::OkStatus();
  REFRACT_ASSIGN_OR_RETURN(ReceivedFds received, ReceiveFds(socket_.get()));
  if (received.message.kind != FdMessage::Kind::kRing ||
      received.fds.size() != 2) {
    return absl::InvalidArgumentError("the peer did not pass its ring");
  }
  REFRACT_RETURN_IF_ERROR(
      CheckMemfd(received.fds[0].get(), sizeof(RingMemory)));
  REFRACT_RETURN_IF_ERROR(CheckEventfd(received.fds[1].get()));
  REFRACT_ASSIGN_OR_RETURN(
      peer_ring_,
      Mapping::Shared(received.fds[0].get(), sizeof(RingMemory), true));
  wake_peer_ = std::move(received.fds[1]);
  writer_.emplace(AsRing(*peer_ring_));
  return absl::OkStatus();
}

absl::StatusOr<RemoteRegion> ShmPath::Import(absl::string_view descriptor) {
  const std::vector<absl::string_view> parts = absl::StrSplit(descriptor, ':');
  RemoteRegion region;
  int access = 0;
  if (parts.size() != 4 || parts[0] != "shm" ||
      !absl::SimpleAtoi(parts[1], &region.id) ||
      !absl::SimpleAtoi(parts[2], &region.bytes) || region.bytes == 0 ||
      !absl::SimpleAtoi(parts[3], &access)) {
    return absl::InvalidArgumentError("not a region descriptor of shm");
  }
  if (peer_regions_.size() >= kMaxRegions || FindPeer(region.id) != nullptr) {
    return absl::InvalidArgumentError("too many regions, or the same twice");
  }
  REFRACT_RETURN_IF_ERROR(TakeRing());
  REFRACT_ASSIGN_OR_RETURN(const ReceivedFds received,
                           ReceiveFds(socket_.get()));
  if (received.message.kind != FdMessage::Kind::kRegion ||
      received.fds.size() != 1 || received.message.region != region.id ||
      received.message.bytes != region.bytes) {
    return absl::InvalidArgumentError(
        "the memory that came does not match its descriptor");
  }
  const int fd = received.fds.front().get();
  // The sealed size keeps the peer from shortening the file, which would turn
  // accesses of this process into SIGBUS.
  REFRACT_RETURN_IF_ERROR(CheckMemfd(fd, region.bytes));
  const bool writable = access == static_cast<int>(Access::kRemoteWrite);
  REFRACT_ASSIGN_OR_RETURN(auto memory,
                           Mapping::Shared(fd, region.bytes, writable));
  peer_regions_.push_back({region.id, std::move(memory), writable});
  return region;
}

const ShmPath::PeerRegion* ShmPath::FindPeer(uint32_t id) const {
  for (const PeerRegion& region : peer_regions_) {
    if (region.id == id) return &region;
  }
  return nullptr;
}

std::byte* ShmPath::Reach(const RemoteRegion& region, uint64_t offset,
                          size_t bytes, bool write) const {
  const PeerRegion* peer = FindPeer(region.id);
  if (peer == nullptr || peer->writable != write) return nullptr;
  const uint64_t size = peer->memory->size();
  if (offset > size || bytes > size - offset || bytes > kMaxTransferBytes) {
    return nullptr;
  }
  return peer->memory->data() + offset;
}

PostResult ShmPath::Put(const RemoteRegion& to, uint64_t offset,
                        absl::Span<const std::byte> source, uint64_t context) {
  if (!status_.ok() || peer_gone_) return PostResult::kBroken;
  std::byte* place = Reach(to, offset, source.size(), true);
  if (place == nullptr || (!source.empty() && !regions_.Contains(source))) {
    return PostResult::kInvalid;
  }
  if (outstanding_puts_ >= kMaxOutstandingPuts) return PostResult::kFull;
  ++outstanding_puts_;
  if (!source.empty()) std::memcpy(place, source.data(), source.size());
  done_.push_back({Completion::Kind::kPut, 0, context});
  return PostResult::kPosted;
}

PostResult ShmPath::PutNotify(const RemoteRegion& to, uint64_t offset,
                              absl::Span<const std::byte> source, uint32_t imm,
                              uint64_t context) {
  if (!status_.ok() || peer_gone_) return PostResult::kBroken;
  std::byte* place = Reach(to, offset, source.size(), true);
  if (place == nullptr || (!source.empty() && !regions_.Contains(source))) {
    return PostResult::kInvalid;
  }
  if (outstanding_puts_ >= kMaxOutstandingPuts) return PostResult::kFull;
  ++outstanding_puts_;
  if (!source.empty()) std::memcpy(place, source.data(), source.size());
  // Notifications keep their order: none goes to the ring while an earlier one
  // waits. The store of the entry in Push() comes after the copy above, so
  // the peer sees the bytes with the notification.
  if (waiting_.empty() && writer_->Push(imm)) {
    done_.push_back({Completion::Kind::kPut, 0, context});
    if (writer_->ReaderSleeps()) WakePeer();
  } else {
    waiting_.push_back({imm, context});
  }
  return PostResult::kPosted;
}

// The peer has read the lines of an earlier message. Without this, the next
// put's notification waits until its stores have got the lines back.
void ShmPath::ExpectPut(const RemoteRegion& to, uint64_t offset) {
  std::byte* const place = Reach(to, offset, kExpectedBytes, true);
  if (place != nullptr) PrefetchForStores(place, kExpectedBytes);
}

void ShmPath::PushNotifications() {
  bool pushed = false;
  while (!waiting_.empty() && writer_->Push(waiting_.front().imm)) {
    done_.push_back({Completion::Kind::kPut, 0, waiting_.front().context});
    waiting_.pop_front();
    pushed = true;
  }
  if (pushed && writer_->ReaderSleeps()) WakePeer();
}

PostResult ShmPath::Get(const RemoteRegion& from, uint64_t offset,
                        absl::Span<std::byte> destination, uint64_t context) {
  if (!status_.ok() || peer_gone_) return PostResult::kBroken;
  const std::byte* place = Reach(from, offset, destination.size(), false);
  if (place == nullptr ||
      (!destination.empty() && !regions_.Contains(destination))) {
    return PostResult::kInvalid;
  }
  if (outstanding_gets_ >= kMaxOutstandingGets) return PostResult::kFull;
  ++outstanding_gets_;
  if (!destination.empty()) {
    std::memcpy(destination.data(), place, destination.size());
  }
  done_.push_back({Completion::Kind::kGet, 0, context});
  return PostResult::kPosted;
}

size_t ShmPath::Poll(absl::Span<Completion> out) {
  if (armed_) {
    armed_ = false;
    reader_.AwakeAgain();
    LookAtEvents();
  } else if (++polls_since_look_ >= kPollsPerLook) {
    LookAtEvents();
  }
  if (writer_.has_value() && !waiting_.empty()) PushNotifications();
  // Notifications come last and only as far as `out` has room: those that are
  // left stay in the ring, whose fill level holds the peer back.
  size_t count = std::min(out.size(), done_.size());
  for (size_t i = 0; i < count; ++i) {
    out[i] = done_.front();
    done_.pop_front();
    --(out[i].kind == Completion::Kind::kPut ? outstanding_puts_
                                             : outstanding_gets_);
  }
  uint32_t imm;
  while (count < out.size() && status_.ok() && reader_.Pop(&imm)) {
    // All lines of the put come together, instead of one after the other.
    if (expected_ != nullptr) {
      PrefetchForLoads(std::exchange(expected_, nullptr));
    }
    out[count++] = {Completion::Kind::kNotify, imm, 0};
  }
  // Outside the loop: at most one store for all entries that were taken.
  if (reader_.Publish()) WakePeer();
  // Messages that the peer wrote before it died are still delivered.
  if (peer_gone_ && count == 0) {
    Break(PeerEnded("the peer process is gone"));
  }
  return count;
}

bool ShmPath::Arm() {
  if (!done_.empty() || !status_.ok() || peer_gone_) return false;
  // Sets the flag that asks the peer for a signal; false if the peer has made
  // room meanwhile.
  if (!waiting_.empty() && !writer_->WaitForRoom()) return false;
  armed_ = true;
  return reader_.PrepareSleep();
}

void ShmPath::LookAtEvents() {
  polls_since_look_ = 0;
  std::array<epoll_event, 2> events;
  const int count = epoll_wait(epoll_.get(), events.data(),
                               static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == socket_.get()) {
      peer_gone_ = true;
      continue;
    }
    uint64_t ignored;
    [[maybe_unused]] const ssize_t drained =
        read(wake_me_.get(), &ignored, sizeof(ignored));
  }
}

void ShmPath::WakePeer() {
  const uint64_t one = 1;
  // A full counter is readable as well.
  [[maybe_unused]] const ssize_t n = write(wake_peer_.get(), &one, sizeof(one));
}

void ShmPath::Break(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

}  // namespace refract::transport::shm
