#include "tests/rdma_vm/verbs_pair.h"

#include <glog/logging.h>

#include <cstdlib>
#include <optional>

#include "absl/strings/str_split.h"
#include "transport/verbs/verbs_path.h"

namespace refract::rdma_vm {
namespace {

using transport::verbs::DeviceRegistry;
using transport::verbs::LocalAddress;

}  // namespace

std::vector<std::string> RdmaDevices() {
  const char* devices = std::getenv("REFRACT_RDMA_DEVICES");
  if (devices == nullptr) return {};
  return absl::StrSplit(devices, ',', absl::SkipEmpty());
}

LocalAddress AddressOf(const std::string& device) {
  auto context = DeviceRegistry::System().Open(device);
  CHECK(context.ok()) << context.status();
  auto ports = (*context)->device().Ports();
  CHECK(ports.ok()) << ports.status();
  auto ranked = transport::verbs::RankAddresses({{device, *std::move(ports)}},
                                                {}, std::nullopt);
  CHECK(ranked.ok()) << ranked.status();
  return ranked->front();
}

std::pair<std::unique_ptr<transport::DataPath>,
          std::unique_ptr<transport::DataPath>>
MakeVerbsPair(const std::shared_ptr<transport::verbs::PollGroup>& a,
              const std::shared_ptr<transport::verbs::PollGroup>& b,
              const transport::verbs::PathOptions& options) {
  const std::vector<std::string> devices = RdmaDevices();
  CHECK(!devices.empty());
  auto first = transport::verbs::VerbsPath::Create(
      a, AddressOf(devices.front()), options);
  auto second = transport::verbs::VerbsPath::Create(
      b, AddressOf(devices.back()), options);
  CHECK(first.ok() && second.ok()) << first.status() << second.status();
  return {*std::move(first), *std::move(second)};
}

}  // namespace refract::rdma_vm
