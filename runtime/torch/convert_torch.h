#ifndef REFRACT_RUNTIME_TORCH_CONVERT_TORCH_H_
#define REFRACT_RUNTIME_TORCH_CONVERT_TORCH_H_

// Operands and results as LibTorch sees them, and LibTorch's exceptions as
// Status. Includes LibTorch: for *_torch.cc only.

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

// Makes `number` (int, float, bool or None) what a schema argument of `kind`
// holds. InvalidArgument: a float where an int is wanted.
absl::StatusOr<c10::IValue> CastNumber(const c10::IValue& number,
                                       c10::TypeKind kind);

// LibTorch's messages go on with hints and backtraces.
inline absl::string_view FirstLine(absl::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text.substr(0, text.find('\n'));
}

// The Status of a caught c10::Error: InvalidArgument unless it is plainly about
// something else.
absl::Status FromTorchError(absl::string_view name, const c10::Error& error);

// Runs `body`, which returns a Status, and turns what it throws into one whose
// message begins with `name`.
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

// Keeps LibTorch from running an operator of this thread on several.
void UseOneThreadHere();

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_CONVERT_TORCH_H_
