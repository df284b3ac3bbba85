#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_SHARDED_LOOK_UPS_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_SHARDED_LOOK_UPS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/cpu/look_ups/look_up.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// RunLookUps() where some table is a ShardedTable. Row numbers are checked
// against the whole tables before a message leaves. Ids of 64 bits that some bag
// has are checked by their owners. Each other shard whose rows are needed gets
// one message; while it answers, this thread looks up its own rows. Partial
// results are combined in the order of the shards: a bag whose ids have one
// owner, a bag of one id for instance, has the bits that one process computes;
// other sums differ in the order of additions alone, by at most 1e-6 of the sum
// of magnitudes.
//
// InvalidArgument names table, id and position. Unavailable: a shard is lost,
// and its rows may not be zeros. Other errors come from the answer of a shard.
absl::Status RunShardedLookUps(absl::Span<const LookUp> look_ups,
                               RunStats& stats);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_SHARDED_LOOK_UPS_H_
