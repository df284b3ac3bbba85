#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_SOCKET_YARDSTICK_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_SOCKET_YARDSTICK_H_

#include <memory>

#include "tools/transport_bench/subject.h"

namespace refract::transport_bench {

// What a loopback TCP socket does by itself: TCP_NODELAY, no headers, nothing
// but send and recv; non-blocking and spinning, or blocking in event mode. A
// pull is N bytes there and 64 back, a get 64 there and N back. Streams go
// through buffers of the same size and number as those of the data paths.
std::unique_ptr<Subject> SocketYardstick();

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_SOCKET_YARDSTICK_H_
