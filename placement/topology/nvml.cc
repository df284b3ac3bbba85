#include "placement/topology/nvml.h"

#include <dlfcn.h>

#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace refract::placement {
namespace {

constexpr absl::string_view kFolder = "refract.nvml/";

// From nvml.h, which this build does not need.
struct NvmlPciInfo {
  std::array<char, 16> bus_id_legacy;
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned device_id;
  unsigned subsystem_id;
  std::array<char, 32> bus_id;  // "00000000:3B:00.0"
};
using NvmlDevice = void*;

template <typename Function>
Function* Symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// NVML's address in sysfs's form: NVML's domain has eight digits.
std::string SysfsAddress(absl::string_view bus_id) {
  const size_t colon = bus_id.find(':');
  if (colon == absl::string_view::npos) return "";
  absl::string_view domain = bus_id.substr(0, colon);
  while (domain.size() > 4 && domain[0] == '0') domain.remove_prefix(1);
  return absl::AsciiStrToLower(absl::StrCat(domain, bus_id.substr(colon)));
}

// Model by address. Empty: no library, no driver, no GPU.
std::map<std::string, std::string> ReadModels(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return {};
  // The driver's library, loaded at run time: the build needs no CUDA, and a
  // machine without the driver has no models.
  auto* const init = Symbol<int()>(library, "nvmlInit_v2");
  auto* const shutdown = Symbol<int()>(library, "nvmlShutdown");
  auto* const count = Symbol<int(unsigned*)>(library, "nvmlDeviceGetCount_v2");
  auto* const handle = Symbol<int(unsigned, NvmlDevice*)>(
      library, "nvmlDeviceGetHandleByIndex_v2");
  auto* const name =
      Symbol<int(NvmlDevice, char*, unsigned)>(library, "nvmlDeviceGetName");
  auto* const pci =
      Symbol<int(NvmlDevice, NvmlPciInfo*)>(library, "nvmlDeviceGetPciInfo_v3");
  std::map<std::string, std::string> models;
  unsigned devices = 0;
  if (init != nullptr && shutdown != nullptr && count != nullptr &&
      handle != nullptr && name != nullptr && pci != nullptr && init() == 0) {
    if (count(&devices) != 0) devices = 0;
    for (unsigned i = 0; i < devices; ++i) {
      NvmlDevice device = nullptr;
      NvmlPciInfo info = {};
      std::array<char, 128> model = {};
      if (handle(i, &device) != 0 || pci(device, &info) != 0 ||
          name(device, model.data(), model.size()) != 0) {
        continue;  // a lost GPU, for instance
      }
      models[SysfsAddress(info.bus_id.data())] = model.data();
    }
    shutdown();
  }
  dlclose(library);
  return models;
}

class NvmlTree final : public SysfsTree {
 public:
  NvmlTree(SysfsTree* tree, std::map<std::string, std::string> models)
      : tree_(*tree), models_(std::move(models)) {}

  absl::StatusOr<std::optional<std::string>> Read(
      absl::string_view path) override {
    absl::string_view address = path;
    if (!absl::ConsumePrefix(&address, kFolder)) return tree_.Read(path);
    const auto found = models_.find(std::string(address));
    if (found == models_.end()) return std::nullopt;
    return found->second;
  }
  absl::StatusOr<std::vector<std::string>> List(
      absl::string_view path) override {
    return tree_.List(path);
  }
  absl::StatusOr<std::optional<std::string>> Link(
      absl::string_view path) override {
    return tree_.Link(path);
  }

 private:
  SysfsTree& tree_;
  const std::map<std::string, std::string> models_;
};

}  // namespace

std::unique_ptr<SysfsTree> WithNvml(SysfsTree* tree,
                                    const std::string& library) {
  return std::make_unique<NvmlTree>(tree, ReadModels(library));
}

}  // namespace refract::placement
