#include "placement/planner/queueing.h"

#include <cmath>
#include <limits>

namespace refract::placement {

double ErlangC(int servers, double offered) {
  if (offered >= servers) return 1;
  double blocked = 1;  // B(0) = 1, B(k) = aB(k−1) / (k + aB(k−1))
  for (int k = 1; k <= servers; ++k) {
    blocked = offered * blocked / (k + offered * blocked);
  }
  // C = B ÷ (1 − ρ (1 − B)), with ρ the load of a server.
  const double load = offered / servers;
  return blocked / (1 - load * (1 - blocked));
}

double WaitQuantile(const Queue& queue, double q) {
  const double offered = queue.requests_per_s * queue.service_s;
  if (offered >= queue.servers) return std::numeric_limits<double>::infinity();
  const double waits = ErlangC(queue.servers, offered);
  // P(wait > t) = C · exp(−t ÷ mean). Solved for P = 1 − q; fewer requests than
  // that wait at all if C ≤ 1 − q.
  if (waits <= 1 - q) return 0;
  const double mean =
      queue.service_s / (queue.servers - offered) * (1 + queue.scv) / 2;
  return mean * std::log(waits / (1 - q));
}

}  // namespace refract::placement
