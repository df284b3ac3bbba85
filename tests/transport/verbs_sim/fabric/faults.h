#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_FAULTS_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_FAULTS_H_

// Faults of packets on their way, as rules.

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "absl/time/time.h"
#include "tests/transport/verbs_sim/fabric/packet.h"
#include "tests/transport/verbs_sim/fabric/random.h"

namespace refract::transport::sim {

enum class PacketAction : uint8_t {
  kDrop,
  kDuplicate,  // the copy follows directly
  kDelay,      // others overtake it: also how packets are reordered
  kCorrupt,    // the receiver's CRC fails, so it is lost there
};

// Applies to a packet when everything given matches. A packet meets the rules
// in the order they were added, and the first one that takes it decides.
struct PacketRule {
  PacketAction action = PacketAction::kDrop;

  std::optional<int> from_host;
  std::optional<int> to_host;
  std::optional<PacketKind> kind;
  std::function<bool(const PacketHeader&)> predicate;  // called under a lock
  // On the fabric's clock.
  absl::Time from = absl::InfinitePast();
  absl::Time until = absl::InfiniteFuture();

  // The first `skip` packets that match pass, then each is taken with
  // `probability`, at most `count` of them.
  uint64_t skip = 0;
  uint64_t count = std::numeric_limits<uint64_t>::max();
  double probability = 1;

  // kDelay: `delay` plus up to `jitter`, uniform.
  absl::Duration delay;
  absl::Duration jitter;

  // Called, outside of locks, after each packet that was taken.
  std::function<void()> then;
};

// The rules in force. Used under the simulation's lock.
class FaultRules {
 public:
  int Add(PacketRule rule);
  void Remove(int id) { rules_.erase(id); }

  struct Verdict {
    PacketAction action = PacketAction::kDrop;
    Picoseconds delay = 0;
    std::function<void()> then;
  };
  // The fault of a packet between two hosts; nullopt: none.
  std::optional<Verdict> Apply(const PacketHeader& header, int from_host,
                               int to_host, absl::Time now, Random& random);

 private:
  std::map<int, PacketRule> rules_;  // ordered: the order of adding counts
  int next_id_ = 0;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_FAULTS_H_
