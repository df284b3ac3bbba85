#ifndef REFRACT_PLACEMENT_PLANNER_QUEUEING_H_
#define REFRACT_PLACEMENT_PLANNER_QUEUEING_H_

// Waiting times from formulas: the starting point of sizing, before simulation.

namespace refract::placement {

// Probability that a request waits in M/M/k: Erlang's C formula, by the
// recursion of his B formula, which is stable for thousands of servers.
// `offered` load in servers, ≥ 0; 1 where offered ≥ servers.
double ErlangC(int servers, double offered);

// One queue of `servers` equal servers.
struct Queue {
  int servers = 1;
  double requests_per_s = 0;
  double service_s = 0;  // mean
  double scv = 0;        // squared coefficient of variation of service times
};

// The q-quantile of the wait, infinite if the queue is overloaded. Requests
// that wait do so for an exponential time of mean
//   service ÷ (servers · (1 − load)) · (1 + scv) ÷ 2
// (Allen and Cunneen's approximation for M/G/k; exact for M/M/k).
double WaitQuantile(const Queue& queue, double q);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_PLANNER_QUEUEING_H_
