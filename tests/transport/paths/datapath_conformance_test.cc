#include "tests/transport/testing/datapath_conformance.h"

namespace refract::transport {
namespace {

INSTANTIATE_TEST_SUITE_P(Tcp, DataPathConformance, testing::Values(&TcpPair));
INSTANTIATE_TEST_SUITE_P(Shm, DataPathConformance, testing::Values(&ShmPair));

}  // namespace
}  // namespace refract::transport
