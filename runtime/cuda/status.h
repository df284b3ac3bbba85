#ifndef REFRACT_RUNTIME_CUDA_STATUS_H_
#define REFRACT_RUNTIME_CUDA_STATUS_H_

// Errors of the CUDA library, without Abseil (its code must build on a machine
// that has only the CUDA toolkit).

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace refract::runtime::cuda {

// Names and meanings of absl::StatusCode, so that callers can map them.
enum class Code : uint8_t {
  kOk,
  kInvalidArgument,     // the request or program is wrong
  kResourceExhausted,   // out of memory, or all slots are taken
  kFailedPrecondition,  // called in a state that does not allow it
  kUnimplemented,       // not possible on this device or for this data type
  kUnavailable,         // the device failed: nothing works until it is reset
  kInternal,
};

const char* CodeName(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // "UNAVAILABLE: cudaGraphLaunch: an illegal memory access was encountered"
  std::string ToString() const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

// A value, or an error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

#define REFRACT_CUDA_RETURN_IF_ERROR(expression)                        \
  do {                                                                  \
    if (::refract::runtime::cuda::Status refract_status = (expression); \
        !refract_status.ok()) {                                         \
      return refract_status;                                            \
    }                                                                   \
  } while (false)

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_STATUS_H_
