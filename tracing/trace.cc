#include "tracing/trace.h"

#include <algorithm>

#include "absl/random/random.h"
#include "absl/types/span.h"

namespace refract::tracing {
namespace {

// Quartz clocks of servers differ by up to 100 millionths.
constexpr double kDrift = 1e-4;

// Lower-case hexadecimal digits only, as the standard demands.
bool ReadHex(absl::string_view text, absl::Span<uint8_t> bytes) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int high = digit(text[2 * i]);
    const int low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return true;
}

template <typename Id>
Id NewId() {
  // Ids must differ, but need not be hard to guess. One generator per thread
  // needs no lock.
  thread_local absl::InsecureBitGen random;
  Id id;
  do {
    for (uint8_t& byte : id) byte = absl::Uniform<uint8_t>(random);
  } while (id == Id());
  return id;
}

}  // namespace

bool ParseTraceparent(absl::string_view text, RequestContext& context) {
  // VERSION-TRACE-PARENT-FLAGS: 2, 32, 16 and 2 digits. Later versions may go
  // on after a further hyphen.
  constexpr size_t kLength = 55;
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' ||
      text[52] != '-') {
    return false;
  }
  uint8_t version = 0;
  uint8_t flags = 0;
  TraceId trace;
  SpanId parent;
  if (!ReadHex(text, absl::MakeSpan(&version, 1)) || version == 0xff ||
      !ReadHex(text.substr(3), absl::MakeSpan(trace)) ||
      !ReadHex(text.substr(36), absl::MakeSpan(parent)) ||
      !ReadHex(text.substr(53), absl::MakeSpan(&flags, 1))) {
    return false;
  }
  if (text.size() > kLength && (version == 0 || text[kLength] != '-')) {
    return false;
  }
  if (trace == TraceId() || parent == SpanId()) return false;
  context.trace_id = trace;
  context.parent = parent;
  context.sampled = (flags & 1) != 0;
  return true;
}

TraceId NewTraceId() { return NewId<TraceId>(); }
SpanId NewSpanId() { return NewId<SpanId>(); }

void ClockOffset::Add(absl::Time sent, absl::Time received, absl::Time answered,
                      absl::Time came) {
  const absl::Duration way = (came - sent) - (answered - received);
  // Impossible times, from a broken peer.
  if (way < absl::ZeroDuration() || answered < received) return;
  // The shortest round trip bounds the offset best. An older one is less
  // certain by the drift since, so its length counts as grown by that much.
  if (way > way_ + kDrift * (came - at_)) return;
  // received - sent is the offset plus the way there, answered - came the
  // offset minus the way back. The ways cancel as far as they are equally long;
  // the error is at most half of `way`.
  ahead_ = ((received - sent) + (answered - came)) / 2;
  way_ = way;
  at_ = came;
}

}  // namespace refract::tracing
