#ifndef REFRACT_BASE_SHORTEN_H_
#define REFRACT_BASE_SHORTEN_H_

// Text from peers and clients, cut to a bounded length before it goes into
// status messages and logs.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace refract::base {

// Names of inputs, models, parameters and so on. A model's own names are
// shorter; a longer name is a client's mistake, whose beginning is enough to
// find it.
inline constexpr size_t kMaxNameTextBytes = 128;

// Status messages. gRPC carries them as metadata, percent-encoded (up to three
// bytes per byte), and its clients refuse metadata from 8 KiB on: they would
// see that refusal instead of the status.
inline constexpr size_t kMaxStatusTextBytes = 2000;

// A line of the log.
inline constexpr size_t kMaxLogLineBytes = 4000;

// `text`, or if it is longer than `max_bytes`, its beginning and "…(N bytes)".
// The cut never splits a UTF-8 character. The result has at most `max_bytes` +
// 32 bytes.
std::string Shorten(absl::string_view text,
                    size_t max_bytes = kMaxNameTextBytes);

}  // namespace refract::base

#endif  // REFRACT_BASE_SHORTEN_H_
