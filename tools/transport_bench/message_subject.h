#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_MESSAGE_SUBJECT_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_MESSAGE_SUBJECT_H_

#include <cstddef>
#include <memory>
#include <string>

#include "proto/session.pb.h"
#include "tools/transport_bench/subject.h"

namespace refract::transport_bench {

// The message layer (transport/messages/endpoint.h) over a data path, driven by one
// thread per side: headers, slots, credits, validation and, above
// `eager_bytes` of payload, pulls. A ping-pong is a request and a response of N
// bytes each; a pull a request that the peer pulls whatever its size, and an
// empty response; a stream requests with empty responses. `rdma_device` as in
// Config.
std::unique_ptr<Subject> MessageSubject(proto::TransportPath path,
                                        const std::string& rdma_device,
                                        size_t eager_bytes);

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_MESSAGE_SUBJECT_H_
