#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_FAN_IN_SUBJECT_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_FAN_IN_SUBJECT_H_

#include <cstddef>
#include <memory>
#include <string>

#include "proto/session.pb.h"
#include "tools/transport_bench/subject.h"

namespace refract::transport_bench {

// Connections of a fan-in.
inline constexpr int kFanInFlows = 16;

// The same stream of requests with empty responses as at the message level, but
// over `flows` connections in turn, all received by one thread and with as much
// under way in all as a single one would have. With one flow it is the
// yardstick of the others: what sharing a receiver costs.
std::unique_ptr<Subject> FanInSubject(proto::TransportPath path,
                                      const std::string& rdma_device,
                                      size_t eager_bytes, int flows);

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_FAN_IN_SUBJECT_H_
