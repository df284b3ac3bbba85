#ifndef REFRACT_TRACING_TRACE_H_
#define REFRACT_TRACING_TRACE_H_

// The trace of a request: spans, and the context that a request carries.

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace refract::tracing {

// All bytes 0: no trace.
using TraceId = std::array<uint8_t, 16>;
using SpanId = std::array<uint8_t, 8>;

// The context that a request carries from arrival to end. A value without
// memory of its own, so that untraced requests cost nothing.
struct RequestContext {
  // Whether the tracer considers the request; false while tracing is off.
  bool on = false;
  // Exported in any case. Otherwise only if the request fails or is slow.
  bool sampled = false;
  // From the client's traceparent; zeros: the client sent none.
  TraceId trace_id = {};
  SpanId parent = {};
};

// W3C Trace Context: fills in trace_id and parent of `context` from a
// traceparent header and sets `sampled` to its flag. Returns false, without a
// change, for other text.
bool ParseTraceparent(absl::string_view text, RequestContext& context);

// Random, never zeros.
TraceId NewTraceId();
SpanId NewSpanId();

struct Span {
  enum class Kind : uint8_t { kInternal = 1, kServer = 2, kClient = 3 };
  using Value = std::variant<std::string, int64_t>;

  SpanId id = {};
  SpanId parent = {};  // zeros: a root span
  std::string name;
  Kind kind = Kind::kInternal;
  absl::Time start;  // calendar time
  absl::Time end;
  std::vector<std::pair<std::string, Value>> attributes;  // text in UTF-8
  bool failed = false;
  std::string message;  // reason of the failure, in UTF-8
  // Address of the node of the span; empty: this node.
  std::string node;
};

struct Trace {
  TraceId id = {};
  bool sampled = false;  // the flag of traceparent
  std::vector<Span> spans;
};

// Offset of another node's clock, from times of requests. The four times of a
// request bound the offset (as in NTP, RFC 5905): it was sent before it was
// received, and answered before the answer came. The request with the shortest
// round trip bounds the clock offset best; it loses weight slowly, since clocks
// drift.
class ClockOffset {
 public:
  // Times on this clock, the other, the other, and this clock.
  void Add(absl::Time sent, absl::Time received, absl::Time answered,
           absl::Time came);
  // Zero before the first Add(). Off by at most half of shortest_way().
  absl::Duration ahead() const { return ahead_; }
  absl::Duration shortest_way() const { return way_; }

 private:
  absl::Duration ahead_;
  absl::Duration way_ = absl::InfiniteDuration();
  absl::Time at_ = absl::InfinitePast();
};

}  // namespace refract::tracing

#endif  // REFRACT_TRACING_TRACE_H_
