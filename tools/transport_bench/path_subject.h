#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_PATH_SUBJECT_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_PATH_SUBJECT_H_

#include <memory>
#include <string>

#include "proto/session.pb.h"
#include "tools/transport_bench/subject.h"

namespace refract::transport_bench {

// A DataPath alone, driven by one thread per side. Ping-pong and streams are
// put_notifies into a ring of the peer's, which gives back room with empty ones
// after every half ring; a pull is a 64 B descriptor, the peer's get, and an
// empty put_notify back. `rdma_device` as in Config.
std::unique_ptr<Subject> PathSubject(proto::TransportPath path,
                                     const std::string& rdma_device);

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_PATH_SUBJECT_H_
