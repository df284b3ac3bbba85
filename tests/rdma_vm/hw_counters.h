#ifndef REFRACT_TESTS_RDMA_VM_HW_COUNTERS_H_
#define REFRACT_TESTS_RDMA_VM_HW_COUNTERS_H_

#include <cstdint>
#include <map>
#include <string>

namespace refract::rdma_vm {

// The hardware counters of port 1 of an RDMA device by name, such as
// "rcvd_rnr_err" and "retry_exceeded_err" of soft-RoCE; empty without such a
// device. The kernel renews them at most every 10 ms, which this waits out, so
// every packet that arrived before the call is counted.
std::map<std::string, int64_t> ReadHwCounters(const std::string& device);

// The sum of the counters of `device` that say "receiver not ready", whatever
// the driver calls them (soft-RoCE: rcvd_rnr_err, at the sender; mlx5:
// rnr_nak_retry_err and out_of_buffer). Credits keep it at zero.
int64_t ReadReceiverNotReady(const std::string& device);

}  // namespace refract::rdma_vm

#endif  // REFRACT_TESTS_RDMA_VM_HW_COUNTERS_H_
