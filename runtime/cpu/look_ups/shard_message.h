#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_SHARD_MESSAGE_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_SHARD_MESSAGE_H_

// The message by which one process of a shard group asks another for rows that
// the other owns, pooled by bag. Four tensors (docs/design/wire_format.md):
//
//   look-ups  int64 [n, 4]  table, kind, bags, ids
//   lengths   int32 [..]    ids of each bag, ≥ 1; none for kinds of one id a bag
//   rows      int64 [..]    row numbers, counted from the owner's first row; of
//                           tables whose rows have ids, the ids
//   weights   float32 [..]  one per id, for weighted look-ups
//
// of which the last three follow the look-ups' order. The answer is a float32
// tensor, a vector of the table's dim for each bag, in order; over the wire, an
// int64 tensor [3] follows: the sequence of the delta whose rows were read, the
// number of ids without a row that were replaced, and the position in `rows` of
// the first such id whose table's policy is to refuse it, or -1. With such an
// id, the vectors mean nothing.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "runtime/cpu/look_ups/look_up.h"

namespace refract::runtime::cpu {

inline constexpr size_t kShardMessageTensors = 4;

// How a bag's rows are pooled. Stored: numbers must not change.
enum class ShardLookUpKind : int64_t {
  kCopy = 0,      // the row of the bag's one id, bit for bit
  kOne = 1,       // the same row, decoded
  kSum = 2,       // a sum of rows
  kWeighted = 3,  // a sum of rows times weights
  kMax = 4,       // the largest element of each column
};

class ShardMessage {
 public:
  // Keeps its memory.
  void Clear();
  // A look-up in a table of `dim` columns begins. Look-ups without a bag are
  // left out of the message.
  void Begin(size_t table, ShardLookUpKind kind, int64_t dim);
  // Adds an id to the bag under way, which becomes `bag` of the look-up.
  // `weight`: for kWeighted.
  void Add(int64_t row, int64_t bag, float weight);

  bool empty() const { return rows_.empty(); }
  size_t num_ids() const { return rows_.size(); }
  int64_t answer_floats() const { return answer_floats_; }
  // The bags of the look-up number `look_up`, counted by Begin(), ascending,
  // and where their vectors begin in the answer.
  absl::Span<const int64_t> BagsOf(size_t look_up) const;
  int64_t AnswerOf(size_t look_up) const { return begun_[look_up].answer; }

  // The tensors, valid until the next change.
  std::array<base::TensorView, kShardMessageTensors> tensors() const;

 private:
  struct Begun {
    size_t first_bag = 0;   // in bags_
    int64_t answer = 0;     // in the answer
  };
  std::vector<Begun> begun_;
  std::vector<int64_t> bags_;
  int64_t dim_ = 0;
  ShardLookUpKind kind_ = ShardLookUpKind::kCopy;
  size_t table_ = 0;
  int64_t answer_floats_ = 0;

  std::vector<int64_t> look_ups_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> rows_;
  std::vector<float> weights_;
};

// A table of the process that answers.
struct OwnedTable {
  TableRows rows;  // its own rows alone; without shards
  int64_t dim = 0;
  TableUse use;  // name, for errors
};

// A message as the look-ups that answer it.
class ShardLookUps {
 public:
  // Copies the message, so that a peer cannot change what has been checked.
  // `tables`: by number. `at`: the state of their rows that is read.
  // InvalidArgument: the tensors are no message, or name a table or row that
  // there is not.
  absl::Status Read(absl::Span<const base::TensorView> tensors,
                    absl::Span<const OwnedTable> tables, uint64_t at);
  int64_t answer_floats() const { return answer_floats_; }
  // After Read(): the first id without a row that its table refuses; -1: none.
  int64_t first_missing() const { return first_missing_; }
  // Writes the answer. After Read(), while its tables are there. `stats` counts
  // ids that are replaced.
  absl::Status Run(float* answer, RunStats& stats);

 private:
  absl::Status ReadOne(const int64_t* look_up,
                       absl::Span<const OwnedTable> tables, uint64_t at,
                       size_t& length, size_t& row, size_t& weight);

  std::vector<int64_t> copied_;   // look-ups
  std::vector<int32_t> lengths_;
  std::vector<int64_t> rows_;
  std::vector<int64_t> found_;    // rows of rows_, where these are ids
  std::vector<int64_t> offsets_;  // of look-ups with lengths
  std::vector<float> weights_;
  struct Views {
    base::TensorView ids;
    base::TensorView given_ids;
    base::TensorView offsets;
    int64_t answer = 0;
  };
  std::vector<Views> views_;
  std::vector<LookUp> look_ups_;
  int64_t answer_floats_ = 0;
  int64_t first_missing_ = -1;
};

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_SHARD_MESSAGE_H_
