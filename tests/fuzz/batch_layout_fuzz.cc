// Requests whose rows and bags are put together and cut: what a peer says about
// its rows decides what is copied where. What is accepted holds each bag's own
// entries, in order and in memory of the request or of the node; offsets that
// tell no bags are refused, and nothing else is.
#include <glog/logging.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>

#include "runtime/compile/batch_layout.h"
#include "tests/fuzz/target.h"

namespace refract::fuzz {
namespace {

using base::DType;
using base::TensorView;
using models::SymExpr;
using models::ValueId;
using models::ValueRef;
using runtime::BatchLayout;
using runtime::RowBuffers;
using Views = std::vector<TensorView>;

// A part's inputs, in their order.
enum : size_t { kX, kEmpty, kCount, kSame, kIds, kWeights, kOffsets };
constexpr size_t kInputs = 7;
constexpr int64_t kColumns = 3;

// Flags of a case.
constexpr uint8_t kIncludeLast = 1;
constexpr uint8_t kNarrow = 2;  // offsets of 32 bits

// Inputs that all rows share are compared up to this many bytes.
constexpr size_t kMostSameBytes = 1 << 20;
// More are never executed as one.
constexpr int64_t kMostRows = 1 << 16;

ValueId Add(models::Graph& graph, std::string name, DType dtype,
            std::vector<SymExpr> shape, std::string weight = "") {
  models::Value value;
  value.name = std::move(name);
  value.dtype = dtype;
  value.has_shape = true;
  value.shape = std::move(shape);
  value.weight = std::move(weight);
  return graph.AddValue(std::move(value));
}

// sums[b] = Σ of a bag's weighted rows of a table; the other inputs are read by
// nothing, which is all the same to the layout.
BatchLayout MakeLayout(uint8_t how) {
  models::Graph graph;
  graph.batch_symbol = std::string(1, 'B');
  const SymExpr batch = SymExpr::Symbol("B");
  const SymExpr entries = SymExpr::Symbol("N");
  runtime::Part part;
  part.inputs = {
      Add(graph, "x", DType::kFloat32, {batch, SymExpr(kColumns)}),
      Add(graph, "empty", DType::kFloat32, {batch, SymExpr::Symbol("M")}),
      Add(graph, "count", DType::kInt64, {}),
      Add(graph, "same", DType::kFloat32, {SymExpr::Symbol("S")}),
      Add(graph, "ids", DType::kInt64, {entries}),
      Add(graph, "weights", DType::kFloat32, {entries}),
      Add(graph, "offsets",
          (how & kNarrow) != 0 ? DType::kInt32 : DType::kInt64,
          {(how & kIncludeLast) != 0 ? batch + SymExpr(int64_t{1}) : batch})};
  models::Value& count = graph.values[part.inputs[kCount]];
  count.kind = models::ValueKind::kSymInt;
  count.sym_value = batch;
  const ValueId table = Add(graph, "table", DType::kFloat32,
                            {SymExpr(int64_t{10}), SymExpr(int64_t{4})}, "t");
  const ValueId sums =
      Add(graph, "sums", DType::kFloat32, {batch, SymExpr(int64_t{4})});
  models::Node node;
  node.name = "bags";
  node.op = "aten.embedding_bag.default";
  node.args = {{"weight", ValueRef{table}},
               {"indices", ValueRef{part.inputs[kIds]}},
               {"offsets", ValueRef{part.inputs[kOffsets]}},
               {"mode", int64_t{0}},
               {"per_sample_weights", ValueRef{part.inputs[kWeights]}},
               {"include_last_offset", (how & kIncludeLast) != 0}};
  node.outputs = {sums};
  graph.values[sums].producer = 0;
  graph.nodes.push_back(std::move(node));
  part.nodes = {0};
  part.outputs = {sums};
  BatchLayout layout(graph, part,
                     {.use = models::RowUse::kAlone, .may_split = true});
  CHECK_EQ(layout.why_not(), "");
  return layout;
}

const BatchLayout& Layout(uint8_t how) {
  static auto* const layouts = new std::map<uint8_t, BatchLayout>;
  how &= kIncludeLast | kNarrow;
  const auto found = layouts->find(how);
  if (found != layouts->end()) return found->second;
  return layouts->emplace(how, MakeLayout(how)).first->second;
}

// Exactly so many bytes: one more is a fault.
struct Free {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using Bytes = std::unique_ptr<std::byte, Free>;

struct Request {
  std::vector<Bytes> memory;
  Views views;
  std::vector<int64_t> offsets;  // as they are read

  int64_t rows() const { return views[kX].dims[0]; }
  int64_t entries() const { return views[kIds].dims[0]; }
};

// Says its sizes; its bytes are what they make.
bool AddTensor(Request& request, DType dtype, base::Dims dims) {
  const auto bytes = base::ByteSize(dtype, dims);
  // Tensors of a message have no negative size and no more bytes than it.
  if (!bytes.ok() || *bytes > 65536) return false;
  void* data = nullptr;
  CHECK_EQ(posix_memalign(&data, base::kTensorAlignBytes, *bytes), 0);
  request.memory.emplace_back(static_cast<std::byte*>(data));
  for (size_t i = 0; i < *bytes; ++i) {
    static_cast<uint8_t*>(data)[i] =
        static_cast<uint8_t>(request.views.size() * 31 + i * 7 + *bytes);
  }
  request.views.push_back(
      {dtype, std::move(dims), request.memory.back().get(), *bytes});
  return true;
}

// Right but for some sizes and offsets. nullopt: no message.
std::optional<Request> ReadRequest(Input& input, uint8_t how) {
  const bool include_last = (how & kIncludeLast) != 0;
  std::vector<int64_t> offsets = {0};
  for (int rows = input.U8() % 32; rows > 0; --rows) {
    offsets.push_back(offsets.back() + input.U8() % 8);
  }
  const auto rows = static_cast<int64_t>(offsets.size()) - 1;
  const int64_t entries = offsets.back();
  if (!include_last) offsets.pop_back();
  int64_t sizes[] = {
      rows, rows, 0, 2, entries, entries, static_cast<int64_t>(offsets.size())};
  const int64_t empty = input.U8() % 2 * 2;
  const uint8_t same = input.U8();
  for (int edits = input.U8() % 8; edits > 0; --edits) {
    const uint8_t at = input.U8();
    const uint64_t to = input.U64();
    if (at % 8 < kInputs) {
      sizes[at % 8] = static_cast<int64_t>(to);
    } else if (!offsets.empty()) {
      offsets[at / 8 % offsets.size()] = static_cast<int64_t>(to);
    }
  }
  Request request;
  const DType narrow = (how & kNarrow) != 0 ? DType::kInt32 : DType::kInt64;
  if (!AddTensor(request, DType::kFloat32, {sizes[kX], kColumns}) ||
      !AddTensor(request, DType::kFloat32, {sizes[kEmpty], empty}) ||
      !AddTensor(request, DType::kInt64, {}) ||
      !AddTensor(request, DType::kFloat32, {sizes[kSame]}) ||
      !AddTensor(request, DType::kInt64, {sizes[kIds]}) ||
      !AddTensor(request, DType::kFloat32, {sizes[kWeights]}) ||
      !AddTensor(request, narrow, {sizes[kOffsets]})) {
    return std::nullopt;
  }
  std::byte* const values = request.memory[kSame].get();
  for (size_t i = 0; i < request.views[kSame].bytes; ++i) {
    values[i] = static_cast<std::byte>(same % 4);
  }
  // Only bytes that fit are written; the others stay as they were.
  std::byte* const data = request.memory[kOffsets].get();
  const size_t width = base::SizeOf(narrow);
  for (size_t i = 0; i < request.views[kOffsets].bytes / width; ++i) {
    if (i < offsets.size()) std::memcpy(data + i * width, &offsets[i], width);
    int64_t read = 0;
    if (narrow == DType::kInt32) {
      int32_t number;
      std::memcpy(&number, data + i * width, width);
      read = number;
    } else {
      std::memcpy(&read, data + i * width, width);
    }
    request.offsets.push_back(read);
  }
  return request;
}

// The entries of row `row`, when all offsets are right.
std::pair<int64_t, int64_t> Bag(const Request& request, size_t row) {
  const int64_t end = row + 1 < request.offsets.size()
                          ? request.offsets[row + 1]
                          : request.entries();
  return {request.offsets[row], end};
}

// Whether the offsets of rows from `first` on tell bags one after the other,
// among the entries. `last_counts`: the last one has to be their number.
bool TellBags(const Request& request, int64_t first, int64_t count,
              bool last_counts) {
  if (first == 0 && request.offsets[0] != 0) return false;
  for (int64_t row = first; row < first + count; ++row) {
    const auto [begin, end] = Bag(request, static_cast<size_t>(row));
    if (begin < 0 || end < begin || end > request.entries()) return false;
  }
  return !last_counts || request.offsets.back() == request.entries();
}

int64_t OffsetAt(const TensorView& view, int64_t i) {
  return view.dtype == DType::kInt32 ? view.as<int32_t>()[i]
                                     : view.as<int64_t>()[i];
}

// `count` rows of `request` from `first` on are rows of `got` from `at` on.
void CheckRows(const Request& request, int64_t first, int64_t count,
               absl::Span<const TensorView> got, int64_t at,
               bool include_last) {
  for (const size_t i : {kX, kEmpty}) {
    const size_t bytes =
        base::SizeOf(got[i].dtype) * static_cast<size_t>(got[i].dims[1]);
    CHECK(std::equal(request.views[i].data + first * bytes,
                     request.views[i].data + (first + count) * bytes,
                     got[i].data + at * bytes));
  }
  for (int64_t row = 0; row < count; ++row) {
    const auto [begin, end] = Bag(request, static_cast<size_t>(first + row));
    const int64_t own = OffsetAt(got[kOffsets], at + row);
    const bool is_last = !include_last && at + row + 1 == got[kX].dims[0];
    const int64_t next =
        is_last ? got[kIds].dims[0] : OffsetAt(got[kOffsets], at + row + 1);
    CHECK_EQ(next - own, end - begin);
    CHECK(own >= 0 && next <= got[kIds].dims[0]);
    for (const size_t i : {kIds, kWeights}) {
      const size_t bytes = base::SizeOf(got[i].dtype);
      CHECK(std::equal(request.views[i].data + begin * bytes,
                       request.views[i].data + end * bytes,
                       got[i].data + own * bytes));
    }
  }
}

// Sizes that make the bytes; `rows` rows.
void CheckSizes(absl::Span<const TensorView> got, int64_t rows,
                bool include_last) {
  CHECK_EQ(got.size(), kInputs);
  for (const TensorView& view : got) {
    const auto bytes = base::ByteSize(view.dtype, view.dims);
    CHECK(bytes.ok() && *bytes == view.bytes);
  }
  CHECK(got[kX].dims[0] == rows && got[kEmpty].dims[0] == rows);
  CHECK_EQ(got[kOffsets].dims[0], rows + (include_last ? 1 : 0));
  CHECK_EQ(got[kIds].dims[0], got[kWeights].dims[0]);
  CHECK_EQ(got[kCount].as<int64_t>()[0], rows);
}

void CheckSteps(const BatchLayout& layout, const Request& request, int64_t step,
                bool include_last) {
  RowBuffers buffers;
  for (int64_t first = 0; first < request.rows(); first += step) {
    const int64_t count = std::min(step, request.rows() - first);
    const auto slice = layout.Slice(request.views, first, count, buffers);
    // Entries after the last bag are nobody's, as PyTorch has it.
    CHECK_EQ(slice.ok(), TellBags(request, first, count, false))
        << slice.status();
    if (!slice.ok()) {
      CHECK(absl::IsInvalidArgument(slice.status()));
      continue;
    }
    CheckSizes(*slice, count, include_last);
    CheckRows(request, first, count, *slice, 0, include_last);
  }
}

void CheckTogether(const BatchLayout& layout,
                   const std::vector<const Request*>& requests,
                   bool include_last) {
  std::vector<absl::Span<const TensorView>> views;
  int64_t rows = 0;
  bool right = true;
  for (const Request* request : requests) {
    views.emplace_back(request->views);
    rows += request->rows();
    right = right && TellBags(*request, 0, request->rows(), include_last);
  }
  RowBuffers buffers;
  const auto together = layout.Gather(views, buffers);
  CHECK_EQ(together.ok(), right) << together.status();
  if (!together.ok()) {
    CHECK(absl::IsInvalidArgument(together.status()));
    return;
  }
  CheckSizes(*together, rows, include_last);
  int64_t at = 0;
  for (const Request* request : requests) {
    CheckRows(*request, 0, request->rows(), *together, at, include_last);
    at += request->rows();
    CHECK(std::equal(request->views[kSame].data,
                     request->views[kSame].data + request->views[kSame].bytes,
                     (*together)[kSame].data));
  }
}

// `edits` as ReadRequest() reads them: an input's size, or an offset.
struct Edit {
  uint8_t at;
  uint64_t to;
};
std::string Row(const std::vector<uint8_t>& lengths,
                const std::vector<Edit>& edits = {}) {
  Script script;
  script.U8(static_cast<uint8_t>(lengths.size()));
  for (const uint8_t length : lengths) script.U8(length);
  script.U8(1).U8(2).U8(static_cast<uint8_t>(edits.size()));
  for (const Edit& edit : edits) script.U8(edit.at).U64(edit.to);
  return script.bytes();
}
constexpr uint8_t kFirstOffset = 7, kSecondOffset = 15;

std::string Case(uint8_t how, uint8_t step,
                 const std::vector<std::string>& requests) {
  Script script;
  script.U8(how).U8(step).U8(static_cast<uint8_t>(requests.size() - 1));
  for (const std::string& request : requests) script.Raw(request);
  return script.bytes();
}

}  // namespace

std::vector<Seed> Seeds() {
  const std::string plain = Row({2, 0, 3, 1});
  return {
      {"plain", Case(0, 1, {plain, Row({1}), Row({0, 7})})},
      {"last", Case(kIncludeLast, 2, {plain, plain})},
      {"narrow", Case(kIncludeLast | kNarrow, 3, {plain, Row({0})})},
      {"backwards", Case(0, 1, {Row({2, 2}, {{kSecondOffset, 5}})})},
      {"negative", Case(kNarrow, 1, {Row({2, 2}, {{kFirstOffset, ~0ull}})})},
      {"far", Case(0, 1, {Row({2, 2}, {{kSecondOffset, 1ull << 63}})})},
      {"entries_left", Case(kIncludeLast, 1, {Row({2}, {{kSecondOffset, 1}})})},
      {"other_rows", Case(0, 1, {Row({2, 2}, {{kX, 3}}), plain})},
      {"other_entries", Case(0, 1, {Row({2, 2}, {{kWeights, 3}}), plain})}};
}

}  // namespace refract::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace refract;
  using namespace refract::fuzz;
  fuzz::Input input(data, size);
  const uint8_t how = input.U8();
  const int64_t step = 1 + input.U8() % 32;
  const bool include_last = (how & kIncludeLast) != 0;
  const BatchLayout& layout = Layout(how);
  std::vector<Request> requests;
  for (int left = 1 + input.U8() % 4; left > 0; --left) {
    std::optional<Request> request = ReadRequest(input, how);
    if (request.has_value()) requests.push_back(*std::move(request));
  }
  const auto key = [&](const Request& request) {
    return layout.MergeKey(request.views);
  };
  std::vector<const Request*> together;
  for (const Request& request : requests) {
    const std::optional<int64_t> rows = layout.Rows(request.views);
    CHECK_EQ(key(request).empty(),
             !rows.has_value() || request.views[kSame].bytes > kMostSameBytes);
    if (!rows.has_value()) continue;
    CHECK_EQ(*rows, request.rows());
    CHECK_EQ(request.views[kIds].dims[0], request.views[kWeights].dims[0]);
    if (*rows > kMostRows) continue;
    CheckSteps(layout, request, step, include_last);
    if (key(request).empty() || key(request) != key(requests[0])) continue;
    together.push_back(&request);
  }
  if (!together.empty()) CheckTogether(layout, together, include_last);
  return 0;
}
