// A shared-memory data path whose peer passes any descriptors with any record,
// and writes anything to both rings while this side uses them.
#include <fcntl.h>
#include <glog/logging.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/target.h"
#include "transport/shm/memfd.h"
#include "transport/shm/shm_path.h"

namespace refract::fuzz {
namespace {

using namespace transport;
using shm::FdMessage;
using shm::RingMemory;
using shm::ShmPath;

constexpr size_t kRegionBytes = 4096;

enum Op : uint8_t {
  kRecord,     // u32 kind, u32 region, u64 bytes, u8 number of fds, u8 each
  kRaw,        // text: on the socket, without descriptors
  kImport,     // text
  kTheirRing,  // u8 field, u64: the ring in this side's memory
  kOurRing,    // u8 field, u64: the ring this side writes to
  kPut,        // u16 offset, u16 bytes, u8 region
  kGet,        // u16 offset, u16 bytes, u8 region
  kPoll,       // u8 completions
  kArm,
  kHangUp,
  kNumOps,
};
enum FdKind : uint8_t { kRing, kRegion, kShort, kUnsealed, kEvent, kPipe };
constexpr uint8_t kNumFdKinds = 6;

class Harness {
 public:
  Harness() {
    std::array<int, 2> fds;
    PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()) ==
           0);
    peer_ = UniqueFd(fds[0]);
    auto path = ShmPath::Create(UniqueFd(fds[1]));
    CHECK(path.ok()) << path.status();
    path_ = *std::move(path);
    auto ring = shm::ReceiveFds(peer_.get());
    CHECK(ring.ok()) << ring.status();
    their_ring_ =
        *Mapping::Shared(ring->fds.front().get(), sizeof(RingMemory), true);
    source_ = *path_->CreateRegion(kRegionBytes, Access::kRemoteRead);
    local_ = *path_->CreateRegion(kRegionBytes, Access::kLocal);
    std::fill_n(source_.data(), kRegionBytes, std::byte{0x51});
  }

  void Run(Input input) {
    while (!input.empty()) Step(input);
    Poll(64);
    CHECK(std::all_of(source_.data(), source_.data() + kRegionBytes,
                      [](std::byte x) { return x == std::byte{0x51}; }));
    const absl::StatusCode code = path_->status().code();
    CHECK(code == absl::StatusCode::kOk ||
          code == absl::StatusCode::kUnavailable ||
          code == absl::StatusCode::kInvalidArgument)
        << path_->status();
  }

 private:
  void Step(Input& input) {
    switch (input.U8() % kNumOps) {
      case kRecord: {
        FdMessage message;
        message.kind = static_cast<FdMessage::Kind>(input.U32());
        message.region = input.U32();
        message.bytes = input.U64();
        std::vector<UniqueFd> fds;
        std::vector<int> numbers;
        for (uint8_t count = input.U8() % 3; count > 0; --count) {
          fds.push_back(MakeFd(input.U8()));
          numbers.push_back(fds.back().get());
        }
        // Full buffers and records without descriptors are refused.
        if (!numbers.empty()) {
          shm::SendFds(peer_.get(), message, numbers).IgnoreError();
        }
        break;
      }
      case kRaw: {
        const absl::string_view bytes = input.Text();
        [[maybe_unused]] const ssize_t n =
            send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        break;
      }
      case kImport:
        path_->Import(input.Text()).IgnoreError();
        break;
      case kTheirRing:
        WriteRing(*their_ring_, input);
        break;
      case kOurRing:
        if (our_ring_ == nullptr) {
          input.Take(9);
        } else {
          WriteRing(*our_ring_, input);
        }
        break;
      case kPut: {
        const size_t offset = input.U16();
        const size_t bytes = input.U16() % (kRegionBytes + 1);
        path_->PutNotify({input.U8(), kRegionBytes}, offset,
                         {source_.data(), bytes}, 5, 1);
        break;
      }
      case kGet: {
        const size_t offset = input.U16();
        const size_t bytes = input.U16() % (kRegionBytes + 1);
        path_->Get({input.U8(), kRegionBytes}, offset, {local_.data(), bytes},
                   2);
        break;
      }
      case kPoll:
        Poll(input.U8() % 65);
        break;
      case kArm:
        path_->Arm();
        break;
      default:
        shutdown(peer_.get(), SHUT_WR);
    }
  }

  static void WriteRing(const Mapping& memory, Input& input) {
    auto* ring = reinterpret_cast<RingMemory*>(memory.data());
    const uint8_t field = input.U8();
    const uint64_t value = input.U64();
    switch (field % 5) {
      case 0:
        ring->entries[value % RingMemory::kCapacity] =
            RingMemory::Tag(value) | field;
        break;
      case 1:
        ring->read = value;
        break;
      case 2:
        ring->reader_sleeps = static_cast<uint32_t>(value);
        break;
      case 3:
        ring->writer_waits = static_cast<uint32_t>(value);
        break;
      default:
        ring->entries[field / 5] = value;
    }
  }

  UniqueFd MakeFd(uint8_t kind) {
    switch (kind % kNumFdKinds) {
      case kRing: {
        UniqueFd fd = *shm::CreateMemfd(sizeof(RingMemory));
        our_ring_ = *Mapping::Shared(fd.get(), sizeof(RingMemory), true);
        return fd;
      }
      case kRegion:
        return *shm::CreateMemfd(kRegionBytes);
      case kShort:
        return *shm::CreateMemfd(64);
      case kUnsealed: {
        UniqueFd fd(memfd_create("fuzz", MFD_ALLOW_SEALING | MFD_CLOEXEC));
        PCHECK(ftruncate(fd.get(), kRegionBytes) == 0);
        return fd;
      }
      case kEvent:
        return UniqueFd(eventfd(0, EFD_CLOEXEC));
      default: {
        std::array<int, 2> fds;
        PCHECK(pipe2(fds.data(), O_CLOEXEC) == 0);
        close(fds[0]);
        return UniqueFd(fds[1]);
      }
    }
  }

  void Poll(size_t room) {
    std::array<Completion, 64> out;
    CHECK_LE(path_->Poll({out.data(), std::min(room, out.size())}), room);
  }

  UniqueFd peer_;
  std::unique_ptr<ShmPath> path_;
  std::shared_ptr<const Mapping> their_ring_;
  std::shared_ptr<const Mapping> our_ring_;
  Region source_;
  Region local_;
};

void AddRecord(Script& script, FdMessage::Kind kind, uint32_t region,
               uint64_t bytes, std::initializer_list<FdKind> fds) {
  script.U8(kRecord)
      .U32(static_cast<uint32_t>(kind))
      .U32(region)
      .U64(bytes)
      .U8(static_cast<uint8_t>(fds.size()));
  for (const FdKind fd : fds) script.U8(fd);
}

Script Connected() {
  Script script;
  AddRecord(script, FdMessage::Kind::kRing, 0, sizeof(RingMemory),
            {kRing, kEvent});
  AddRecord(script, FdMessage::Kind::kRegion, 0, kRegionBytes, {kRegion});
  AddRecord(script, FdMessage::Kind::kRegion, 1, kRegionBytes, {kRegion});
  script.U8(kImport).Text(absl::StrCat("shm:0:", kRegionBytes, ":2"));
  script.U8(kImport).Text(absl::StrCat("shm:1:", kRegionBytes, ":1"));
  return script;
}

}  // namespace

std::vector<Seed> Seeds() {
  Script transfers = Connected();
  transfers.U8(kPut).U16(0).U16(4096).U8(0).U8(kGet).U16(1).U16(4095).U8(1);
  transfers.U8(kPut).U16(1).U16(4096).U8(0).U8(kPoll).U8(9).U8(kArm);
  transfers.U8(kTheirRing).U8(0).U64(0).U8(kTheirRing).U8(0).U64(1);
  transfers.U8(kPoll).U8(9).U8(kArm).U8(kHangUp).U8(kPoll).U8(9);
  Script lies = Connected();
  lies.U8(kOurRing).U8(1).U64(~uint64_t{0} / 2);
  lies.U8(kOurRing).U8(2).U64(1).U8(kPut).U16(0).U16(9).U8(0);
  lies.U8(kTheirRing).U8(4).U64(77).U8(kTheirRing).U8(0);
  lies.U64(RingMemory::kCapacity).U8(kPoll).U8(9);
  Script kinds;
  AddRecord(kinds, FdMessage::Kind::kRing, 0, sizeof(RingMemory),
            {kShort, kPipe});
  kinds.U8(kImport).Text(absl::StrCat("shm:0:", kRegionBytes, ":2"));
  Script unsealed;
  AddRecord(unsealed, FdMessage::Kind::kRing, 0, sizeof(RingMemory),
            {kRing, kEvent});
  AddRecord(unsealed, FdMessage::Kind::kRegion, 0, kRegionBytes, {kUnsealed});
  unsealed.U8(kImport).Text(absl::StrCat("shm:0:", kRegionBytes, ":2"));
  Script garbage;
  garbage.U8(kRaw).Text("sixteen bytes ok").U8(kImport).Text("shm:0:4096:2");
  garbage.U8(kImport).Text("shm:a:b:c").U8(kPoll).U8(1);
  return {{"transfers", transfers.bytes()},
          {"lies", lies.bytes()},
          {"kinds", kinds.bytes()},
          {"unsealed", unsealed.bytes()},
          {"garbage", garbage.bytes()}};
}

}  // namespace refract::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  refract::fuzz::Harness().Run(refract::fuzz::Input(data, size));
  return 0;
}
