#include "partitioner/costs/message_bytes.h"

#include <cmath>

namespace refract::partitioner {
namespace {

// The transport's constants. The partitioner may not include them; a test
// compares both.
constexpr double kHeaderBytes = 64;
constexpr double kTableEntryBytes = 24;
constexpr double kDimensionBytes = 8;
constexpr double kAlign = 64;

double AlignUp(double value) { return std::ceil(value / kAlign) * kAlign; }

double RankOf(const models::Value& value) {
  if (value.kind != models::ValueKind::kTensor) return 0;  // a size: one number
  return value.has_shape ? static_cast<double>(value.shape.size()) : 2;
}

}  // namespace

double MessageBytes(const models::Graph& graph,
                    const std::vector<models::ValueId>& values,
                    const std::vector<double>& bytes,
                    const std::vector<WirePrice>& wire) {
  // Layout of a message: header, one entry per tensor with its dimensions, then
  // the tensors, each at a multiple of 64 (transport/messages/wire.h). The last
  // tensor has no padding behind it.
  double head = kHeaderBytes;
  double payload = 0;
  for (const models::ValueId id : values) {
    head += kTableEntryBytes + kDimensionBytes * RankOf(graph.value(id));
    const bool plain = wire.empty() || wire[id].form.is_plain();
    if (!plain && wire[id].form.unique_rows) {
      head += kTableEntryBytes + kDimensionBytes;  // the index of its rows
    }
    payload = AlignUp(payload) + (plain ? bytes[id] : wire[id].bytes);
  }
  return AlignUp(head) + payload;
}

}  // namespace refract::partitioner
