#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_CHANNEL_SUBJECT_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_CHANNEL_SUBJECT_H_

#include <cstddef>
#include <memory>
#include <string>

#include "proto/session.pb.h"
#include "tools/transport_bench/subject.h"

namespace refract::transport_bench {

// Client and Server (transport/links/channel.h) as nodes use them, with their own
// threads, sessions and way of waiting. The next request is sent from the
// callback of the last, so that a ping-pong has no thread switch in it but
// those that the channel makes itself. `rdma_device` as in
// Config.
std::unique_ptr<Subject> ChannelSubject(proto::TransportPath path,
                                        const std::string& rdma_device,
                                        size_t eager_bytes);

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_CHANNEL_SUBJECT_H_
