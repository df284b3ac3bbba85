#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_VERBS_YARDSTICK_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_VERBS_YARDSTICK_H_

#include <memory>

#include "tools/transport_bench/subject.h"
#include "tools/transport_bench/verbs_port.h"

namespace refract::transport_bench {

// What the verbs do by themselves: libibverbs on one reliable connected queue
// pair, with no headers, credits or checks. Ping-pong is RDMA WRITE WITH
// IMMEDIATE each way, get and pull are one RDMA READ, a stream is RDMA WRITE,
// each signalled. Payloads of up to 220 B travel inline, as the data path's.
std::unique_ptr<Subject> VerbsYardstick(const VerbsPort& port);

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_VERBS_YARDSTICK_H_
