#include "tests/transport/verbs_sim/nic/nic.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/transport/verbs_sim/nic/completion_queue.h"
#include "tests/transport/verbs_sim/nic/queue_pair.h"
#include "tests/transport/verbs_sim/fabric/switch.h"

namespace refract::transport::sim {
namespace {

constexpr unsigned __int128 kPicosecondsPerSecond = 1'000'000'000'000;

// 10.<nic / 250>.<nic % 250 + 1> of 10.0.0.0/8 for the mapped address, and the
// link-local one: what a RoCE port of a Linux host shows, version 2 only.
std::vector<verbs::GidEntry> DefaultGids(uint32_t nic) {
  verbs::GidEntry local;
  local.type = verbs::GidType::kRoceV2;
  local.network_device = absl::StrCat("sim", nic);
  local.network_device_up = true;
  verbs::GidEntry mapped = local;
  local.index = 0;
  local.gid.raw[0] = 0xfe;
  local.gid.raw[1] = 0x80;
  local.gid.raw[8] = 0x02;
  local.gid.raw[14] = static_cast<uint8_t>(nic >> 8);
  local.gid.raw[15] = static_cast<uint8_t>(nic);
  mapped.index = 1;
  mapped.gid.raw[10] = 0xff;
  mapped.gid.raw[11] = 0xff;
  mapped.gid.raw[12] = 10;
  mapped.gid.raw[14] = static_cast<uint8_t>(nic / 250);
  mapped.gid.raw[15] = static_cast<uint8_t>(nic % 250 + 1);
  return {local, mapped};
}

}  // namespace

void Context::Raise(const verbs::AsyncEvent& event) {
  events.push_back(event);
  // One count per event; the descriptor is a semaphore.
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written =
      write(event_fd.get(), &one, sizeof(one));
}

Nic::Nic(Simulation& simulation, uint32_t id, int host,
         const NicOptions& options)
    : simulation(simulation),
      options(options),
      id(id),
      host(host),
      memory(simulation.random.Next()),
      gids(DefaultGids(id)),
      // Numbers of different devices differ, so that a mix-up shows.
      next_number_((0x100 + id * 0x1000) & 0xffffff) {}

std::string Nic::Name() const {
  return absl::StrCat(simulation.hosts[host].name, "/", options.device);
}

bool Nic::reachable() const {
  return port_up && !broken && !simulation.hosts[host].dead;
}

Picoseconds Nic::TimeOnWire(uint64_t bytes) const {
  return static_cast<Picoseconds>(bytes * 8 * kPicosecondsPerSecond /
                                  options.bits_per_second);
}

uint64_t Nic::BytesInTime(Picoseconds time) const {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(time) *
                               options.bits_per_second /
                               (8 * kPicosecondsPerSecond));
}

uint32_t Nic::AddQueuePair(QueuePairState& queue_pair) {
  const uint32_t number = next_number_++ & 0xffffff;
  queue_pairs_[number] = &queue_pair;
  return number;
}

void Nic::RemoveQueuePair(uint32_t number) { queue_pairs_.erase(number); }

QueuePairState* Nic::FindQueuePair(uint32_t number) const {
  const auto found = queue_pairs_.find(number);
  return found == queue_pairs_.end() ? nullptr : found->second;
}

bool Nic::AnyRequestUses(uint32_t local_key) const {
  return std::any_of(queue_pairs_.begin(), queue_pairs_.end(),
                     [&](const auto& entry) {
                       return entry.second->requester.Uses(local_key);
                     });
}

uint32_t Nic::AddCompletionQueue(CompletionQueueState& queue) {
  completion_queues_[next_queue_] = &queue;
  return next_queue_++;
}

void Nic::SendControl(Packet* packet) {
  control_.push_back(packet);
  if (!transmitting_) OnTransmitterFree();
}

void Nic::Enlist(PacketSource& source) {
  if (source.waits_for_transmitter_ || !source.HasPacket()) return;
  source.waits_for_transmitter_ = true;
  ready_.push_back(&source);
}

void Nic::Offer(PacketSource& source) {
  Enlist(source);
  if (!transmitting_ && !ready_.empty()) OnTransmitterFree();
}

void Nic::Forget(PacketSource& source) {
  if (served_ == &source) served_ = nullptr;
  ready_.erase(std::remove(ready_.begin(), ready_.end(), &source),
               ready_.end());
  source.waits_for_transmitter_ = false;
}

void Nic::OnTransmitterFree() {
  transmitting_ = false;
  if (broken || simulation.hosts[host].dead) return;
  // Back in line only now: behind those that came while its packet was sent.
  if (PacketSource* source = std::exchange(served_, nullptr)) {
    source->waits_for_transmitter_ = false;
    Enlist(*source);
  }
  if (!control_.empty()) {
    Packet* packet = control_.front();
    control_.pop_front();
    Transmit(packet);
    return;
  }
  while (!ready_.empty()) {
    PacketSource* source = ready_.front();
    ready_.pop_front();
    if (!source->HasPacket()) {
      source->waits_for_transmitter_ = false;
      continue;
    }
    served_ = source;
    Packet* packet = simulation.packets.Take();
    // Filling may fail the queue pair, whose completions and replies must not
    // find the transmitter idle and start a packet before this one.
    transmitting_ = true;
    const bool filled = source->Fill(*packet);
    transmitting_ = false;
    if (filled) {
      Transmit(packet);
      return;
    }
    simulation.packets.Return(packet);
    OnTransmitterFree();
    return;
  }
}

void Nic::Transmit(Packet* packet) {
  transmitting_ = true;
  packet->header.source_nic = id;
  const Picoseconds sent =
      simulation.now() + TimeOnWire(packet->header.wire_bytes());
  simulation.Schedule(sent, EventKind::kTransmitterFree, id, 0);
  EnterWire(simulation, *this, packet, sent);
}

void Nic::Receive(Packet& packet) {
  const PacketHeader& header = packet.header;
  ++counters.received_packets;
  counters.received_bytes += header.wire_bytes();
  counters.received_payload_bytes += header.payload_bytes;
  simulation.Trace(header.psn << 8 | static_cast<uint64_t>(header.kind),
                   ~uint64_t{header.destination_qp});
  if (header.corrupt) {
    ++counters.crc_errors;
    return;
  }
  QueuePairState* queue_pair = FindQueuePair(header.destination_qp);
  if (header.congestion) ++counters.marked_packets;
  if (queue_pair != nullptr) queue_pair->Receive(packet);
}

void Nic::SetPort(bool up) {
  if (port_up == up) return;
  port_up = up;
  for (verbs::GidEntry& gid : gids) gid.network_device_up = up;
  RaiseAll({up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, 0, 1});
}

void Nic::Break() {
  if (broken) return;
  broken = true;
  for (Packet* packet : std::exchange(control_, {})) {
    simulation.packets.Return(packet);
  }
  RaiseAll({IBV_EVENT_DEVICE_FATAL, 0, 0});
  // Sleepers find the queue broken.
  for (const auto& [number, queue] : completion_queues_) queue->FireSpurious();
}

void Nic::RaiseAll(const verbs::AsyncEvent& event) {
  for (Context* context : contexts) context->Raise(event);
}

void Nic::Resume() {
  for (const uint64_t doorbell : std::exchange(held_doorbells_, {})) {
    OnDoorbell(doorbell);
  }
  for (const auto& [number, queue] : completion_queues_) queue->Resume();
}

void Nic::RingDoorbell(QueuePairState& queue_pair, uint32_t position) {
  const uint64_t argument = uint64_t{position} << 32 | queue_pair.number;
  if (paused()) {
    held_doorbells_.push_back(argument);
    return;
  }
  simulation.Schedule(simulation.now() + ToPicoseconds(options.post_latency),
                      EventKind::kDoorbell, id, argument);
}

void Nic::OnDoorbell(uint64_t argument) {
  QueuePairState* queue_pair = FindQueuePair(static_cast<uint32_t>(argument));
  if (queue_pair == nullptr) return;
  queue_pair->requester.OnDoorbell(static_cast<uint32_t>(argument >> 32));
}

void Nic::OnReadReady(uint32_t number) {
  QueuePairState* queue_pair = FindQueuePair(number);
  if (queue_pair != nullptr) Offer(queue_pair->responder);
}

bool Nic::AckTimerIsDue(uint32_t number, Picoseconds at) {
  QueuePairState* queue_pair = FindQueuePair(number);
  return queue_pair != nullptr && !broken && !simulation.hosts[host].dead &&
         queue_pair->requester.AckTimerIsDue(at);
}

void Nic::OnAckTimer(uint32_t number) {
  QueuePairState* queue_pair = FindQueuePair(number);
  if (queue_pair != nullptr) queue_pair->requester.OnAckTimeout();
}

void Nic::OnRnrTimer(uint32_t number) {
  QueuePairState* queue_pair = FindQueuePair(number);
  if (queue_pair != nullptr) queue_pair->requester.OnRnrTimer();
}

void Nic::OnCompletionVisible(uint32_t number) {
  const auto found = completion_queues_.find(number);
  if (found != completion_queues_.end()) found->second->OnVisible();
}

}  // namespace refract::transport::sim
