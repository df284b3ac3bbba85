#include "tests/transport/verbs_sim/fabric/faults.h"

#include <utility>

namespace refract::transport::sim {

int FaultRules::Add(PacketRule rule) {
  rules_.emplace(next_id_, std::move(rule));
  return next_id_++;
}

std::optional<FaultRules::Verdict> FaultRules::Apply(const PacketHeader& header,
                                                     int from_host, int to_host,
                                                     absl::Time now,
                                                     Random& random) {
  for (auto& [id, rule] : rules_) {
    if (rule.count == 0 || now < rule.from || now >= rule.until) continue;
    if (rule.from_host && *rule.from_host != from_host) continue;
    if (rule.to_host && *rule.to_host != to_host) continue;
    if (rule.kind && *rule.kind != header.kind) continue;
    if (rule.predicate && !rule.predicate(header)) continue;
    if (rule.skip > 0) {
      --rule.skip;
      continue;
    }
    if (rule.probability < 1 && random.Uniform() >= rule.probability) continue;
    --rule.count;
    const Picoseconds jitter = ToPicoseconds(rule.jitter);
    Verdict verdict = {rule.action, ToPicoseconds(rule.delay), rule.then};
    if (jitter > 0) {
      verdict.delay +=
          static_cast<Picoseconds>(random.Below(static_cast<uint64_t>(jitter)));
    }
    return verdict;
  }
  return std::nullopt;
}

}  // namespace refract::transport::sim
