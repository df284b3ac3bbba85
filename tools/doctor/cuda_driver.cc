#include "tools/doctor/cuda_driver.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace refract::tools {
namespace {

// A CUresult of cuda.h, which a build without the toolkit does not have.
constexpr int kNoDevice = 100;
constexpr int kSystemDriverMismatch = 803;
constexpr int kCompatNotSupported = 804;
constexpr int kNotInitialized = 3;

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

CudaDriver AskCudaDriver() {
  CudaDriver driver;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return driver;
  driver.has_library = true;
  // The library stays loaded: it may have started threads.
  using GetVersion = int (*)(int*);
  using Init = int (*)(unsigned);
  if (auto* get_version =
          reinterpret_cast<GetVersion>(dlsym(library, "cuDriverGetVersion"));
      get_version == nullptr || get_version(&driver.version) != 0) {
    driver.version = 0;
  }
  auto* init = reinterpret_cast<Init>(dlsym(library, "cuInit"));
  driver.init_result = init == nullptr ? kNotInitialized : init(0);
  return driver;
}

std::optional<Finding> JudgeCuda(const Machine& machine,
                                 const CudaDriver& driver,
                                 int toolkit_version) {
  if (machine.gpus.empty() && !driver.has_library) return std::nullopt;
  Finding finding{.topic = "CUDA"};
  const std::string built =
      toolkit_version == 0
          ? "this build has no CUDA code"
          : absl::StrCat("this build needs ", VersionText(toolkit_version));
  auto lacks = [&](std::string cost) {
    finding.ok = false;
    finding.cost = std::move(cost);
    return finding;
  };
  if (!driver.has_library) {
    finding.fact = absl::StrCat("no driver library (libcuda.so.1); ", built);
    return lacks(
        "the GPU cannot be used: install NVIDIA's driver; in containers, start "
        "with the GPU's runtime");
  }
  finding.fact = absl::StrCat(
      driver.version == 0
          ? "a driver that does not tell its version"
          : absl::StrCat("the driver supports ", VersionText(driver.version)),
      ", ", built);
  switch (driver.init_result) {
    case 0:
      break;
    case kNoDevice:
      return lacks("the driver shows no GPU (CUDA_VISIBLE_DEVICES?)");
    case kSystemDriverMismatch:
      return lacks(
          "the kernel's module and libcuda.so.1 are of different driver "
          "versions: load the module of the installed driver, or reboot");
    case kCompatNotSupported:
      return lacks(
          "a compatibility library of CUDA is in use on a GPU that does not "
          "allow it: take it off the library path, or update the driver");
    default:
      return lacks(absl::StrCat("the driver does not start: cuInit() gives ",
                                driver.init_result));
  }
  if (toolkit_version == 0) {
    return lacks("install the CUDA toolkit and build Refract again");
  }
  // Within a major version an older driver runs newer code (CUDA's minor
  // version compatibility); across majors it does not.
  if (driver.version / 1000 < toolkit_version / 1000) {
    return lacks(
        absl::StrCat("the driver is too old: update it to one for CUDA ",
                     toolkit_version / 1000, ", or build with the toolkit ",
                     VersionText(driver.version)));
  }
  return finding;
}

}  // namespace refract::tools
