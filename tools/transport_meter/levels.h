#ifndef REFRACT_TOOLS_TRANSPORT_METER_LEVELS_H_
#define REFRACT_TOOLS_TRANSPORT_METER_LEVELS_H_

// The levels that a data path is measured at, and the baselines.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor.h"
#include "proto/session.pb.h"
#include "tools/transport_meter/subject.h"
#include "transport/links/channel.h"

namespace refract::transport_meter {

// A path and its options.
struct PathSpec {
  proto::TransportPath path = proto::TRANSPORT_PATH_TCP;
  std::string rdma_device;  // "DEVICE[:PORT[:GID]]"; empty: the best
  size_t eager_bytes = 0;   // payload of the largest message that is not pulled
};

// A DataPath alone, driven by one thread per side. Ping-pong and streams are
// put_notifies into a ring of the peer's, which gives back room with empty
// put_notifies after every half ring; a pull is a 64 B descriptor, the peer's
// get, and an empty put_notify back.
std::unique_ptr<Subject> PathLevel(const PathSpec& spec);

// Connections of a fan-in.
inline constexpr int kFanInFlows = 16;

// The message layer (transport/messages/endpoint.h) over a data path, driven by
// one thread per side: headers, slots, credits, validation and, above
// eager_bytes of payload, pulls. A ping-pong is a request and a response of N
// bytes each; a pull is a request that the peer pulls whatever its size, and an
// empty response; a stream is requests with empty responses.
//
// `fan_in`: instead, the operation fan-in alone: the stream over `flows`
// connections in turn, all received by one thread and with as much under way in
// all as a single connection would have. With one flow it is the baseline of
// fan-ins: the difference is what sharing a receiver costs.
std::unique_ptr<Subject> MessageLevel(const PathSpec& spec, bool fan_in = false,
                                      int flows = 1);

// Client and Server (transport/links/channel.h) as nodes use them, with their
// own threads, sessions and way of waiting. The callback of a request sends the
// next one, so that a ping-pong contains only the thread switches of the
// channel.
std::unique_ptr<Subject> ChannelLevel(const PathSpec& spec);

// Limits of a connection that does `work`. With pulls, every message with a
// payload is pulled.
transport::Limits LimitsFor(const Work& work, size_t eager_bytes);
// One tensor of N bytes, or none.
std::vector<base::TensorSpec> MessageSpecs(size_t bytes);

// A loopback TCP socket by itself: TCP_NODELAY, only send and recv;
// non-blocking and spinning, or blocking in mode event. Ping-pong and
// stream.
std::unique_ptr<Subject> SocketBaseline();

// Shared memory by itself: a ping-pong with one flag per direction, each on its
// own cache lines, and a memcpy before it above 64 B. Spins in every mode. Must
// be made before the fork: the child inherits the memory. `max_bytes`: largest
// message.
absl::StatusOr<std::unique_ptr<Subject>> MemoryBaseline(size_t max_bytes);

}  // namespace refract::transport_meter

#endif  // REFRACT_TOOLS_TRANSPORT_METER_LEVELS_H_
