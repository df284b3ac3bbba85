#include "runtime/cpu/look_ups/sharded_look_ups.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/look_ups/shard_message.h"
#include "runtime/cpu/look_ups/shard_peers.h"

namespace refract::runtime::cpu {
namespace {

// Scratch of a thread, whose memory is kept from run to run.
struct Scratch {
  std::vector<size_t> sharded;          // look-ups, in order
  std::vector<LookUp> others;           // look-ups of whole tables
  std::vector<ShardMessage> messages;   // by shard, to this one as well
  std::vector<OwnedTable> owned;        // by number
  std::vector<ShardCall> calls;
  ShardLookUps own;
  std::vector<float> own_answer;
  // By bag of one look-up.
  std::vector<uint8_t> filled;
  std::vector<int64_t> counts;
};

ShardLookUpKind KindOf(const LookUp& look_up) {
  if (look_up.copies) return ShardLookUpKind::kCopy;
  if (look_up.mode == BagMode::kMax) return ShardLookUpKind::kMax;
  if (look_up.weights != nullptr) return ShardLookUpKind::kWeighted;
  return look_up.offsets == nullptr ? ShardLookUpKind::kOne
                                    : ShardLookUpKind::kSum;
}

// The rows that this process owns, as a table of their own.
OwnedTable OwnRows(const LookUp& look_up) {
  const ShardedTable& sharded = *look_up.table.sharded;
  OwnedTable owned;
  owned.rows = look_up.table;
  // The copy is an ordinary table: RunLookUps() must not distribute its ids
  // again.
  owned.rows.sharded = nullptr;
  owned.rows.peers = nullptr;
  if (sharded.rows.by_ids) {
    owned.rows.rows = sharded.stored_rows;
    owned.dim = look_up.dim;
    owned.use = *look_up.use;
    return owned;
  }
  owned.rows.rows = sharded.rows.rows(sharded.own);
  // The file holds the whole table, and the owner's rows begin within it. A
  // package for a shard holds the shard's rows alone.
  if (!sharded.packaged) {
    owned.rows.data += static_cast<size_t>(sharded.rows.begin(sharded.own)) *
                       look_up.table.row_bytes;
  }
  owned.dim = look_up.dim;
  owned.use.table = look_up.use->table;
  return owned;
}

// First id of bag `bag`; of the bag behind the last: the end of the last.
int64_t FirstIdOf(const LookUp& look_up, int64_t bag) {
  if (look_up.offsets == nullptr) return bag;
  return bag < look_up.offsets->num_elements() ? IntAt(*look_up.offsets, bag)
                                               : look_up.ids->num_elements();
}

// The id that bags leave out. LookUp::padding_id is a row number.
std::optional<int64_t> PaddingId(const LookUp& look_up) {
  if (look_up.padding_id < 0) return std::nullopt;
  const ShardedTable& sharded = *look_up.table.sharded;
  if (!sharded.rows.by_ids) return look_up.padding_id;
  const auto id = sharded.padding_ids.find(look_up.padding_id);
  // A row behind the last has no id.
  if (id == sharded.padding_ids.end()) return std::nullopt;
  return id->second;
}

// Calls f(bag, id, position) for each id of each bag, with ids outside the
// table as they are, but not for padding.
template <typename F>
void ForEachId(const LookUp& look_up, F f) {
  const std::optional<int64_t> padding = PaddingId(look_up);
  int64_t end = FirstIdOf(look_up, 0);
  for (int64_t bag = 0; bag < look_up.num_bags; ++bag) {
    const int64_t begin = end;
    end = FirstIdOf(look_up, bag + 1);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = IntAt(*look_up.ids, i);
      if (id == padding) continue;
      f(bag, id, i);
    }
  }
}

// Calls f(owner, row, bag, position) for each id that belongs to a shard. `row`
// counts from the owner's first row; of a table that is divided by ids, it is
// the id.
template <typename F>
void ForEachOwned(const LookUp& look_up, F f) {
  const ShardedTable& sharded = *look_up.table.sharded;
  const std::vector<int64_t>& ends = sharded.rows.ends;
  if (sharded.rows.by_ids) {
    const std::optional<size_t> sole = sharded.rows.sole_owner();
    ForEachId(look_up, [&](int64_t bag, int64_t id, int64_t position) {
      f(sole ? *sole : models::OwnerOfId(id, ends.size()), id, bag, position);
    });
    return;
  }
  ForEachId(look_up, [&](int64_t bag, int64_t id, int64_t position) {
    // An id outside the table is replaced before an owner is sought: row 0 by
    // policy, or no row at all (Finish() handles rows of zeros). CheckIds() has
    // refused it otherwise.
    if (id < 0 || id >= look_up.table.rows) {
      if (look_up.use->policy != models::IdPolicy::kDefaultRow) return;
      id = 0;
    }
    const auto owner = static_cast<size_t>(
        std::upper_bound(ends.begin(), ends.end(), id) - ends.begin());
    f(owner, id - sharded.rows.begin(owner), bag, position);
  });
}

// Adds the ids of one look-up to the messages of the shards that own them.
void Distribute(const LookUp& look_up, absl::Span<ShardMessage> messages) {
  const size_t number = look_up.table.sharded->number;
  for (ShardMessage& message : messages) {
    message.Begin(number, KindOf(look_up), look_up.dim);
  }
  const auto* const weights = reinterpret_cast<const float*>(look_up.weights);
  ForEachOwned(look_up,
               [&](size_t owner, int64_t row, int64_t bag, int64_t position) {
                 messages[owner].Add(
                     row, bag, weights == nullptr ? 1.0F : weights[position]);
               });
}

// The error of the first id, in the order of look-ups and positions, that some
// owner refuses; OK: none does. `missing`: by shard, ShardCall::first_missing.
absl::Status FirstMissing(absl::Span<const LookUp> look_ups,
                          absl::Span<const size_t> sharded,
                          absl::Span<const int64_t> missing) {
  if (std::all_of(missing.begin(), missing.end(),
                  [](int64_t position) { return position < 0; })) {
    return absl::OkStatus();
  }
  std::vector<int64_t> added(missing.size(), 0);  // ids of each message so far
  for (const size_t i : sharded) {
    const LookUp& look_up = look_ups[i];
    if (look_up.out == nullptr) continue;
    int64_t first = -1;
    ForEachOwned(look_up, [&](size_t owner, int64_t, int64_t,
                              int64_t position) {
      if (added[owner]++ == missing[owner] && first < 0) first = position;
    });
    if (first >= 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "table '", look_up.use->table, "': id ", IntAt(*look_up.ids, first),
          " at position ", first, " has no row"));
    }
  }
  return absl::InternalError("a shard misses an id that it was not asked for");
}

// Adds the vectors of one shard to those of the shards before it. `answer`:
// null for a lost shard, whose rows are zeros.
void Combine(const LookUp& look_up, absl::Span<const int64_t> bags,
             const float* answer, std::vector<uint8_t>& filled) {
  const auto dim = static_cast<size_t>(look_up.dim);
  const bool max = look_up.mode == BagMode::kMax;
  for (size_t i = 0; i < bags.size(); ++i) {
    auto* const out = reinterpret_cast<float*>(look_up.out +
                                               bags[i] * look_up.out_stride);
    uint8_t& is_filled = filled[static_cast<size_t>(bags[i])];
    const float* const from = answer == nullptr ? nullptr : answer + i * dim;
    if (is_filled == 0) {
      // Not added to zero, which would make +0 of -0.
      if (from == nullptr) {
        std::fill_n(out, dim, 0.0F);
      } else {
        std::copy_n(from, dim, out);
      }
    } else if (max) {
      for (size_t d = 0; d < dim; ++d) {
        const float value = from == nullptr ? 0.0F : from[d];
        out[d] = value > out[d] ? value : out[d];
      }
    } else if (from != nullptr) {
      for (size_t d = 0; d < dim; ++d) out[d] += from[d];
    }
    is_filled = 1;
  }
}

// The last step, after the vectors of all shards are combined: bags without a
// vector, rows of zeros for wrong ids, and the division of a mean.
void Finish(const LookUp& look_up, bool replaced, Scratch& scratch) {
  const bool mean = look_up.mode == BagMode::kMean && !look_up.copies;
  const bool zero_max =
      replaced && look_up.mode == BagMode::kMax &&
      look_up.use->policy == models::IdPolicy::kZeroRow;
  const auto dim = static_cast<size_t>(look_up.dim);
  const auto out_of = [&](int64_t bag) {
    return reinterpret_cast<float*>(look_up.out + bag * look_up.out_stride);
  };
  for (int64_t bag = 0; bag < look_up.num_bags; ++bag) {
    if (scratch.filled[static_cast<size_t>(bag)] == 0) {
      std::fill_n(out_of(bag), dim, 0.0F);
    }
  }
  if (!mean && !zero_max) return;
  scratch.counts.assign(static_cast<size_t>(look_up.num_bags), 0);
  ForEachId(look_up, [&](int64_t bag, int64_t id, int64_t) {
    ++scratch.counts[static_cast<size_t>(bag)];
    if (!zero_max || (id >= 0 && id < look_up.table.rows)) return;
    float* const out = out_of(bag);
    for (size_t d = 0; d < dim; ++d) out[d] = 0.0F > out[d] ? 0.0F : out[d];
  });
  if (!mean) return;
  for (int64_t bag = 0; bag < look_up.num_bags; ++bag) {
    const int64_t count = scratch.counts[static_cast<size_t>(bag)];
    if (count < 2) continue;
    float* const out = out_of(bag);
    for (size_t d = 0; d < dim; ++d) out[d] /= static_cast<float>(count);
  }
}

}  // namespace

absl::Status RunShardedLookUps(absl::Span<const LookUp> look_ups,
                               RunStats& stats) {
  static thread_local Scratch scratch;
  scratch.sharded.clear();
  scratch.others.clear();
  scratch.calls.clear();
  // All look-ups are checked in their order before a message leaves, so that
  // the error is that of an undivided run.
  REFRACT_RETURN_IF_ERROR(CheckIds(look_ups));
  const ShardedTable* any = nullptr;
  ShardPeers* peers = nullptr;
  for (size_t i = 0; i < look_ups.size(); ++i) {
    if (look_ups[i].table.sharded == nullptr) {
      scratch.others.push_back(look_ups[i]);
      continue;
    }
    any = look_ups[i].table.sharded;
    peers = look_ups[i].table.peers;
    scratch.sharded.push_back(i);
  }
  const size_t num_shards = any->rows.ends.size();
  if (scratch.messages.size() < num_shards) scratch.messages.resize(num_shards);
  const auto messages = absl::MakeSpan(scratch.messages).first(num_shards);
  for (ShardMessage& message : messages) message.Clear();
  std::vector<uint8_t> replaced;
  for (const size_t i : scratch.sharded) {
    const LookUp& look_up = look_ups[i];
    const ShardedTable& sharded = *look_up.table.sharded;
    int64_t outside = 0;
    if (!sharded.rows.by_ids) {
      REFRACT_ASSIGN_OR_RETURN(
          outside, look_up.use->Check(*look_up.ids, look_up.table.rows, stats));
    }
    replaced.push_back(outside > 0 ? 1 : 0);
    if (scratch.owned.size() <= sharded.number) {
      scratch.owned.resize(sharded.number + 1);
    }
    scratch.owned[sharded.number] = OwnRows(look_up);
    if (look_up.out == nullptr) {  // ids are only checked
      for (ShardMessage& message : messages) {
        message.Begin(sharded.number, KindOf(look_up), look_up.dim);
      }
    } else {
      Distribute(look_up, messages);
    }
  }
  for (size_t k = 0; k < num_shards; ++k) {
    if (k == any->own || messages[k].empty()) continue;
    ShardCall& call = scratch.calls.emplace_back();
    call.shard = k;
    call.message = &messages[k];
  }
  absl::Status here;
  // The own part runs as a message to itself: the same code pools rows here and
  // at other shards, so that bits do not depend on the owner.
  const auto look_up_here = [&] {
    here = [&]() -> absl::Status {
      REFRACT_RETURN_IF_ERROR(RunLookUps(scratch.others, stats));
      const auto tensors = messages[any->own].tensors();
      REFRACT_RETURN_IF_ERROR(
          scratch.own.Read(tensors, scratch.owned, look_ups[0].table.at));
      scratch.own_answer.resize(
          static_cast<size_t>(messages[any->own].answer_floats()));
      return scratch.own.Run(scratch.own_answer.data(), stats);
    }();
  };
  if (scratch.calls.empty()) {
    look_up_here();
  } else if (peers == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "table '", any->rows.table,
        "' is divided over CPU nodes, and the others are not known here"));
  } else {
    peers->Ask(absl::MakeSpan(scratch.calls), look_up_here);
  }
  REFRACT_RETURN_IF_ERROR(here);
  std::vector<const float*> answers(num_shards, nullptr);
  answers[any->own] = scratch.own_answer.data();
  std::vector<int64_t> missing(num_shards, -1);
  missing[any->own] = scratch.own.first_missing();
  for (const ShardCall& call : scratch.calls) {
    if (call.status.ok()) {
      const auto wanted = static_cast<size_t>(call.message->answer_floats());
      if (call.answer.size() != wanted) {
        return absl::InternalError(absl::StrCat(
            "shard ", call.shard, " answered with ", call.answer.size(),
            " numbers instead of ", wanted));
      }
      answers[call.shard] = call.answer.data();
      missing[call.shard] = call.first_missing;
      stats.replaced_ids += static_cast<uint64_t>(call.replaced_ids);
    } else if (absl::IsUnavailable(call.status) && any->zero_when_lost) {
      // Combine() takes a null answer for rows of zeros.
      stats.lost_ids += call.message->num_ids();
    } else {
      return call.status;
    }
  }
  REFRACT_RETURN_IF_ERROR(FirstMissing(look_ups, scratch.sharded, missing));
  for (size_t s = 0; s < scratch.sharded.size(); ++s) {
    const LookUp& look_up = look_ups[scratch.sharded[s]];
    if (look_up.out == nullptr) continue;
    scratch.filled.assign(static_cast<size_t>(look_up.num_bags), 0);
    for (size_t k = 0; k < num_shards; ++k) {
      Combine(look_up, messages[k].BagsOf(s),
              answers[k] == nullptr ? nullptr
                                    : answers[k] + messages[k].AnswerOf(s),
              scratch.filled);
    }
    Finish(look_up, replaced[s] != 0, scratch);
  }
  return absl::OkStatus();
}

}  // namespace refract::runtime::cpu
