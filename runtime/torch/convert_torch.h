#ifndef REFRACT_RUNTIME_TORCH_CONVERT_TORCH_H_
#define REFRACT_RUNTIME_TORCH_CONVERT_TORCH_H_

// Conversion of operands and results to and from LibTorch, and of LibTorch's
// exceptions to Status. Includes LibTorch: for *_torch.cc only.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "runtime/torch/caller.h"

namespace refract::runtime::aten {

// nullopt for kUnknown; kUnknown for types that the IR lacks (complex, …).
std::optional<at::ScalarType> ToScalarType(base::DType dtype);
base::DType FromScalarType(at::ScalarType type);

// A tensor over the operand's own memory, which must outlive it. Numbers become
// scalars that promote as Python numbers do; kNone an undefined tensor.
absl::StatusOr<at::Tensor> ToTensor(const Operand& operand);
at::Tensor WrapNumber(const at::Scalar& number);

// int, float or bool, from a size or from a tensor of one element; None for
// kNone.
absl::StatusOr<c10::IValue> ToNumber(const Operand& operand);

// Converts `number` (int, float, bool or None) to the type of a schema argument
// of `kind`. InvalidArgument: a float for an int argument.
absl::StatusOr<c10::IValue> CastNumber(const c10::IValue& number,
                                       c10::TypeKind kind);

// LibTorch's messages continue with hints and backtraces.
inline absl::string_view FirstLine(absl::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text.substr(0, text.find('\n'));
}

// The Status of a caught c10::Error: InvalidArgument unless the text clearly
// says otherwise.
absl::Status FromTorchError(absl::string_view name, const c10::Error& error);

// Runs `body`, which returns a Status, and turns an exception into a Status
// whose message begins with `name`.
template <typename Body>
absl::Status Guarded(absl::string_view name, const Body& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    return FromTorchError(name, error);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(name, ": out of memory"));
  } catch (const std::exception& error) {
    return absl::InternalError(
        absl::StrCat(name, ": ", FirstLine(error.what())));
  }
}

// Appends a tensor, a number, None, or each tensor of a list. Unimplemented: a
// result that the IR cannot hold. May throw what LibTorch throws.
absl::Status AppendResult(const c10::IValue& value,
                          std::vector<Result>& results);

// Keeps LibTorch from running this thread's operators on several threads.
void UseOneThreadHere();

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_CONVERT_TORCH_H_
