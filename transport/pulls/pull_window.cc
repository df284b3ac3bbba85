#include "transport/pulls/pull_window.h"

#include <algorithm>

namespace refract::transport {
namespace {

// Weight of the newest round in the average.
constexpr double kWeight = 0.25;
// A probe idles the link for about two delays.
constexpr int kDelaysPerProbe = 1000;

PullWindow::Options Sane(PullWindow::Options options) {
  options.chunk_bytes = std::max<size_t>(options.chunk_bytes, 1);
  options.min_chunks = std::max<size_t>(options.min_chunks, 1);
  options.max_bytes =
      std::max(options.max_bytes, options.chunk_bytes * options.min_chunks);
  options.gain = std::max(options.gain, 1.0);
  return options;
}

}  // namespace

PullWindow::PullWindow(const Options& options)
    : options_(Sane(options)), ceiling_(options_.max_bytes) {}

size_t PullWindow::Target() const {
  const absl::Duration delay = delay_.best();
  if (delay == absl::InfiniteDuration()) return min_bytes();
  const double ideal =
      options_.gain * rate_.best() * absl::ToDoubleSeconds(delay);
  const double limited = std::min(ideal, static_cast<double>(ceiling_));
  return std::max(static_cast<size_t>(limited), min_bytes());
}

absl::Duration PullWindow::delay() const {
  const absl::Duration delay = delay_.best();
  return delay == absl::InfiniteDuration() ? absl::ZeroDuration() : delay;
}

absl::Duration PullWindow::TimeFor(size_t bytes) const {
  if (average_rate_ == 0) return absl::ZeroDuration();
  return absl::Seconds(static_cast<double>(bytes) / average_rate_);
}

void PullWindow::Posted(const Get& get, absl::Time now) {
  if (round_.connection == nullptr) {
    round_ = get;
    round_began_ = now;
    round_delivered_ = delivered_;
    alone_ = outstanding_ == 0;
    lacked_demand_ = false;
  } else {
    alone_ = false;
  }
  outstanding_ += get.bytes;
}

void PullWindow::Completed(const Get& get, absl::Time now) {
  outstanding_ -= get.bytes;
  delivered_ += get.bytes;
  // A round lasts from a get's post to its completion: all bytes that complete
  // meanwhile, divided by its time, are a sample of the rate. A get that was
  // alone all the time is a sample of the delay.
  if (get.connection == round_.connection && get.serial == round_.serial) {
    round_.connection = nullptr;
    const absl::Duration took = now - round_began_;
    // A manual clock gives no rates.
    if (took > absl::ZeroDuration()) {
      TakeRate(static_cast<double>(delivered_ - round_delivered_) /
               absl::ToDoubleSeconds(took));
    }
    if (alone_) {
      // The time that a whole chunk would have taken.
      const size_t rest =
          options_.chunk_bytes - std::min(get.bytes, options_.chunk_bytes);
      TakeDelay(took + TimeFor(rest), now);
    }
  }
  if (now - last_delay_ >=
      std::max(options_.probe_interval, kDelaysPerProbe * delay_.best())) {
    probing_ = true;
  }
}

void PullWindow::Lost(const void* connection, size_t bytes) {
  outstanding_ -= bytes;
  if (round_.connection == connection) round_.connection = nullptr;
}

void PullWindow::CompletedLate(const Get& get, absl::Duration took,
                               absl::Time now) {
  delivered_ += get.bytes;  // they took time of the port
  NoteDelay(took, now);
}

void PullWindow::TakeRate(double rate) {
  if (!lacked_demand_ || rate > average_rate_) {
    average_rate_ = average_rate_ == 0
                        ? rate
                        : average_rate_ + kWeight * (rate - average_rate_);
  }
  rate_.Take(rate);
  // Rounds without demand must not displace the rate seen with demand.
  if (lacked_demand_ || ++rounds_ < options_.rate_span) return;
  rounds_ = 0;
  rate_.Turn();
}

void PullWindow::TakeDelay(absl::Duration delay, absl::Time now) {
  last_delay_ = now;
  probing_ = false;
  NoteDelay(delay, now);
}

void PullWindow::NoteDelay(absl::Duration delay, absl::Time now) {
  if (now - delay_turned_ >= options_.delay_span) {
    delay_turned_ = now;
    delay_.Turn();
  }
  delay_.Take(std::max(delay, absl::ZeroDuration()));
}

void PullWindow::CountMarks(uint64_t marks) {
  const double pulls =
      static_cast<double>(std::max<uint64_t>(pulls_since_marks_, 1));
  pulls_since_marks_ = 0;
  const double level = static_cast<double>(marks) / pulls;
  if (level > options_.high_marks) {
    // From the present target: halving a far-off ceiling would have no effect.
    ceiling_ = std::max(std::min(ceiling_, Target()) / 2, min_bytes());
  } else if (level < options_.low_marks) {
    ceiling_ = std::min(ceiling_ + options_.chunk_bytes, options_.max_bytes);
  }
}

}  // namespace refract::transport
