#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_SHARD_PEERS_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_SHARD_PEERS_H_

// Tables whose rows several processes own (models/repository/table_shards.h),
// as look-ups see them.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "models/repository/table_shards.h"
#include "models/tables/row_format.h"

namespace refract::runtime::cpu {

class ShardMessage;

// A table of which this process owns some rows.
struct ShardedTable {
  models::TableShards rows;
  size_t number = 0;  // of the table in messages: its place in SplitPlan::shards
  size_t own = 0;     // the shard that this process is
  // The weight has the own rows alone; else it is the whole table.
  bool packaged = false;
  // Rows of the weight, where the table is divided by ids: only an index of ids
  // knows which of them are the own rows.
  int64_t stored_rows = 0;
  // The ids of the rows that bags leave out, by row, where the table is divided
  // by ids: this process may have neither row nor id otherwise.
  std::map<int64_t, int64_t> padding_ids = {};
  // Rows of a lost shard are zeros; else the run fails.
  bool zero_when_lost = false;
  // Layout of encoded rows, for the code that answers peers.
  std::optional<models::RowLayout> layout = std::nullopt;
};

// A message to one shard, and its answer.
struct ShardCall {
  size_t shard = 0;
  const ShardMessage* message = nullptr;
  // Unavailable: the shard is lost.
  absl::Status status;
  // If OK: message->answer_floats() numbers.
  std::vector<float> answer;
  // If OK, as ShardLookUps has them.
  int64_t replaced_ids = 0;
  int64_t first_missing = -1;
};

// The other processes of the group, for one run of a program
// (RunContext::set_shard_peers). Used by the thread of the run.
class ShardPeers {
 public:
  virtual ~ShardPeers() = default;
  // Sends the message of each call, each to another shard, runs `meanwhile`,
  // and waits until each call has its answer or status.
  virtual void Ask(absl::Span<ShardCall> calls,
                   absl::FunctionRef<void()> meanwhile) = 0;
};

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_SHARD_PEERS_H_
