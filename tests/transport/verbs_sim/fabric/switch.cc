#include "tests/transport/verbs_sim/fabric/switch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/transport/verbs_sim/nic/nic.h"
#include "tests/transport/verbs_sim/fabric/simulation.h"

namespace refract::transport::sim {
namespace {

uint64_t Argument(Packet* packet) {
  return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(packet));
}

}  // namespace

void EnterWire(Simulation& simulation, Nic& from, Packet* packet,
               Picoseconds sent) {
  const PacketHeader& header = packet->header;
  ++from.counters.sent_packets;
  from.counters.sent_bytes += header.wire_bytes();
  simulation.Trace(header.psn << 8 | static_cast<uint64_t>(header.kind),
                   uint64_t{header.source_qp} << 32 | header.destination_qp);
  if (!from.reachable()) {
    ++from.counters.dropped_link_down;
    simulation.packets.Return(packet);
    return;
  }
  Picoseconds at_switch = sent + from.propagation();
  auto verdict = simulation.faults.Apply(
      header, from.host, simulation.nics[header.destination_nic]->host,
      simulation.clock.Now(), simulation.random);
  if (verdict) {
    if (verdict->then) {
      simulation.ScheduleScript(simulation.now(), std::move(verdict->then));
    }
    switch (verdict->action) {
      case PacketAction::kDrop:
        ++from.counters.dropped_by_fault;
        simulation.packets.Return(packet);
        return;
      case PacketAction::kDuplicate: {
        Packet* copy = simulation.packets.Take();
        copy->header = header;
        std::memcpy(copy->payload.data(), packet->payload.data(),
                    header.payload_bytes);
        simulation.Schedule(at_switch + from.TimeOnWire(header.wire_bytes()),
                            EventKind::kAtSwitch, 0, Argument(copy));
        break;
      }
      case PacketAction::kDelay:
        at_switch += verdict->delay;
        break;
      case PacketAction::kCorrupt:
        packet->header.corrupt = true;
        break;
    }
  }
  simulation.Schedule(at_switch, EventKind::kAtSwitch, 0, Argument(packet));
}

void ForwardPacket(Simulation& simulation, Packet* packet) {
  PacketHeader& header = packet->header;
  Nic& to = *simulation.nics[header.destination_nic];
  if (!to.reachable()) {
    ++to.counters.dropped_link_down;
    simulation.packets.Return(packet);
    return;
  }
  const Picoseconds ready =
      simulation.now() + ToPicoseconds(simulation.options.switch_latency);
  const Picoseconds start = std::max(ready, to.switch_port_free_at);
  const uint64_t waiting = to.BytesInTime(start - ready);
  const size_t buffer = simulation.options.switch_buffer_bytes;
  if (buffer > 0 && waiting + header.wire_bytes() > buffer) {
    ++to.counters.dropped_at_switch;
    simulation.Trace(0x64726f70, header.psn);
    simulation.packets.Return(packet);
    return;
  }
  const size_t mark = simulation.options.mark_above_bytes;
  if (mark > 0 && waiting > mark) header.congestion = true;
  to.switch_port_free_at = start + to.TimeOnWire(header.wire_bytes());
  simulation.Schedule(to.switch_port_free_at + to.propagation(),
                      EventKind::kDelivered, 0, Argument(packet));
}

void DeliverPacket(Simulation& simulation, Packet* packet) {
  Nic& to = *simulation.nics[packet->header.destination_nic];
  if (to.reachable()) {
    to.Receive(*packet);
  } else {
    ++to.counters.dropped_link_down;
  }
  simulation.packets.Return(packet);
}

}  // namespace refract::transport::sim
