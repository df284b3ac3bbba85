#ifndef REFRACT_RUNTIME_COMPILE_NODE_ARGS_H_
#define REFRACT_RUNTIME_COMPILE_NODE_ARGS_H_

// Reads a node's arguments at compile time, so that no name is looked up while
// a request runs.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "models/graph/graph.h"
#include "runtime/torch/caller.h"

namespace refract::runtime {

namespace cpu {
class ShardPeers;
}

using runtime::aten::Operand;

// No operand: a literal, None, or a missing argument.
inline constexpr int kNoOperand = -1;

// Source of an integer: a literal, or a size among the operands.
struct IntSource {
  int64_t literal = 0;
  int operand = kNoOperand;
  bool is_literal() const { return operand == kNoOperand; }
};

// A node's operands at run time, in the order of models::InputsOf(node).
class Operands {
 public:
  // `tables_at`: RunContext::set_tables_at(), `peers`: set_shard_peers().
  explicit Operands(absl::Span<const Operand* const> operands,
                    uint64_t tables_at = ~uint64_t{0},
                    cpu::ShardPeers* peers = nullptr)
      : operands_(operands), tables_at_(tables_at), peers_(peers) {}

  size_t size() const { return operands_.size(); }
  const Operand& operator[](int i) const { return *operands_[i]; }
  // The operands of a member of a fused step.
  Operands Part(size_t first, size_t count) const {
    return Operands(operands_.subspan(first, count), tables_at_, peers_);
  }
  // The state of changed tables that look-ups read.
  uint64_t tables_at() const { return tables_at_; }
  // Processes that own the rows of sharded tables that this process lacks.
  cpu::ShardPeers* shard_peers() const { return peers_; }
  int64_t Int(const IntSource& source) const {
    return source.is_literal() ? source.literal : operands_[source.operand]->i;
  }

 private:
  absl::Span<const Operand* const> operands_;
  uint64_t tables_at_;
  cpu::ShardPeers* peers_;
};

// Arguments by name. References `node`, which must outlive it. A missing
// argument is reported as absent: the caller knows its default.
class NodeArgs {
 public:
  explicit NodeArgs(const models::Node& node);

  const models::Node& node() const { return node_; }

  // Whether it is present and not None.
  bool Has(absl::string_view name) const;
  // Index of the operand for an argument that is a single value.
  int OperandOf(absl::string_view name) const;
  // Indexes of a list of values, kNoOperand for holes; nullopt when `name` is
  // not such a list.
  std::optional<std::vector<int>> OperandsOf(absl::string_view name) const;
  // A number or a size; nullopt if absent, None or of another type.
  std::optional<IntSource> Int(absl::string_view name) const;
  // A list of integers; a single number counts as a list of one.
  std::optional<std::vector<IntSource>> Ints(absl::string_view name) const;
  // Literals only.
  std::optional<int64_t> IntLiteral(absl::string_view name) const;
  std::optional<bool> BoolLiteral(absl::string_view name) const;
  std::optional<base::DType> DTypeLiteral(absl::string_view name) const;

 private:
  struct Place {
    const models::NamedArgument* argument;
    int first_operand;  // index of the argument's first operand, if any
  };
  const Place* Find(absl::string_view name) const;
  static std::optional<IntSource> IntOf(const Place& place);

  const models::Node& node_;
  std::vector<Place> places_;
};

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_NODE_ARGS_H_
