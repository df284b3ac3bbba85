# Third-party packages. All come from Debian 12 but LibTorch, which is the PyPI
# wheel (DESIGN: dependencies). Nothing is downloaded at configure time.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(glog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(TorchCpu REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
find_program(REFRACT_GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
if(REFRACT_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()

refract_report("LibTorch" "${TorchCpu_VERSION} in ${TorchCpu_ROOT}")

# CUDA: looked for without enabling the language, so that a machine without the
# toolkit configures the same tree. The backend itself is runtime/cuda.
find_package(CUDAToolkit QUIET)
if(REFRACT_WITH_CUDA STREQUAL "ON" AND NOT CUDAToolkit_FOUND)
  message(FATAL_ERROR
    "REFRACT_WITH_CUDA=ON, but no CUDA toolkit was found. Install one and put "
    "nvcc on PATH, or set CUDAToolkit_ROOT.")
endif()
if(REFRACT_WITH_CUDA STREQUAL "OFF")
  refract_report("CUDA backend" "left out: REFRACT_WITH_CUDA=OFF")
elseif(NOT CUDAToolkit_FOUND)
  refract_report("CUDA backend" "left out: no CUDA toolkit found")
else()
  refract_report("CUDA backend"
    "left out: toolkit ${CUDAToolkit_VERSION} found, but this version of Refract has no CUDA code yet")
endif()

# libibverbs: its header is needed by the simulator too, so both come together.
set(REFRACT_HAVE_VERBS FALSE)
if(NOT REFRACT_WITH_VERBS STREQUAL "OFF")
  pkg_check_modules(ibverbs QUIET IMPORTED_TARGET libibverbs)
endif()
if(REFRACT_WITH_VERBS STREQUAL "OFF")
  refract_report("verbs transport" "left out: REFRACT_WITH_VERBS=OFF")
elseif(ibverbs_FOUND)
  set(REFRACT_HAVE_VERBS TRUE)
  refract_report("verbs transport" "built: libibverbs ${ibverbs_VERSION}")
elseif(REFRACT_WITH_VERBS STREQUAL "ON")
  message(FATAL_ERROR "REFRACT_WITH_VERBS=ON, but libibverbs was not found. "
    "Install libibverbs-dev, or set PKG_CONFIG_PATH.")
else()
  refract_report("verbs transport" "left out: libibverbs not found (install libibverbs-dev)")
endif()
