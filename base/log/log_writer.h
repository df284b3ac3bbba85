#ifndef REFRACT_BASE_LOG_LOG_WRITER_H_
#define REFRACT_BASE_LOG_LOG_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace refract::base {

enum class LogFormat : uint8_t {
  kText,  // glog's lines
  // An object per line: {"time": "2026-01-31T12:00:00.123456Z", "level":
  // "info", "source": "engine.cc:12", "message": "…"}. Bytes that are no UTF-8
  // become U+FFFD.
  kJson,
};

// Writes glog's lines to a file descriptor on a thread of its own, so that a
// logging thread never waits for the reader. At most kMaxWaitingBytes of lines
// wait, besides as many being written; later lines are dropped, and a line with
// their number follows when there is room. Lines are cut to kMaxLogLineBytes
// (base/shorten.h).
//
// Make it in main() after google::InitGoogleLogging(), because glog ignores
// flags before; while it exists, glog writes only to it. One per process. A
// line of LOG(FATAL) is waited for, but at most for kLastLines.
class LogWriter {
 public:
  // Holds the lines of a busy second or two; a slower reader loses lines.
  static constexpr size_t kMaxWaitingBytes = size_t{1} << 20;
  // Long enough for any reader that still reads.
  static constexpr absl::Duration kLastLines = absl::Seconds(1);

  explicit LogWriter(LogFormat format = LogFormat::kText, int fd = 2);
  // Calls Flush(kLastLines). Later lines go where glog's flags say.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Waits until all lines logged before are written, at most for `longest`;
  // returns whether they are.
  bool Flush(absl::Duration longest);

  // The exit status of a program that ends with `status`: 0, 2 for bad usage or
  // bad input, 1 for other failures. An error becomes the last line, after all
  // lines before: "program: message", or an object.
  int Exit(absl::string_view program, const absl::Status& status);

 private:
  struct Queue;
  class Sink;
  std::unique_ptr<Sink> sink_;
};

}  // namespace refract::base

#endif  // REFRACT_BASE_LOG_LOG_WRITER_H_
