#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_SWITCH_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_SWITCH_H_

// The one switch that every port is cabled to: store and forward, a finite
// first-in-first-out buffer per output port, tail drop, marks above a
// threshold. There is no priority flow control, so loss is what it would be on
// a lossy fabric, and senders do not slow down when marks are reported to them:
// both belong to the application here.

#include "tests/transport/verbs_sim/fabric/packet.h"

namespace refract::transport::sim {

class Nic;
class Simulation;

// Puts `packet` on the wire of `from`, its last bit leaving at `sent`. Here is
// where fault rules apply.
void EnterWire(Simulation& simulation, Nic& from, Packet* packet,
               Picoseconds sent);
// At the switch, complete.
void ForwardPacket(Simulation& simulation, Packet* packet);
// At the receiving device, complete.
void DeliverPacket(Simulation& simulation, Packet* packet);

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_SWITCH_H_
