// A shm DataPath against a peer that passes descriptors by hand.
#include "transport/shm/shm_path.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "transport/shm/memfd.h"

namespace refract::transport::shm {
namespace {

class ShmPathTest : public testing::Test {
 protected:
  ShmPathTest() { Open(); }

  void Open() {
    std::array<int, 2> fds;
    PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds.data()) ==
           0);
    peer_ = UniqueFd(fds[0]);
    auto path = ShmPath::Create(UniqueFd(fds[1]));
    CHECK(path.ok()) << path.status();
    path_ = *std::move(path);
    auto received = ReceiveFds(peer_.get());
    CHECK(received.ok()) << received.status();
    their_ring_ = std::move(*received);
  }
  static UniqueFd Event() { return UniqueFd(eventfd(0, EFD_CLOEXEC)); }
  // The peer passes a good ring and returns its memory.
  std::shared_ptr<const Mapping> PassRing() {
    const UniqueFd ring = *CreateMemfd(sizeof(RingMemory));
    const UniqueFd event = Event();
    CHECK(SendFds(peer_.get(), {FdMessage::Kind::kRing, 0, sizeof(RingMemory)},
                  {ring.get(), event.get()})
              .ok());
    return *Mapping::Shared(ring.get(), sizeof(RingMemory), true);
  }
  absl::Status Import(uint64_t bytes = 4096) {
    return path_->Import(absl::StrCat("shm:0:", bytes, ":2")).status();
  }
  void PassRegion(int fd, uint64_t bytes = 4096) {
    CHECK(
        SendFds(peer_.get(), {FdMessage::Kind::kRegion, 0, bytes}, {fd}).ok());
  }

  UniqueFd peer_;
  std::unique_ptr<ShmPath> path_;
  ReceivedFds their_ring_;
};

TEST_F(ShmPathTest, GoodMemoryIsTaken) {
  PassRing();
  PassRegion(CreateMemfd(4096)->get());
  EXPECT_TRUE(Import().ok());
}

TEST_F(ShmPathTest, MemoryThatCouldShrinkIsRefused) {
  PassRing();
  const UniqueFd open_ended(memfd_create("x", MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(open_ended.get(), 4096), 0);
  PassRegion(open_ended.get());
  EXPECT_EQ(Import().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ShmPathTest, ShorterMemoryThanAnnouncedIsRefused) {
  PassRing();
  PassRegion(CreateMemfd(4096)->get(), 8192);
  EXPECT_EQ(Import(8192).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ShmPathTest, OtherDescriptorsAreRefused) {
  PassRing();
  std::array<int, 2> pipe_fds;
  ASSERT_EQ(pipe(pipe_fds.data()), 0);
  PassRegion(pipe_fds[0]);
  EXPECT_EQ(Import().code(), absl::StatusCode::kInvalidArgument);

  // A pipe instead of an eventfd could block or kill the one who wakes.
  Open();
  const UniqueFd ring = *CreateMemfd(sizeof(RingMemory));
  ASSERT_TRUE(SendFds(peer_.get(),
                      {FdMessage::Kind::kRing, 0, sizeof(RingMemory)},
                      {ring.get(), pipe_fds[1]})
                  .ok());
  EXPECT_EQ(Import().code(), absl::StatusCode::kInvalidArgument);
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST_F(ShmPathTest, MissingOrMisplacedMessagesAreRefused) {
  EXPECT_EQ(Import().code(), absl::StatusCode::kNotFound);
  PassRegion(CreateMemfd(4096)->get());  // before the ring
  EXPECT_EQ(Import().code(), absl::StatusCode::kInvalidArgument);
  Open();
  PCHECK(write(peer_.get(), "garbage without descriptors", 27) == 27);
  EXPECT_EQ(Import().code(), absl::StatusCode::kInvalidArgument);
  Open();
  peer_.Reset(-1);
  EXPECT_EQ(Import().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ShmPathTest, OnlyTheNextEntryOfTheRingIsTaken) {
  auto ring =
      *Mapping::Shared(their_ring_.fds[0].get(), sizeof(RingMemory), true);
  auto* memory = reinterpret_cast<RingMemory*>(ring->data());
  std::array<Completion, 4> out;
  const auto poll = [&] { return path_->Poll(absl::MakeSpan(out)); };
  // Of a later lap, of an earlier position, and of the position after the next.
  for (const uint64_t position :
       {RingMemory::kCapacity, ~uint64_t{0}, uint64_t{1}}) {
    memory->entries[0] = RingMemory::Tag(position) | 5;
    EXPECT_EQ(poll(), 0u);
  }
  memory->entries[1] = RingMemory::Tag(1) | 6;
  EXPECT_EQ(poll(), 0u);
  EXPECT_TRUE(path_->Arm());
  memory->entries[0] = RingMemory::Tag(0) | 5;
  EXPECT_FALSE(path_->Arm());
  ASSERT_EQ(poll(), 2u);
  EXPECT_EQ(out[0].imm, 5u);
  EXPECT_EQ(out[1].imm, 6u);
  EXPECT_TRUE(path_->status().ok());
}

TEST_F(ShmPathTest, PositionsOfTheRingMayPassTheWidthOfTheirTag) {
  const auto memory = std::make_unique<RingMemory>();
  for (const uint64_t first : {uint64_t{0}, (uint64_t{1} << 32) - 10'000}) {
    RingWriter writer(memory.get(), first);
    RingReader reader(memory.get(), first);
    uint32_t imm;
    for (uint32_t i = 0; i < 20'000; ++i) {
      ASSERT_FALSE(reader.Pop(&imm));
      ASSERT_TRUE(writer.Push(~i));
      ASSERT_TRUE(reader.Pop(&imm));
      ASSERT_EQ(imm, ~i);
      reader.Publish();
    }
  }
}

TEST_F(ShmPathTest, ReaderThatLiesAboutItsPositionGainsNothing) {
  auto ring = PassRing();
  PassRegion(CreateMemfd(4096)->get());
  ASSERT_TRUE(Import().ok());
  auto* memory = reinterpret_cast<RingMemory*>(ring->data());
  memory->read = ~uint64_t{0} / 2;
  const RemoteRegion region{0, 4096};
  size_t posted = 0;
  while (path_->PutNotify(region, 0, {}, 1, 0) == PostResult::kPosted) {
    ASSERT_LE(++posted, 100'000u);
    std::array<Completion, 64> out;
    path_->Poll(absl::MakeSpan(out));
  }
  EXPECT_LE(posted,
            RingMemory::kCapacity + path_->limits().max_outstanding_puts);
}

TEST_F(ShmPathTest, RegionsToReadCannotBeMappedWritable) {
  auto region = path_->CreateRegion(4096, Access::kRemoteRead);
  ASSERT_TRUE(region.ok());
  ASSERT_TRUE(path_->Export(*region).ok());
  auto received = ReceiveFds(peer_.get());
  ASSERT_TRUE(received.ok());
  const int fd = received->fds.front().get();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
            MAP_FAILED);
  EXPECT_TRUE(Mapping::Shared(fd, 4096, false).ok());
}

}  // namespace
}  // namespace refract::transport::shm
