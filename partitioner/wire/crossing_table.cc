#include "partitioner/wire/crossing_table.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "models/graph/constants.h"
#include "models/repository/requests/request_files.h"
#include "models/repository/split_plan.h"
#include "runtime/batch_padding.h"
#include "runtime/program.h"
#include "runtime/wire/codec.h"
#include "runtime/wire/elements.h"
#include "transport/messages/wire.h"

namespace refract::partitioner {
namespace {

using base::DType;
using models::ValueId;
using models::WireForm;
using models::WireType;
using runtime::wire::RoundUp;

double EntryBytes(const base::TensorSpec& tensor) {
  return static_cast<double>(transport::kTableEntryBytes +
                             sizeof(int64_t) * tensor.dims.size());
}

size_t BytesOf(const base::TensorSpec& tensor) {
  return base::ByteSize(tensor.dtype, tensor.dims).value_or(0);
}

}  // namespace

// Facts of a value in one request from which its size in every form follows.
CrossingTable::Seen CrossingTable::Look(const base::TensorView& view) {
  Seen seen{.spec = {view.dtype, view.dims}};
  seen.fits_int32 =
      view.dtype == DType::kInt64 &&
      runtime::wire::Fit(WireType::kInt32, view.data,
                         static_cast<size_t>(view.num_elements()));
  // Rows are slices along the first dimension. Fewer than two rows have no
  // repetition, and an index has 32 bits.
  if (!view.dims.empty() && view.bytes > 0 && view.dims[0] > 1 &&
      view.dims[0] <= INT32_MAX) {
    const runtime::wire::UniqueRows rows = runtime::wire::FindUniqueRows(view);
    seen.distinct_rows = static_cast<int64_t>(rows.first.size());
    seen.index = rows.index_spec();
  }
  return seen;
}

absl::StatusOr<CrossingTable> CrossingTable::Measure(
    const models::LoadedModel& model,
    const std::vector<SampleRequest>& requests) {
  const models::Graph& graph = model.graph;
  const std::vector<bool> constant = models::ConstantNodes(graph);
  // The whole model as one part, with every value that may cross among its
  // results, so that one run shows the sizes of all of them.
  runtime::Part part = runtime::Part::Whole(graph);
  part.outputs.clear();
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const models::Value& value = graph.values[id];
    if (value.producer != models::kNoNode && !constant[value.producer] &&
        models::MayCross(value)) {
      part.outputs.push_back(static_cast<ValueId>(id));
    }
  }
  runtime::CompileOptions compile;
  compile.config = model.config;
  REFRACT_ASSIGN_OR_RETURN(
      const auto program,
      runtime::Program::Compile(graph, part, model.weights, compile));
  runtime::RunContext context(*program);
  const runtime::BatchPadding padding(graph);
  CrossingTable table;
  table.values_.resize(graph.values.size());
  std::vector<base::TensorView> outputs;
  for (const SampleRequest& request : requests) {
    runtime::PaddedBatch padded;
    const std::vector<base::TensorView> views = models::ViewsOf(request.inputs);
    // Sizes after padding, because the nodes send padded batches.
    REFRACT_RETURN_IF_ERROR(padding.Pad(views, padded));
    const absl::Status ran =
        program->Run(padded.inputs(), {}, context, outputs);
    if (!ran.ok()) return base::Annotate(ran, request.name);
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      table.values_[graph.inputs[i]].push_back(Look(padded.inputs()[i]));
    }
    for (size_t i = 0; i < part.outputs.size(); ++i) {
      table.values_[part.outputs[i]].push_back(Look(outputs[i]));
    }
  }
  return table;
}

CrossingTable::Size CrossingTable::Of(ValueId value, WireForm form) const {
  Size size;
  const std::vector<Seen>& all = values_[value];
  if (all.empty()) return size;
  size.distinct = 0;
  for (const Seen& seen : all) {
    const size_t plain = BytesOf(seen.spec);
    WireType type = form.type;
    // Ids that do not fit int32 are sent without a form.
    if (type == WireType::kInt32 && !seen.fits_int32) type = WireType::kAsIs;
    const auto count =
        seen.spec.dims.empty() ? int64_t{1} : seen.spec.dims.front();
    // Bytes of a row in the wire type; a scalar counts as one row.
    const size_t row =
        seen.spec.dims.empty()
            ? BytesOf({runtime::wire::CarrierOf(seen.spec.dtype, type),
                       seen.spec.dims})
            : runtime::wire::WireRowBytes(seen.spec, type);
    // Two sums: `bytes` as the network link carries them, `padded` as the
    // message places them. Each tensor of a message begins at a multiple of 64.
    size_t bytes = row * static_cast<size_t>(count);
    size_t padded = RoundUp(bytes);
    double entries = EntryBytes(seen.spec);
    double distinct = 1;
    if (form.unique_rows) {
      // An empty index says that no rows are equal.
      entries += transport::kTableEntryBytes + sizeof(int64_t);
      const size_t once = row * static_cast<size_t>(seen.distinct_rows);
      const size_t index = seen.distinct_rows > 0 ? BytesOf(seen.index) : 0;
      // The encoder's rule: unique rows are sent only where they are shorter.
      if (seen.distinct_rows > 0 && RoundUp(once) + RoundUp(index) < padded) {
        bytes = RoundUp(once) + index;
        padded = RoundUp(once) + RoundUp(index);
        entries +=
            static_cast<double>(sizeof(int64_t) * (seen.index.dims.size() - 1));
        distinct = static_cast<double>(seen.distinct_rows) /
                   static_cast<double>(count);
      }
    }
    size.plain_bytes += static_cast<double>(plain);
    size.bytes += static_cast<double>(bytes);
    size.message_bytes += static_cast<double>(padded) + entries;
    size.distinct += distinct;
  }
  const auto requests = static_cast<double>(all.size());
  size.plain_bytes /= requests;
  size.bytes /= requests;
  size.message_bytes /= requests;
  size.distinct /= requests;
  return size;
}

bool CrossingTable::Narrows(ValueId value) const {
  const std::vector<Seen>& all = values_[value];
  return !all.empty() &&
         std::all_of(all.begin(), all.end(),
                     [](const Seen& seen) { return seen.fits_int32; });
}

}  // namespace refract::partitioner
