#include "gpu_node/device/cuda_library.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gpu_node/device/cuda_batch.h"
#include "runtime/cuda/device/module.h"
#include "runtime/cuda_aten/operators.h"
#include "runtime/cuda_aten/streams.h"

namespace refract::gpu_node {
namespace {

namespace cuda = runtime::cuda;

// Places of the libraries in a build and in an installation, from the program.
constexpr const char* kPlaces[] = {"../lib/refract", "."};

// Path of a library of ours; NotFound lists the places searched.
absl::StatusOr<std::filesystem::path> FindModule(const char* name) {
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error);
  for (const char* place : kPlaces) {
    std::filesystem::path file = program.parent_path() / place / name;
    if (std::filesystem::exists(file, error)) return file;
  }
  return absl::NotFoundError(absl::StrCat("there is no file ", kPlaces[0], "/",
                                          name, " relative to ",
                                          program.parent_path().string()));
}

absl::StatusOr<runtime::cuda_aten::Streams*> LoadStreams() {
  namespace cuda_aten = runtime::cuda_aten;
  const absl::StatusOr<std::filesystem::path> file =
      FindModule(cuda_aten::kModuleFile);
  if (!file.ok()) {
    return absl::UnavailableError(
        absl::StrCat("Refract's module for LibTorch on GPUs is missing; it is "
                     "built only where LibTorch has its CUDA library: ",
                     file.status().message()));
  }
  void* const library = dlopen(file->c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("LibTorch's CUDA library does not load: ", dlerror()));
  }
  const auto streams = reinterpret_cast<cuda_aten::StreamsFunction*>(
      dlsym(library, cuda_aten::kStreamsFunction));
  if (streams == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        file->string(),
        " belongs to another version of Refract; install both from one build: ",
        dlerror()));
  }
  return streams();
}

}  // namespace

absl::StatusOr<std::unique_ptr<cuda::DeviceApi>> OpenCudaDevice(int index) {
  if (REFRACT_CUDA_VERSION == 0) {
    return absl::UnavailableError(
        "this build has no CUDA code, because the CUDA toolkit was missing "
        "when it was built");
  }
  // Checked first: CUDA's own libraries are large and useless without a driver.
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "NVIDIA's driver is missing (no libcuda.so.1), and this build needs "
        "one for CUDA ",
        REFRACT_CUDA_VERSION / 1000, ".", REFRACT_CUDA_VERSION % 1000 / 10,
        ": see refract doctor"));
  }
  const absl::StatusOr<std::filesystem::path> file =
      FindModule(cuda::kModuleFile);
  if (!file.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "Refract's CUDA module is missing: ", file.status().message()));
  }
  void* const library = dlopen(file->c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("CUDA's libraries do not load: ", dlerror()));
  }
  const auto open = reinterpret_cast<cuda::OpenFunction*>(
      dlsym(library, cuda::kOpenFunction));
  if (open == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        file->string(),
        " belongs to another version of Refract; install both from one build: ",
        dlerror()));
  }
  cuda::Status status;
  std::unique_ptr<cuda::DeviceApi> device(open(index, &status));
  if (device == nullptr) return ToAbsl(status);
  return device;
}

std::string CudaPciAddress(int index) {
  // A function of the driver's interface (cuda.h), which a build without the
  // toolkit lacks. OpenCudaDevice() has loaded the driver.
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return "";
  using Get = int(int* device, int ordinal);
  using GetAddress = int(char* address, int bytes, int device);
  const auto get = reinterpret_cast<Get*>(dlsym(driver, "cuDeviceGet"));
  const auto get_address =
      reinterpret_cast<GetAddress*>(dlsym(driver, "cuDeviceGetPCIBusId"));
  int device = 0;
  std::array<char, 32> address = {};
  if (get == nullptr || get_address == nullptr || get(&device, index) != 0 ||
      get_address(address.data(), address.size(), device) != 0) {
    return "";
  }
  return absl::AsciiStrToLower(address.data());  // sysfs has lower case
}

std::shared_ptr<runtime::cuda_plan::ForeignOperators> AtenOperatorsOn(
    int index) {
  return runtime::cuda_aten::MakeOperators({.gpu = index, .load = LoadStreams});
}

}  // namespace refract::gpu_node
