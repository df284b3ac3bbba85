#include "tools/transport_bench/work.h"

namespace refract::transport_bench {

absl::string_view OpName(Op op) {
  switch (op) {
    case Op::kPingPong:
      return "pingpong";
    case Op::kPull:
      return "pull";
    case Op::kGet:
      return "get";
    case Op::kStream:
      return "stream";
    case Op::kGetStream:
      return "get-stream";
    case Op::kFanIn:
      return "fan-in";
  }
  return "?";
}

absl::string_view ModeName(Mode mode) {
  switch (mode) {
    case Mode::kBusy:
      return "busy";
    case Mode::kEvent:
      return "event";
    case Mode::kAdaptive:
      return "adaptive";
  }
  return "?";
}

const std::vector<Op>& AllOps() {
  static const auto* all =
      new std::vector<Op>{Op::kPingPong, Op::kPull,      Op::kGet,
                          Op::kStream,   Op::kGetStream, Op::kFanIn};
  return *all;
}

}  // namespace refract::transport_bench
