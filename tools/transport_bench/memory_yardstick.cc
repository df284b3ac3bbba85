#include "tools/transport_bench/memory_yardstick.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "tools/transport_bench/pattern.h"
#include "tools/transport_bench/waiter.h"
#include "transport/loop/fd.h"

namespace refract::transport_bench {
namespace {

// A store that the other side sees, alone on its pair of lines (adjacent lines
// are fetched together).
struct Flag {
  alignas(128) std::atomic<uint64_t> value;
};

struct Block {
  std::array<Flag, 2> flags;  // by the side that writes
};

// The memory and descriptors of both sides, mapped at the same address in both.
class SharedBlock {
 public:
  static absl::StatusOr<std::shared_ptr<SharedBlock>> Create(
      size_t ring_bytes) {
    const size_t bytes = sizeof(Block) + 2 * ring_bytes;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return transport::ErrnoStatus(errno, "mmap");
    auto block = std::shared_ptr<SharedBlock>(
        new SharedBlock(memory, bytes, ring_bytes));
    for (transport::UniqueFd& fd : block->events_) {
      fd = transport::UniqueFd(eventfd(0, EFD_CLOEXEC));
      if (!fd.valid()) return transport::ErrnoStatus(errno, "eventfd");
    }
    return block;
  }
  ~SharedBlock() { munmap(memory_, bytes_); }

  std::atomic<uint64_t>& flag(Side from) const {
    return static_cast<Block*>(memory_)->flags[static_cast<size_t>(from)].value;
  }
  int event(Side from) const {
    return events_[static_cast<size_t>(from)].get();
  }
  std::byte* ring(Side from) const {
    return static_cast<std::byte*>(memory_) + sizeof(Block) +
           (from == Side::kInitiator ? 0 : ring_bytes_);
  }

 private:
  SharedBlock(void* memory, size_t bytes, size_t ring_bytes)
      : memory_(memory), bytes_(bytes), ring_bytes_(ring_bytes) {
    new (memory) Block();
  }

  void* const memory_;
  const size_t bytes_;
  const size_t ring_bytes_;
  std::array<transport::UniqueFd, 2> events_;
};

class MemorySession : public Session {
 public:
  MemorySession(Side side, std::shared_ptr<SharedBlock> shared)
      : side_(side),
        peer_(side == Side::kInitiator ? Side::kResponder : Side::kInitiator),
        shared_(std::move(shared)),
        // Flags count on from the last session's values.
        base_(shared_->flag(side).load()) {}

  absl::Status Run(const Work& work, Recorder& recorder) override {
    work_ = work;
    own_.resize(Stride(work.point.bytes) *
                static_cast<size_t>(work.outstanding));
    if (work.point.op == Op::kPingPong) {
      const absl::Status status = PingPong(recorder);
      base_ += static_cast<uint64_t>(work.iterations);
      return status;
    }
    if (side_ == Side::kResponder) return absl::OkStatus();
    return Copy(recorder);
  }

 private:
  absl::Status PingPong(Recorder& recorder) {
    recorder.Start();
    for (int i = 0; i < work_.iterations; ++i) {
      if (side_ == Side::kInitiator) {
        REFRACT_RETURN_IF_ERROR(Tell(i));
        REFRACT_RETURN_IF_ERROR(Await(i));
        recorder.Lap();
      } else {
        REFRACT_RETURN_IF_ERROR(Await(i));
        REFRACT_RETURN_IF_ERROR(Tell(i));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Tell(int i) {
    const size_t bytes = work_.point.bytes;
    if (bytes > kLineBytes) {
      std::byte* source = own_.data() + Slot(i);
      if (work_.verify) FillPattern({source, bytes}, work_.seed, side_, i);
      std::memcpy(shared_->ring(side_) + Slot(i), source, bytes);
    }
    if (work_.point.mode == Mode::kEvent) {
      const uint64_t one = 1;
      if (write(shared_->event(side_), &one, sizeof(one)) != sizeof(one)) {
        return transport::ErrnoStatus(errno, "write to an eventfd");
      }
      return absl::OkStatus();
    }
    shared_->flag(side_).store(base_ + static_cast<uint64_t>(i) + 1,
                               std::memory_order_release);
    return absl::OkStatus();
  }

  absl::Status Await(int i) {
    if (work_.point.mode == Mode::kEvent) {
      uint64_t count = 0;
      pollfd fd = {shared_->event(peer_), POLLIN, 0};
      // Without poll, the read would never return once the peer is gone.
      if (poll(&fd, 1, Waiter::kPatienceSeconds * 1000) != 1) {
        return absl::DeadlineExceededError("the peer does not answer");
      }
      if (read(fd.fd, &count, sizeof(count)) != sizeof(count)) {
        return transport::ErrnoStatus(errno, "read of an eventfd");
      }
    } else {
      const std::atomic<uint64_t>& flag = shared_->flag(peer_);
      const uint64_t expected = base_ + static_cast<uint64_t>(i) + 1;
      while (flag.load(std::memory_order_acquire) != expected) {
        REFRACT_RETURN_IF_ERROR(waiter_.Idle());
      }
      waiter_.Worked();
    }
    const size_t bytes = work_.point.bytes;
    if (!work_.verify || bytes <= kLineBytes) return absl::OkStatus();
    return CheckPattern({shared_->ring(peer_) + Slot(i), bytes}, work_.seed,
                        peer_, i);
  }

  absl::Status Copy(Recorder& recorder) {
    const bool out = work_.point.op == Op::kStream;
    const size_t bytes = work_.point.bytes;
    recorder.Start();
    for (int i = 0; i < work_.iterations; ++i) {
      std::byte* own = own_.data() + Slot(i);
      std::byte* shared = shared_->ring(side_) + Slot(i);
      std::byte* from = out ? own : shared;
      std::byte* to = out ? shared : own;
      if (work_.verify) FillPattern({from, bytes}, work_.seed, side_, i);
      std::memcpy(to, from, bytes);
      // Without a reader the compiler may drop the copy.
      asm volatile("" : : "r"(to) : "memory");
      if (work_.verify) {
        REFRACT_RETURN_IF_ERROR(
            CheckPattern({to, bytes}, work_.seed, side_, i));
      }
      if (!IsStream(work_.point.op)) recorder.Lap();
    }
    recorder.Stop();
    return absl::OkStatus();
  }

  size_t Slot(int i) const {
    return Stride(work_.point.bytes) *
           static_cast<size_t>(i % work_.outstanding);
  }

  static constexpr size_t kLineBytes = 64;

  const Side side_;
  const Side peer_;
  const std::shared_ptr<SharedBlock> shared_;
  uint64_t base_;
  Work work_;
  Waiter waiter_;
  std::vector<std::byte> own_;
};

class MemorySubject : public Subject {
 public:
  explicit MemorySubject(std::shared_ptr<SharedBlock> shared)
      : shared_(std::move(shared)) {}

  bool Supports(const Point& point) const override {
    // A copy knows no waiting, so it has one row, among the busy ones.
    return point.op == Op::kPingPong ||
           (point.op != Op::kPull && point.op != Op::kFanIn &&
            point.mode != Mode::kEvent);
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const override {
    if (setup.side == Side::kInitiator) {
      // Whatever an interrupted session left.
      for (const Side side : {Side::kInitiator, Side::kResponder}) {
        shared_->flag(side).store(0);
        pollfd fd = {shared_->event(side), POLLIN, 0};
        uint64_t ignored;
        if (poll(&fd, 1, 0) == 1) {
          [[maybe_unused]] const ssize_t n =
              read(fd.fd, &ignored, sizeof(ignored));
        }
      }
      REFRACT_RETURN_IF_ERROR(setup.control->Send("clear"));
    } else {
      REFRACT_RETURN_IF_ERROR(setup.control->Receive().status());
    }
    return std::make_unique<MemorySession>(setup.side, shared_);
  }

 private:
  const std::shared_ptr<SharedBlock> shared_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Subject>> MemoryYardstick(size_t max_bytes) {
  REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<SharedBlock> shared,
                           SharedBlock::Create(max_bytes));
  return std::make_unique<MemorySubject>(std::move(shared));
}

}  // namespace refract::transport_bench
