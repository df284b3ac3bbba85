#ifndef REFRACT_TESTS_TRANSPORT_SIM_RAW_H_
#define REFRACT_TESTS_TRANSPORT_SIM_RAW_H_

// Raw verbs on the simulator: an end with one queue pair, and requests.

#include <glog/logging.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/transport/verbs_sim/fabric/fabric.h"
#include "transport/verbs/device/api.h"

namespace refract::transport::sim {

inline void FillRandom(std::vector<std::byte>& bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::byte& byte : bytes) byte = std::byte(random());
}

struct EndOptions {
  size_t memory_bytes = size_t{1} << 20;
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
               IBV_ACCESS_REMOTE_WRITE;  // of the memory
  int queue_pair_access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  int send_entries = 256;
  int receive_entries = 256;
  uint32_t receives = 64;  // posted
  uint32_t receive_capacity = 64;
  uint32_t send_requests = 64;
  uint32_t segments = 2;
  ibv_mtu mtu = IBV_MTU_4096;
  uint8_t timeout = 14;
  uint8_t retries = 6;
  uint8_t rnr_retries = 6;
  uint8_t rnr_timer = 12;
  uint8_t reads = 16;       // max_rd_atomic
  uint8_t dest_reads = 16;  // max_dest_rd_atomic
  uint32_t psn = 1000;      // of its send queue
};

// A device with a region, queues and one queue pair in the reset state.
struct End {
  End(Fabric& fabric, int host, EndOptions options = {})
      : options(options), host(host), memory(options.memory_bytes) {
    auto& library = fabric.library(host);
    device = *library.Open(library.DeviceNames()->front());
    domain = *device->CreateDomain();
    region = *domain->Register(memory.data(), memory.size(), options.access);
    channel = *device->CreateChannel();
    send_queue =
        *device->CreateCompletionQueue(options.send_entries, channel.get());
    receive_queue =
        *device->CreateCompletionQueue(options.receive_entries, channel.get());
    receives = *device->CreateSharedReceiveQueue(options.receive_capacity);
    for (uint32_t i = 0; i < options.receives; ++i) PostReceive(i);
    verbs::QueuePairOptions qp;
    qp.send_queue = send_queue.get();
    qp.receive_queue = receive_queue.get();
    qp.shared_receive_queue = receives.get();
    qp.max_send_requests = options.send_requests;
    qp.max_send_segments = options.segments;
    qp.wanted_inline = 220;
    queue_pair = *domain->CreateQueuePair(qp);
  }

  int PostReceive(uint64_t id) {
    ibv_recv_wr wr = {};
    wr.wr_id = id;
    ibv_recv_wr* bad = nullptr;
    return receives->Post(&wr, &bad);
  }

  int ToInit() {
    ibv_qp_attr a = {};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = static_cast<unsigned>(options.queue_pair_access);
    return queue_pair->Modify(a, IBV_QP_STATE | IBV_QP_PKEY_INDEX |
                                     IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }
  int ToReadyToReceive(const End& peer) {
    ibv_qp_attr a = {};
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = options.mtu;
    a.dest_qp_num = peer.queue_pair->number();
    a.rq_psn = peer.options.psn;
    a.max_dest_rd_atomic = options.dest_reads;
    a.min_rnr_timer = options.rnr_timer;
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    a.ah_attr.grh.dgid = peer.device->Ports()->front().gids.back().gid;
    a.ah_attr.grh.sgid_index = 1;
    return queue_pair->Modify(a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                     IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                     IBV_QP_MAX_DEST_RD_ATOMIC |
                                     IBV_QP_MIN_RNR_TIMER);
  }
  int ToReadyToSend() {
    ibv_qp_attr a = {};
    a.qp_state = IBV_QPS_RTS;
    a.sq_psn = options.psn;
    a.timeout = options.timeout;
    a.retry_cnt = options.retries;
    a.rnr_retry = options.rnr_retries;
    a.max_rd_atomic = options.reads;
    return queue_pair->Modify(a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
                                     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                     IBV_QP_MAX_QP_RD_ATOMIC);
  }
  int ToState(ibv_qp_state state) {
    ibv_qp_attr a = {};
    a.qp_state = state;
    return queue_pair->Modify(a, IBV_QP_STATE);
  }

  std::vector<ibv_wc> Poll(verbs::CompletionQueue& queue, int count = 64) {
    std::vector<ibv_wc> out(count);
    const int got = queue.Poll(count, out.data());
    out.resize(got < 0 ? 0 : got);
    return out;
  }
  std::vector<ibv_wc> PollSends() { return Poll(*send_queue); }
  std::vector<ibv_wc> PollReceives() { return Poll(*receive_queue); }
  std::vector<ibv_event_type> AsyncEvents() {
    std::vector<ibv_event_type> types;
    while (auto event = device->TakeAsyncEvent()) types.push_back(event->type);
    return types;
  }

  const EndOptions options;
  const int host;
  // In order of creation.
  std::vector<std::byte> memory;
  std::unique_ptr<verbs::Device> device;
  std::unique_ptr<verbs::ProtectionDomain> domain;
  std::unique_ptr<verbs::MemoryRegion> region;
  std::unique_ptr<verbs::CompletionChannel> channel;
  std::unique_ptr<verbs::CompletionQueue> send_queue;
  std::unique_ptr<verbs::CompletionQueue> receive_queue;
  std::unique_ptr<verbs::SharedReceiveQueue> receives;
  std::unique_ptr<verbs::QueuePair> queue_pair;
};

inline void Connect(End& a, End& b) {
  ASSERT_EQ(a.ToInit(), 0);
  ASSERT_EQ(b.ToInit(), 0);
  ASSERT_EQ(a.ToReadyToReceive(b), 0);
  ASSERT_EQ(b.ToReadyToReceive(a), 0);
  ASSERT_EQ(a.ToReadyToSend(), 0);
  ASSERT_EQ(b.ToReadyToSend(), 0);
}

// A request from `offset` of one end's memory to or from the other's.
struct Request {
  uint64_t id = 0;
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
  size_t local_offset = 0;
  size_t bytes = 0;
  size_t remote_offset = 0;
  uint32_t immediate = 0;
  unsigned flags = IBV_SEND_SIGNALED;
  // Replace the right ones.
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
};

inline int Post(End& from, const End& to, const Request& request) {
  ibv_sge segment = {};
  segment.addr =
      reinterpret_cast<uint64_t>(from.memory.data() + request.local_offset);
  segment.length = static_cast<uint32_t>(request.bytes);
  segment.lkey =
      request.local_key != 0 ? request.local_key : from.region->local_key();
  ibv_send_wr wr = {};
  wr.wr_id = request.id;
  wr.sg_list = &segment;
  wr.num_sge = request.bytes > 0 ? 1 : 0;
  wr.opcode = request.opcode;
  wr.send_flags = request.flags;
  wr.imm_data = request.immediate;
  wr.wr.rdma.remote_addr =
      reinterpret_cast<uint64_t>(to.memory.data() + request.remote_offset);
  wr.wr.rdma.rkey =
      request.remote_key != 0 ? request.remote_key : to.region->remote_key();
  ibv_send_wr* bad = nullptr;
  return from.queue_pair->PostSend(&wr, &bad);
}

// No latencies but that of the wire, 100 Gb/s, 500 ns per cable, 1 us in the
// switch: what a test can compute by hand.
inline NicOptions PlainNic() {
  NicOptions nic;
  nic.propagation = absl::Nanoseconds(500);
  nic.post_latency = absl::ZeroDuration();
  nic.read_latency = absl::ZeroDuration();
  nic.min_completion_latency = absl::ZeroDuration();
  nic.max_completion_latency = absl::ZeroDuration();
  return nic;
}
inline FabricOptions PlainFabric() {
  FabricOptions options;
  options.switch_latency = absl::Microseconds(1);
  return options;
}
inline int AddPlainHost(Fabric& fabric, const NicOptions& nic = PlainNic()) {
  HostOptions host;
  host.nics = {nic};
  return fabric.AddHost(host);
}

// Two connected ends on two hosts.
struct Pair {
  explicit Pair(const EndOptions& options = {},
                const FabricOptions& fabric_options = PlainFabric(),
                const NicOptions& nic = PlainNic())
      : Pair(options, options, fabric_options, nic) {}
  Pair(const EndOptions& a_options, const EndOptions& b_options,
       const FabricOptions& fabric_options = PlainFabric(),
       const NicOptions& nic = PlainNic())
      : fabric(fabric_options),
        a(fabric, AddPlainHost(fabric, nic), a_options),
        b(fabric, AddPlainHost(fabric, nic), b_options) {
    Connect(a, b);
  }

  Fabric fabric;
  End a;
  End b;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_SIM_RAW_H_
