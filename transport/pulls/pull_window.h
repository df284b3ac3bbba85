#ifndef REFRACT_TRANSPORT_PULLS_PULL_WINDOW_H_
#define REFRACT_TRANSPORT_PULLS_PULL_WINDOW_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/time/time.h"

namespace refract::transport {

// The largest of recent values, without a list of them: a value is remembered
// for at least one span and at most two.
template <typename T, typename Larger>
class RecentBest {
 public:
  explicit RecentBest(T none) : current_(none), older_(none), none_(none) {}
  T best() const { return std::max(current_, older_, Larger{}); }
  void Take(T value) { current_ = std::max(current_, value, Larger{}); }
  // Ends a span.
  void Turn() {
    older_ = current_;
    current_ = none_;
  }

 private:
  T current_;
  T older_;
  T none_;
};

// Bytes that a receiver may have requested and not yet received, over all its
// connections: enough to keep its port busy, and few enough that the senders
// together never fill a switch buffer. Pure policy: time and sizes in, a number
// out. Not thread-safe.
//
// Without congestion marks the window follows measurements of the path, as BBR
// does (Cardwell et al., ACM Queue 2016):
//
//   window = gain × rate × delay
//
// where `delay` is the shortest time of the last seconds that one chunk took
// when nothing else was outstanding, its own serialisation included, and `rate`
// the highest of the last rounds. A round is the life of one get; its rate is
// all bytes that came in during it, over its time, so that idle time does not
// count. rate × delay just keeps a link of that rate full when bytes are asked
// for in chunks: it is bandwidth × round trip plus one chunk. With a smaller
// window the rate is window / delay, so the window grows by at least a chunk
// per round; with a larger window the rate is the link's and the window stops
// growing. A get is alone only in an empty pipe, so the pipe is drained now and
// then. A round that lacked demand can only raise the rate.
//
// Marks (CNPs that a NIC sent because packets came with ECN set) set a ceiling:
// Prism (NSDI'25, section 4.3) compares CNPs per request with two thresholds,
// T_high and T_low; more than T_high shrinks the window, fewer than T_low
// widens it, and nothing happens in between. (The paper prints the directions
// the other way round.) The steps are those of Chiu and Jain (1989): halve, or
// add a chunk.
class PullWindow {
 public:
  struct Options {
    // Longest chunk: bytes of one get. A posted get cannot be recalled, so the
    // chunk and the window bound how long an urgent message waits: 64 KiB are
    // 5 µs at 100 Gb/s. A larger chunk takes fewer operations. 64 to 128 KiB
    // suit links of 25 to 400 Gb/s. Bytes.
    size_t chunk_bytes = size_t{64} << 10;
    // Least window, in chunks: with a single chunk the link would idle for a
    // round trip after each.
    size_t min_chunks = 2;
    // Largest window, bytes: 80 µs at 400 Gb/s, beyond any data-centre path.
    size_t max_bytes = size_t{4} << 20;
    // The gain, at least 1; the excess is queueing, and covers rates measured a
    // little low.
    double gain = 1.125;
    // Interval at which the pipe is drained for a delay while in use, but at
    // least 1000 delays, so that draining costs at most 0.2 % of the rate.
    absl::Duration probe_interval = absl::Milliseconds(100);
    // Least time for which a shortest delay stays valid (BBR: 10 s).
    absl::Duration delay_span = absl::Seconds(5);
    // Least number of rounds for which a highest rate stays valid (BBR: 10).
    int rate_span = 10;
    // Marks per finished pull. Prism gives no numbers. A NIC marks a flow at
    // most once in 50 µs (DCQCN), so one mark per pull of a few hundred KiB at
    // 100 Gb/s means that nearly all of the pull met a queue.
    double high_marks = 1.0;
    double low_marks = 0.1;
  };

  // A get: number `serial` of a connection, counted from 0. The gets of a
  // connection complete in order.
  struct Get {
    const void* connection = nullptr;
    uint64_t serial = 0;
    size_t bytes = 0;
  };

  explicit PullWindow(const Options& options);

  const Options& options() const { return options_; }
  // The window now: between its bounds, or one chunk while the pipe is drained.
  size_t bytes() const { return probing_ ? options_.chunk_bytes : Target(); }
  size_t outstanding() const { return outstanding_; }
  // Whether one more get may be posted. The get may exceed the window by its
  // own bytes: otherwise a window of two and a half chunks would hold two
  // chunks.
  bool HasRoom() const {
    return outstanding_ == 0 || (!probing_ && outstanding_ < Target());
  }

  void Posted(const Get& get, absl::Time now);
  void Completed(const Get& get, absl::Time now);
  // `bytes` of a connection will never complete, because it is gone, or no
  // longer count, because its sender is stalled.
  void Lost(const void* connection, size_t bytes);
  // Call when a get that no longer counts completed after `took`. The shortest
  // delay takes `took` in: otherwise a path whose gets are all late would stay
  // unmeasured.
  void CompletedLate(const Get& get, absl::Duration took, absl::Time now);
  void PullFinished() { ++pulls_since_marks_; }
  // Call when the window had room, but no pull had bytes to request.
  void LackedDemand() { lacked_demand_ = true; }
  // `marks`: new marks since the last call. Called as often as the NIC's
  // counter moves, some 10 ms apart.
  void CountMarks(uint64_t marks);

  // The shortest delay; zero while it is not known.
  absl::Duration delay() const;
  // An average over rounds, for predictions. 0: not known yet.
  double bytes_per_second() const { return average_rate_; }
  // How long `bytes` take at that rate; zero while it is not known.
  absl::Duration TimeFor(size_t bytes) const;

 private:
  size_t min_bytes() const {
    return options_.chunk_bytes * options_.min_chunks;
  }
  size_t Target() const;
  void TakeRate(double rate);
  void TakeDelay(absl::Duration delay, absl::Time now);
  void NoteDelay(absl::Duration delay, absl::Time now);

  const Options options_;
  size_t outstanding_ = 0;
  uint64_t delivered_ = 0;  // bytes, ever

  // The get whose life is the present round; none when its connection is null.
  Get round_;
  absl::Time round_began_;
  uint64_t round_delivered_ = 0;  // when it began
  bool alone_ = false;            // nothing else was outstanding so far
  bool lacked_demand_ = false;

  RecentBest<double, std::less<double>> rate_{0};
  int rounds_ = 0;  // of the present span
  double average_rate_ = 0;
  RecentBest<absl::Duration, std::greater<absl::Duration>> delay_{
      absl::InfiniteDuration()};
  absl::Time delay_turned_ = absl::InfinitePast();
  absl::Time last_delay_ = absl::InfinitePast();
  bool probing_ = true;  // one get at a time until a delay is taken

  size_t ceiling_;  // by marks
  uint64_t pulls_since_marks_ = 0;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PULLS_PULL_WINDOW_H_
