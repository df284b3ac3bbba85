// Raw verbs without Refract's code: checks that the device, soft-RoCE in the
// virtual machine or a NIC, behaves as the engine expects. A failure here is a
// failure of the machine, not of the transport.

#include <endian.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/rdma_vm/hw_counters.h"

namespace refract::rdma_vm {
namespace {

constexpr size_t kBufferBytes = 256 << 10;
constexpr uint8_t kPort = 1;
constexpr auto kPatience = std::chrono::seconds(20);

// Calls ibv_close_device, ibv_dealloc_pd, …
template <auto close>
struct Closer {
  template <typename T>
  void operator()(T* object) const {
    EXPECT_EQ(close(object), 0);
  }
};
template <typename T, auto close>
using Handle = std::unique_ptr<T, Closer<close>>;

// One side: device, queue pair and a registered buffer.
struct Side {
  std::string device;
  Handle<ibv_context, ibv_close_device> context;
  Handle<ibv_pd, ibv_dealloc_pd> domain;
  std::vector<uint8_t> buffer = std::vector<uint8_t>(kBufferBytes);
  Handle<ibv_mr, ibv_dereg_mr> region;
  Handle<ibv_cq, ibv_destroy_cq> completions;
  Handle<ibv_qp, ibv_destroy_qp> queue_pair;
  uint8_t gid_index = 0;
  ibv_gid gid = {};
};

// Devices that the test may use, one or two (README.md).
std::vector<std::string> DeviceNames() {
  std::vector<std::string> names;
  if (const char* list = std::getenv("REFRACT_RDMA_DEVICES")) {
    std::stringstream stream(list);
    for (std::string name; std::getline(stream, name, ',');) {
      names.push_back(name);
    }
  }
  return names;
}

Handle<ibv_context, ibv_close_device> OpenDevice(const std::string& name) {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  Handle<ibv_context, ibv_close_device> context;
  for (int i = 0; devices != nullptr && i < count; ++i) {
    if (name == ibv_get_device_name(devices[i])) {
      context.reset(ibv_open_device(devices[i]));
    }
  }
  if (devices != nullptr) ibv_free_device_list(devices);
  return context;
}

// The first routable RoCE v2 address: an IPv4 one where there is one.
bool FindGid(Side& side) {
  for (uint32_t index = 0; index < 32; ++index) {
    ibv_gid_entry entry = {};
    if (ibv_query_gid_ex(side.context.get(), kPort, index, &entry, 0) != 0 ||
        entry.gid_type == IBV_GID_TYPE_ROCE_V1) {
      continue;
    }
    const bool mapped_ipv4 = entry.gid.global.subnet_prefix == 0 &&
                             entry.gid.raw[10] == 0xff &&
                             entry.gid.raw[11] == 0xff;
    if (mapped_ipv4 || entry.gid_type == IBV_GID_TYPE_IB) {
      side.gid_index = static_cast<uint8_t>(index);
      side.gid = entry.gid;
      return true;
    }
  }
  return false;
}

void Open(const std::string& device, Side& side) {
  side.device = device;
  side.context = OpenDevice(device);
  ASSERT_NE(side.context, nullptr) << device << ": " << strerror(errno);
  ASSERT_TRUE(FindGid(side)) << device;
  side.domain.reset(ibv_alloc_pd(side.context.get()));
  ASSERT_NE(side.domain, nullptr);
  side.region.reset(
      ibv_reg_mr(side.domain.get(), side.buffer.data(), side.buffer.size(),
                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                     IBV_ACCESS_REMOTE_READ));
  ASSERT_NE(side.region, nullptr) << strerror(errno);
  side.completions.reset(
      ibv_create_cq(side.context.get(), 64, nullptr, nullptr, 0));
  ASSERT_NE(side.completions, nullptr) << strerror(errno);
  ibv_qp_init_attr attributes = {};
  attributes.send_cq = side.completions.get();
  attributes.recv_cq = side.completions.get();
  attributes.cap = {.max_send_wr = 16,
                    .max_recv_wr = 16,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = 0};
  attributes.qp_type = IBV_QPT_RC;
  side.queue_pair.reset(ibv_create_qp(side.domain.get(), &attributes));
  ASSERT_NE(side.queue_pair, nullptr) << strerror(errno);
}

// INIT, ready to receive, ready to send.
void Connect(Side& side, const Side& peer) {
  ibv_port_attr port = {};
  ASSERT_EQ(ibv_query_port(side.context.get(), kPort, &port), 0);
  ibv_qp_attr init = {};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = kPort;
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  ASSERT_EQ(ibv_modify_qp(side.queue_pair.get(), &init,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                              IBV_QP_ACCESS_FLAGS),
            0);
  ibv_qp_attr receive = {};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = port.active_mtu;
  receive.dest_qp_num = peer.queue_pair->qp_num;
  receive.max_dest_rd_atomic = 4;
  receive.min_rnr_timer = 12;
  receive.ah_attr.is_global = 1;
  receive.ah_attr.port_num = kPort;
  receive.ah_attr.grh.dgid = peer.gid;
  receive.ah_attr.grh.sgid_index = side.gid_index;
  receive.ah_attr.grh.hop_limit = 64;
  ASSERT_EQ(ibv_modify_qp(side.queue_pair.get(), &receive,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                              IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            0);
  ibv_qp_attr send = {};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = 14;
  send.retry_cnt = 6;  // 7 never ends on soft-RoCE
  send.rnr_retry = 6;
  send.max_rd_atomic = 4;
  ASSERT_EQ(ibv_modify_qp(side.queue_pair.get(), &send,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                              IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                              IBV_QP_MAX_QP_RD_ATOMIC),
            0);
}

ibv_wc WaitForCompletion(Side& side) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  ibv_wc completion = {};
  completion.status = IBV_WC_GENERAL_ERR;
  while (ibv_poll_cq(side.completions.get(), 1, &completion) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "no completion on " << side.device;
      break;
    }
    std::this_thread::yield();
  }
  return completion;
}

// Moves `bytes` between the starts of the two buffers.
void Post(Side& from, const Side& to, ibv_wr_opcode opcode, uint32_t bytes,
          uint32_t immediate) {
  ibv_sge piece = {.addr = reinterpret_cast<uintptr_t>(from.buffer.data()),
                   .length = bytes,
                   .lkey = from.region->lkey};
  ibv_send_wr request = {};
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = opcode;
  request.send_flags = IBV_SEND_SIGNALED;
  request.imm_data = htobe32(immediate);
  request.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(to.buffer.data());
  request.wr.rdma.rkey = to.region->rkey;
  ibv_send_wr* rejected = nullptr;
  ASSERT_EQ(ibv_post_send(from.queue_pair.get(), &request, &rejected), 0);
}

void PostReceive(Side& side) {
  ibv_recv_wr request = {};  // no memory: WRITE_WITH_IMM places its own bytes
  ibv_recv_wr* rejected = nullptr;
  ASSERT_EQ(ibv_post_recv(side.queue_pair.get(), &request, &rejected), 0);
}

void Fill(Side& side) {
  std::iota(side.buffer.begin(), side.buffer.end(), uint8_t{1});
}

// Exactly the first `bytes` of `from` are in `to`.
void ExpectCopied(const Side& from, const Side& to, size_t bytes) {
  EXPECT_TRUE(std::equal(from.buffer.begin(), from.buffer.begin() + bytes,
                         to.buffer.begin()));
  EXPECT_EQ(to.buffer[bytes], 0) << "written past the end";
}

class VerbsSmokeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::string> names = DeviceNames();
    if (names.empty()) {
      GTEST_SKIP() << "no RDMA device: run by tests/rdma_vm/run_in_vm";
    }
    ASSERT_NO_FATAL_FAILURE(Open(names.front(), left_));
    ASSERT_NO_FATAL_FAILURE(Open(names.back(), right_));
    ASSERT_NO_FATAL_FAILURE(Connect(left_, right_));
    ASSERT_NO_FATAL_FAILURE(Connect(right_, left_));
  }

  // Sum over both ends. Where both are one device it counts twice: no harm.
  int64_t NotReady() const {
    return ReadReceiverNotReady(left_.device) +
           ReadReceiverNotReady(right_.device);
  }

  Side left_, right_;
};

TEST_F(VerbsSmokeTest, WriteWithImmediateMovesBytesAndNotifies) {
  const int64_t not_ready = NotReady();
  Fill(left_);
  for (const uint32_t bytes : {0u, 64u, 4096u, 65536u}) {
    SCOPED_TRACE(bytes);
    ASSERT_NO_FATAL_FAILURE(PostReceive(right_));
    ASSERT_NO_FATAL_FAILURE(
        Post(left_, right_, IBV_WR_RDMA_WRITE_WITH_IMM, bytes, bytes + 7));
    EXPECT_EQ(WaitForCompletion(left_).status, IBV_WC_SUCCESS);
    const ibv_wc received = WaitForCompletion(right_);
    ASSERT_EQ(received.status, IBV_WC_SUCCESS);
    EXPECT_EQ(received.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(be32toh(received.imm_data), bytes + 7);
    ExpectCopied(left_, right_, bytes);
  }
  EXPECT_EQ(NotReady(), not_ready);
}

TEST_F(VerbsSmokeTest, ReadFetchesBytesWithoutTheirOwner) {
  const int64_t not_ready = NotReady();
  Fill(right_);
  for (const uint32_t bytes : {64u, 4096u, 200'000u}) {
    SCOPED_TRACE(bytes);
    ASSERT_NO_FATAL_FAILURE(Post(left_, right_, IBV_WR_RDMA_READ, bytes, 0));
    EXPECT_EQ(WaitForCompletion(left_).status, IBV_WC_SUCCESS);
    ExpectCopied(right_, left_, bytes);
  }
  EXPECT_EQ(NotReady(), not_ready);
}

// The counter can rise: the other tests expect that it stays 0.
TEST_F(VerbsSmokeTest, CountsReceiverNotReady) {
  const int64_t not_ready = NotReady();
  ASSERT_NO_FATAL_FAILURE(
      Post(left_, right_, IBV_WR_RDMA_WRITE_WITH_IMM, 64, 0));
  EXPECT_EQ(WaitForCompletion(left_).status, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_GT(NotReady(), not_ready);
}

}  // namespace
}  // namespace refract::rdma_vm
