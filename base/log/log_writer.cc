#include "base/log/log_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/json.h"
#include "base/shorten.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"

namespace refract::base {
namespace {

// An error ends the attempt: there is nowhere to report it.
void WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

const char* LevelName(google::LogSeverity severity) {
  switch (severity) {
    case google::GLOG_INFO:
      return "info";
    case google::GLOG_WARNING:
      return "warning";
    case google::GLOG_ERROR:
      return "error";
    default:
      return "fatal";
  }
}

// Without the end of the line.
std::string JsonLine(absl::Time time, absl::string_view level,
                     absl::string_view source, absl::string_view message) {
  const nlohmann::ordered_json json = {
      {"time",
       absl::FormatTime("%Y-%m-%d%ET%H:%M:%E6SZ", time, absl::UTCTimeZone())},
      {"level", std::string(level)},
      {"source", std::string(source)},
      {"message", std::string(message)}};
  return base::FormatJson(json);
}

}  // namespace

// Shared with the writing thread, which may outlive the LogWriter: it cannot be
// joined while write(2) blocks.
struct LogWriter::Queue {
  absl::Mutex mu;
  std::string lines ABSL_GUARDED_BY(mu);
  int64_t dropped ABSL_GUARDED_BY(mu) = 0;
  LogFormat format = LogFormat::kText;
  bool writing ABSL_GUARDED_BY(mu) = false;  // the thread has taken lines
  bool closed ABSL_GUARDED_BY(mu) = false;

  // Writes lines until the queue is closed.
  void WriteTo(int fd);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return closed || !lines.empty();
  }
  bool AllWritten() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return lines.empty() && !writing;
  }
};

void LogWriter::Queue::WriteTo(int fd) {
  std::string taken;
  while (true) {
    {
      absl::MutexLock lock(&mu);
      writing = false;
      mu.Await(absl::Condition(this, &Queue::HasWork));
      if (lines.empty()) return;  // closed
      taken.clear();
      // Lines are taken as a whole and written without the lock, so that
      // threads that log never wait for the reader of the log.
      taken.swap(lines);
      if (dropped > 0) {
        const std::string missing = absl::StrCat(
            dropped,
            " lines of the log are missing here: they came faster than they "
            "were read");
        absl::StrAppend(&taken,
                        format == LogFormat::kJson
                            ? JsonLine(absl::Now(), "warning", "", missing)
                            : absl::StrCat("refract: ", missing),
                        "\n");
        dropped = 0;
      }
      writing = true;
    }
    WriteAll(fd, taken);
  }
}

class LogWriter::Sink final : public google::LogSink {
 public:
  Sink(LogFormat format, int fd) : fd_(fd) {
    queue_->format = format;
    thread_ = std::thread([fd, queue = queue_] { queue->WriteTo(fd); });
  }

  ~Sink() override {
    const bool flushed = Flush(kLastLines);
    {
      absl::MutexLock lock(&queue_->mu);
      queue_->closed = true;
    }
    // write(2) of an unread pipe may block for ever, and then the thread cannot
    // be joined; it owns a share of the queue and ends with the process.
    if (flushed) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }

  bool Flush(absl::Duration longest) {
    absl::MutexLock lock(&queue_->mu);
    return queue_->mu.AwaitWithTimeout(
        absl::Condition(queue_.get(), &Queue::AllWritten), longest);
  }

  void send(google::LogSeverity severity, const char*, const char* file,
            int line, const google::LogMessageTime& time, const char* message,
            size_t length) override {
    const std::string text =
        queue_->format == LogFormat::kJson
            ? JsonLine(
                  absl::FromTimeT(time.timestamp()) +
                      absl::Microseconds(time.usec()),
                  LevelName(severity), absl::StrCat(file, ":", line),
                  Shorten(absl::string_view(message, length), kMaxLogLineBytes))
            : Shorten(ToString(severity, file, line, time, message, length),
                      kMaxLogLineBytes);
    Add(text);
    if (severity == google::GLOG_FATAL) fatal_ = true;
  }

  // One line, without its end.
  void Add(absl::string_view text) {
    absl::MutexLock lock(&queue_->mu);
    // Bounded: a reader that stalls costs lines, not memory.
    if (queue_->lines.size() + text.size() >= kMaxWaitingBytes) {
      ++queue_->dropped;
    } else {
      absl::StrAppend(&queue_->lines, text, "\n");
    }
  }

  LogFormat format() const { return queue_->format; }

  // Called after each line, under no lock of glog's. Only the line that ends
  // the process is worth waiting for.
  void WaitTillSent() override {
    if (!fatal_ || Flush(kLastLines)) return;
    // Nobody reads the pipe any more: the lines that glog itself writes while
    // it aborts must not block.
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null >= 0) dup2(null, fd_);
  }

 private:
  const int fd_;
  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::atomic<bool> fatal_ = false;
  std::thread thread_;
};

LogWriter::LogWriter(LogFormat format, int fd)
    : sink_(std::make_unique<Sink>(format, fd)) {
  google::AddLogSink(sink_.get());
  // Neither log files nor glog's own, blocking, writing to stderr.
  for (int i = 0; i < google::NUM_SEVERITIES; ++i) {
    google::SetLogDestination(i, "");
  }
  FLAGS_logtostderr = false;
  FLAGS_alsologtostderr = false;
  FLAGS_stderrthreshold = google::NUM_SEVERITIES;
}

LogWriter::~LogWriter() {
  google::RemoveLogSink(sink_.get());
  FLAGS_logtostderr = true;
}

bool LogWriter::Flush(absl::Duration longest) { return sink_->Flush(longest); }

int LogWriter::Exit(absl::string_view program, const absl::Status& status) {
  if (status.ok()) return 0;
  sink_->Add(sink_->format() == LogFormat::kJson
                 ? JsonLine(absl::Now(), "error", program, status.message())
                 : absl::StrCat(program, ": ", status.message()));
  Flush(kLastLines);
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? 2 : 1;
}

}  // namespace refract::base
