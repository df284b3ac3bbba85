#include "gpu_node/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "gpu_node/cuda_work.h"
#include "runtime/cuda/module.h"

namespace refract::gpu_node {
namespace {

namespace cuda = runtime::cuda;

// Where the build and an installation put it, seen from the program.
constexpr const char* kPlaces[] = {"../lib/refract", "."};

}  // namespace

absl::StatusOr<std::unique_ptr<cuda::DeviceApi>> OpenCudaDevice(int index) {
  if (REFRACT_CUDA_VERSION == 0) {
    return absl::UnavailableError(
        "this build has no CUDA code: it was made without the toolkit");
  }
  // Asked for first: CUDA's own libraries are large and of no use without.
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "NVIDIA's driver is missing (no libcuda.so.1), and this build needs "
        "one for CUDA ",
        REFRACT_CUDA_VERSION / 1000, ".", REFRACT_CUDA_VERSION % 1000 / 10,
        ": see refract doctor"));
  }
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error);
  std::filesystem::path file;
  for (const char* place : kPlaces) {
    file = program.parent_path() / place / cuda::kModuleFile;
    if (std::filesystem::exists(file, error)) break;
    file.clear();
  }
  if (file.empty()) {
    return absl::UnavailableError(absl::StrCat(
        "the part of Refract that knows CUDA is missing: there is no ",
        kPlaces[0], "/", cuda::kModuleFile, " beside ",
        program.parent_path().string()));
  }
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("CUDA's libraries do not load: ", dlerror()));
  }
  const auto open = reinterpret_cast<cuda::OpenFunction*>(
      dlsym(library, cuda::kOpenFunction));
  if (open == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        file.string(), " is of another version of Refract: ", dlerror()));
  }
  cuda::Status status;
  std::unique_ptr<cuda::DeviceApi> device(open(index, &status));
  if (device == nullptr) return ToAbsl(status);
  return device;
}

}  // namespace refract::gpu_node
