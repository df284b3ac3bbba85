#ifndef REFRACT_RUNTIME_UNIQUE_PART_H_
#define REFRACT_RUNTIME_UNIQUE_PART_H_

// CN-pre of a plan with unique rows (docs/glossary.md). Equal rows of a request
// are found in its ids, before tables are read: each distinct row is looked up
// once, where the message has room for it. Rows are compared themselves only
// where the request gives them.

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/pool.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/repository/split_plan.h"
#include "runtime/program.h"
#include "runtime/wire/codec.h"

namespace refract::runtime {

// Immutable and thread-safe; each request has a Request of its own.
class UniquePart {
 public:
  // Null where CN-pre has to compute all rows: a plan without unique rows, or
  // with unique rows that CN-post reads as well or that are results of weighted
  // bags, of index_select, or of further operators on looked-up rows; or with a
  // value whose form depends on its elements (int32).
  // Errors: as Program::Compile().
  static absl::StatusOr<std::unique_ptr<const UniquePart>> Create(
      const models::Graph& graph, const models::SplitPlan& plan,
      std::shared_ptr<const models::WeightStore> weights,
      const CompileOptions& options);

  // The graph and the part that a CPU node compiles instead of CN-pre. Nodes and
  // values keep the numbers of CN-pre, and outputs its order. Values
  // with unique rows may have fewer rows than the request. Inputs: those of
  // CN-pre, then the ids (or rows) of the values with unique rows.
  const models::Graph& graph() const { return graph_; }
  const Part& part() const { return part_; }

  // Memory of one request at a time. Allocates nothing once it has had a
  // request of this size.
  class Request {
   public:
    explicit Request(const UniquePart& part);
    Request(Request&&) noexcept = default;

    // For Encoder::Prepare(): per value of the plan its index, null where all
    // rows are sent.
    absl::Span<const wire::UniqueRows* const> indexes() const {
      return indexes_;
    }
    // Whether a value has distinct rows only.
    bool has_index() const;

   private:
    friend class UniquePart;
    RunContext context_;
    RunContext only_ids_context_;
    std::vector<base::TensorView> given_;  // outputs of before_
    std::vector<absl::string_view> keys_;  // of the value under way, per row
    wire::UniqueRowFinder finder_;
    std::vector<wire::UniqueRows> rows_;  // per value with unique rows
    std::vector<const wire::UniqueRows*> indexes_;
    base::AlignedBuffer distinct_;
  };
  base::Pool<Request>::Lease Acquire() const { return requests_->Acquire(); }

  // Adds the further inputs of part() to those of CN-pre. `distinct`: only
  // distinct rows, where an index and they are shorter than all rows. The views
  // are valid until the next call. Errors: as Program::Run().
  absl::Status AddInputs(bool distinct, Request& request,
                         std::vector<base::TensorView>& inputs) const;

  // After a run with distinct rows: adds to `stats` the replaced ids that a run
  // with all rows would have counted besides. `inputs`: as AddInputs() left
  // them; they become those of all rows. For tables that are not divided over
  // nodes. Errors: as Program::Run().
  absl::Status CountAllIds(uint64_t tables_at, Request& request,
                           std::vector<base::TensorView>& inputs,
                           RunStats& stats) const;

 private:
  // A value with unique rows.
  struct Value {
    size_t number = 0;          // in the plan
    size_t given = 0;           // output of before_: ids, or rows
    bool in_bags = false;       // each row has a bag of ids
    size_t offsets = 0;         // of the bags: output of before_
    bool last_offset = false;   // include_last_offset
    size_t row_bytes = 0;       // of the value
    size_t wire_row_bytes = 0;  // in its wire form
  };

  UniquePart() = default;
  bool Add(const models::Graph& graph, const models::SplitPlan& plan,
           size_t number, Part& before);
  bool FindRows(const Value& value, Request& request,
                wire::UniqueRows& rows) const;

  models::Graph graph_;
  Part part_;
  std::vector<Value> values_;
  size_t num_crossing_ = 0;
  size_t num_inputs_ = 0;  // of CN-pre
  // Request inputs → ids and rows; reads no table.
  std::unique_ptr<const Program> before_;
  // The further inputs of part_ → nothing: its look-ups only check ids.
  std::unique_ptr<const Program> only_ids_;
  std::unique_ptr<base::Pool<Request>> requests_;
};

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_UNIQUE_PART_H_
