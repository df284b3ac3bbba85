// Requests and answers over the verbs data path cost no allocation, no
// registration and no copy: the device moves bytes from where they were written
// to where they are read. One thread, virtual time; what the simulator itself
// allocates is not counted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/transport/testing/allocation_counter.h"
#include "tests/transport/testing/endpoint_fixture.h"
#include "tests/transport/sim/paths.h"
#include "tests/transport/sim/spy_library.h"

namespace refract::transport::sim {
namespace {

using testing::IsEmpty;

// In flight at once.
constexpr size_t kMessages = 8;

class SimAllocationTest : public testing::Test {
 protected:
  struct End {
    End(Fabric& fabric, int host)
        : library(fabric.library(host)),
          registry(library, verbs::DeviceContext::Events::kPumped) {}
    SpyLibrary library;
    verbs::DeviceRegistry registry;
    std::unique_ptr<EndpointEnd> endpoint;
    // Messages that arrived and are kept.
    std::array<IncomingMessage::ImplPtr, kMessages> held;
    std::array<uint64_t, kMessages> ids = {};
    size_t num_held = 0;
  };

  SimAllocationTest()
      : client_(fabric_, fabric_.AddHost()),
        server_(fabric_, fabric_.AddHost()) {
    Limits limits;
    limits.max_in_flight = kMessages;
    limits.max_message_bytes = size_t{1} << 20;
    limits.source_arena_bytes = size_t{32} << 20;
    EndpointResources resources;
    for (size_t i = 0; i < 2; ++i) {
      End& end = i == 0 ? client_ : server_;
      resources[i] = std::make_unique<PathResources>(PathResources{
          *ThreadWaker::Create(), nullptr,
          std::make_shared<verbs::PollGroup>(end.registry, NoProbes())});
    }
    EndpointPair pair = ConnectEndpoints(proto::TRANSPORT_PATH_VERBS, limits,
                                         std::move(resources));
    client_.endpoint = std::move(pair.client);
    server_.endpoint = std::move(pair.server);
    for (End* end : {&client_, &server_}) {
      end->library.notes().requests.reserve(1000);
      end->endpoint->on_message = [end](const MessageHeader& header,
                                        IncomingMessage::ImplPtr message) {
        end->ids[end->num_held] = header.id;
        end->held[end->num_held++] = std::move(message);
        return absl::OkStatus();
      };
    }
  }
  ~SimAllocationTest() override {
    for (End* end : {&client_, &server_}) {
      for (IncomingMessage::ImplPtr& message : end->held) message.reset();
      end->endpoint.reset();
    }
    EXPECT_THAT(fabric_.violations(), IsEmpty());
  }

  // Until both ends have taken `count` messages in all. False: they do not
  // come.
  bool StepUntilHeld(size_t client, size_t server) {
    for (int i = 0; i < 1'000'000; ++i) {
      const absl::Time now = fabric_.Now();
      if (!client_.endpoint->Step(now).ok()) return false;
      if (!server_.endpoint->Step(now).ok()) return false;
      if (client_.num_held == client && server_.num_held == server) return true;
      const AllocationCounter::Pause pause;
      fabric_.Step();
    }
    return false;
  }
  // Until nothing of them is on its way.
  bool Settle() {
    while (true) {
      {
        const AllocationCounter::Pause pause;
        fabric_.RunUntilIdle();
      }
      client_.endpoint->worked = server_.endpoint->worked = 0;
      const absl::Time now = fabric_.Now();
      if (!client_.endpoint->Step(now).ok()) return false;
      if (!server_.endpoint->Step(now).ok()) return false;
      if (client_.endpoint->worked + server_.endpoint->worked == 0) return true;
    }
  }

  // One message, with `value` at its begin and end; where it was written, or
  // null.
  std::byte* Send(End& from, MessageKind kind, uint64_t id, uint8_t value,
                  absl::Span<const base::TensorSpec> specs) {
    auto message = NewMessage(from.endpoint->memory, kind, specs);
    if (!message.ok()) return nullptr;
    std::byte* const data =
        (*message)->block.data() + (*message)->layout.payload_begin;
    const size_t bytes =
        (*message)->layout.total_bytes - (*message)->layout.payload_begin;
    data[0] = data[bytes - 1] = std::byte{value};
    from.endpoint->endpoint->Send(*std::move(message), id,
                                  absl::InfiniteFuture());
    return data;
  }
  static bool Holds(const IncomingMessage::Impl& message, uint8_t value) {
    const base::TensorView& tensor = message.tensors.front();
    return tensor.data[0] == std::byte{value} &&
           tensor.data[tensor.bytes - 1] == std::byte{value};
  }

  // `count` requests at once, all held, then answered.
  bool Round(size_t count, absl::Span<const base::TensorSpec> specs) {
    ++round_;
    for (size_t i = 0; i < count; ++i) {
      if (Send(client_, MessageKind::kRequest, ++next_id_, uint8_t(round_ + i),
               specs) == nullptr) {
        return false;
      }
    }
    if (!StepUntilHeld(0, count)) return false;
    for (size_t i = 0; i < count; ++i) {
      const auto value = uint8_t(round_ + (server_.ids[i] - 1) % count);
      if (!Holds(*server_.held[i], value)) return false;
      if (Send(server_, MessageKind::kResponse, server_.ids[i], value, specs) ==
          nullptr) {
        return false;
      }
      server_.held[i].reset();
    }
    server_.num_held = 0;
    if (!StepUntilHeld(count, 0)) return false;
    for (size_t i = 0; i < count; ++i) {
      const auto value = uint8_t(round_ + (client_.ids[i] - 1) % count);
      if (!Holds(*client_.held[i], value)) return false;
      client_.held[i].reset();
    }
    client_.num_held = 0;
    return Settle();
  }

  void ExpectNoAllocations(size_t bytes, int rounds) {
    const std::vector<base::TensorSpec> specs = {
        {base::DType::kUInt8, {static_cast<int64_t>(bytes)}}};
    for (int i = 0; i < 20; ++i) {
      next_id_ = 0;
      ASSERT_TRUE(Round(kMessages, specs));
    }
    const uint64_t registrations = client_.library.notes().registrations +
                                   server_.library.notes().registrations;
    EXPECT_GT(registrations, 0u);
    bool ok = true;
    AllocationCounter::CountThisThread();
    AllocationCounter::Start();
    for (int i = 0; i < rounds && ok; ++i) {
      next_id_ = 0;
      ok = Round(kMessages, specs);
    }
    const uint64_t allocations = AllocationCounter::Stop();
    EXPECT_TRUE(ok);
    EXPECT_EQ(allocations, 0u) << "first\n" << AllocationCounter::Traces();
    EXPECT_EQ(client_.library.notes().registrations +
                  server_.library.notes().registrations,
              registrations);
  }

  Fabric fabric_{[] {
    FabricOptions options;
    options.seed = 7;
    return options;
  }()};
  End client_;
  End server_;
  uint64_t next_id_ = 0;
  uint32_t round_ = 0;
};

TEST_F(SimAllocationTest, EagerMessagesCostNone) {
  REFRACT_NEEDS_ALLOCATION_COUNTS();
  ExpectNoAllocations(3000, 250);
}

TEST_F(SimAllocationTest, PulledMessagesCostNone) {
  REFRACT_NEEDS_ALLOCATION_COUNTS();
  ExpectNoAllocations(200'000, 50);
}

// The only request with bytes is one from the memory that the sender wrote to
// that which the receiver reads.
TEST_F(SimAllocationTest, EagerMessagesAreNotCopied) {
  const std::vector<base::TensorSpec> specs = {{base::DType::kUInt8, {5000}}};
  const std::byte* const written =
      Send(client_, MessageKind::kRequest, 1, 9, specs);
  ASSERT_NE(written, nullptr);
  ASSERT_TRUE(StepUntilHeld(0, 1));
  const std::byte* const read = server_.held[0]->tensors[0].data;
  ASSERT_EQ(client_.library.notes().requests.size(), 1u);
  EXPECT_THAT(server_.library.notes().requests, IsEmpty());
  const SpyNotes::Request& request = client_.library.notes().requests[0];
  EXPECT_EQ(request.opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
  const size_t offset = static_cast<size_t>(written - request.local);
  EXPECT_LE(offset + 5000, request.bytes);
  EXPECT_EQ(request.remote + offset, reinterpret_cast<uintptr_t>(read));
  EXPECT_TRUE(Holds(*server_.held[0], 9));
}

// The description is written, and the receiver reads every byte of the payload
// once, from where it was written to where it stays.
TEST_F(SimAllocationTest, PulledMessagesAreNotCopied) {
  const std::vector<base::TensorSpec> specs = {
      {base::DType::kUInt8, {200'000}}};
  const std::byte* const written =
      Send(client_, MessageKind::kRequest, 1, 9, specs);
  ASSERT_NE(written, nullptr);
  ASSERT_TRUE(StepUntilHeld(0, 1));
  const std::byte* const read = server_.held[0]->tensors[0].data;
  ASSERT_EQ(client_.library.notes().requests.size(), 1u);
  EXPECT_LT(client_.library.notes().requests[0].bytes, 1000u);
  size_t bytes = 0;
  for (const SpyNotes::Request& request : server_.library.notes().requests) {
    EXPECT_EQ(request.opcode, IBV_WR_RDMA_READ);
    EXPECT_EQ(request.local, read + bytes);
    EXPECT_EQ(request.remote, reinterpret_cast<uintptr_t>(written + bytes));
    bytes += request.bytes;
  }
  EXPECT_EQ(bytes, 200'000u);
  EXPECT_TRUE(Holds(*server_.held[0], 9));
}

}  // namespace
}  // namespace refract::transport::sim
