#ifndef REFRACT_BASE_STATUS_MACROS_H_
#define REFRACT_BASE_STATUS_MACROS_H_

// Early return on a failed absl::Status / absl::StatusOr, and helpers that add
// the name of the thing that failed. Abseil 20220623 has none of these public.

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace refract::base {

// `status` with "`context`: " before its message; OK stays OK. The code stays,
// so that a front end can map it to an exit status or a gRPC code.
inline absl::Status Annotate(const absl::Status& status,
                             absl::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(context, ": ", status.message()));
}

}  // namespace refract::base

#define REFRACT_CONCAT_INNER_(a, b) a##b
#define REFRACT_CONCAT_(a, b) REFRACT_CONCAT_INNER_(a, b)

#define REFRACT_RETURN_IF_ERROR(expr)              \
  do {                                             \
    ::absl::Status refract_status_ = (expr);       \
    if (!refract_status_.ok()) [[unlikely]] {      \
      return refract_status_;                      \
    }                                              \
  } while (false)

// REFRACT_ASSIGN_OR_RETURN(auto x, MakeX());
#define REFRACT_ASSIGN_OR_RETURN(lhs, expr) \
  REFRACT_ASSIGN_OR_RETURN_IMPL_(           \
      REFRACT_CONCAT_(refract_statusor_, __LINE__), lhs, expr)

#define REFRACT_ASSIGN_OR_RETURN_IMPL_(result, lhs, expr) \
  auto result = (expr);                                   \
  if (!result.ok()) [[unlikely]] {                        \
    return std::move(result).status();                    \
  }                                                       \
  lhs = *std::move(result)

#endif  // REFRACT_BASE_STATUS_MACROS_H_
