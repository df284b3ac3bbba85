#ifndef REFRACT_TRANSPORT_SESSION_PEER_HEALTH_H_
#define REFRACT_TRANSPORT_SESSION_PEER_HEALTH_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace refract::transport {

// The state of a peer in one word. Node choice, readiness and reconnection read
// it.
enum class PeerState : uint8_t {
  kConnecting,  // not connected; attempts follow with growing back-off
  kReady,       // connected, sends heartbeats, answers requests
  kSuspect,     // connected, but several heartbeats did not come
  kEjected,     // connected, but several requests in a row failed there
  kDraining,    // stopping: answers requests it has, takes no more
  kDown,        // not connected after kDownFailures failures in a row
};
absl::string_view Name(PeerState state);

// Whether the peer takes requests, although another may be the better choice.
inline bool IsConnected(PeerState state) {
  return state == PeerState::kReady || state == PeerState::kSuspect ||
         state == PeerState::kEjected;
}

// When failing requests keep a peer without requests for a while.
struct EjectionOptions {
  // Failed requests in a row that eject a peer. ≥ 1.
  int failures = 3;
  // First ejection; doubles with each further one until a request succeeds.
  absl::Duration first = absl::Seconds(1);
  absl::Duration longest = absl::Seconds(30);
};

// The state machine of one peer. Time and randomness are arguments.
//
//   state        event                                    next state
//   kConnecting  connected                                kReady
//                attempt failed, kDownFailures in a row   kDown
//   kDown        connected                                kReady
//   kReady       heartbeats missing / there again         kSuspect / kReady
//                `failures` requests in a row failed      kEjected
//   kSuspect     heartbeats there again                   kReady
//   kEjected     its time is over: one request of each    kReady for that one,
//                model at a time may try the peer         kEjected for others
//                a request succeeded                      kReady (kSuspect)
//   connected    the peer says that it stops              kDraining
//                connection lost                          kConnecting (kDown)
//   kDraining    connected / attempt failed               kReady / kConnecting
//
// Back-off between attempts is exponential with jitter, so that many clients of
// a node that restarts do not come back at the same moment. A connection counts
// as a success only once it has lasted for kStable: a peer that accepts and
// then fails would else be dialled without end at the shortest interval.
//
// The state of each path to the peer is not part of this state machine: one
// path may be paused while the peer is ready over another (rail_health.h).
//
// Thread-safe: connection events come from the client's polling thread, results
// of requests from any.
class PeerHealth {
 public:
  // Long enough for the first heartbeats and requests to fail, short enough
  // that an operator who restarts a node twice does not wait.
  static constexpr absl::Duration kStable = absl::Seconds(5);
  // With 50 ms as first back-off, the eighth would be the first above 5 s.
  static constexpr int kDownFailures = 8;

  // 0 < first_backoff ≤ last_backoff.
  PeerHealth(absl::Duration first_backoff, absl::Duration last_backoff,
             const EjectionOptions& ejection = {})
      : first_backoff_(first_backoff),
        last_backoff_(last_backoff),
        ejection_(ejection) {}

  // ------------------------------------------------------ connection events

  // Also for a further connection to the same peer. Forgets the results of
  // requests: the peer may be another process.
  void OnConnected(absl::Time now);
  // Both return the time to wait before the next attempt. `draw` is uniform in
  // [0, 1) and gives the jitter: from half to one and a half of the back-off.
  // kInvalidArgument means that one side broke the protocol, which a retry
  // seldom cures: the second in a row waits for the longest back-off.
  absl::Duration OnAttemptFailed(const absl::Status& why, double draw);
  absl::Duration OnLost(const absl::Status& why, absl::Time now, double draw);
  absl::Duration OnStopping(absl::Time now, double draw);
  // Call when heartbeats are missing, or are back.
  void OnSilence(bool silent);

  // ---------------------------------------------------- results of requests

  // The result of a request. Only errors that are the peer's fault count
  // against it; a late or refused request does not. Failures of requests that
  // were under way when the peer was ejected do not lengthen the ejection;
  // after it, one more failure ejects again.
  void OnResult(const absl::Status& status, absl::Time now);

  // -------------------------------------------------------------- the state

  // The state for a request of a model with `in_flight` requests at the peer:
  // after an ejection one request at a time tests whether requests succeed
  // again. (Requests of other models show nothing if they are always late.)
  PeerState state(absl::Time now, int in_flight = 0) const;
  // Number of failed attempts and short connections in a row.
  int failures() const;

 private:
  enum class Link : uint8_t { kNone, kConnected, kStopping };

  bool stable(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return now - connected_at_ >= kStable;
  }
  absl::Duration CountFailure(const absl::Status& why, double draw)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Duration EndConnection(const absl::Status& why, absl::Time now,
                               double draw) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const absl::Duration first_backoff_;
  const absl::Duration last_backoff_;
  const EjectionOptions ejection_;
  mutable absl::Mutex mu_;
  Link link_ ABSL_GUARDED_BY(mu_) = Link::kNone;
  bool silent_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time connected_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  // In a row: failed attempts and short connections; and those among them that
  // broke the protocol.
  int failures_ ABSL_GUARDED_BY(mu_) = 0;
  int violations_ ABSL_GUARDED_BY(mu_) = 0;
  // In a row: failed requests, ejections without a success between them.
  int failed_requests_ ABSL_GUARDED_BY(mu_) = 0;
  int ejections_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time ejected_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SESSION_PEER_HEALTH_H_
