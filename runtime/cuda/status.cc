#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

const char* CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "OK";
    case Code::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case Code::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case Code::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case Code::kUnimplemented:
      return "UNIMPLEMENTED";
    case Code::kUnavailable:
      return "UNAVAILABLE";
    case Code::kInternal:
      return "INTERNAL";
  }
  return "UNKNOWN";
}

std::string Status::ToString() const {
  if (ok()) return CodeName(code_);
  return std::string(CodeName(code_)).append(": ").append(message_);
}

}  // namespace refract::runtime::cuda
