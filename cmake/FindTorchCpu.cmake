# LibTorch's CPU libraries, without the CUDA toolkit that the wheel's own
# TorchConfig.cmake asks for.
#
# Looked for, in this order: TorchCpu_ROOT, the .venv of this checkout,
# CMAKE_PREFIX_PATH (an unpacked LibTorch). Defines
#   TorchCpu::TorchCpu   libtorch_cpu + libc10, headers as system headers
#   TorchCpu_ROOT, TorchCpu_VERSION, TorchCpu_PYTHON (the interpreter beside it)
file(GLOB _torch_venv "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
find_path(TorchCpu_INCLUDE_DIR NAMES ATen/ATen.h
  HINTS "${TorchCpu_ROOT}" ${_torch_venv}
  PATH_SUFFIXES include)
if(TorchCpu_INCLUDE_DIR)
  cmake_path(GET TorchCpu_INCLUDE_DIR PARENT_PATH TorchCpu_ROOT)
endif()
find_library(TorchCpu_LIBRARY torch_cpu HINTS "${TorchCpu_ROOT}/lib" NO_DEFAULT_PATH)
find_library(TorchCpu_C10_LIBRARY c10 HINTS "${TorchCpu_ROOT}/lib" NO_DEFAULT_PATH)

set(TorchCpu_VERSION "")
if(EXISTS "${TorchCpu_INCLUDE_DIR}/torch/headeronly/version.h")
  file(READ "${TorchCpu_INCLUDE_DIR}/torch/headeronly/version.h" _torch_version)
elseif(EXISTS "${TorchCpu_INCLUDE_DIR}/torch/csrc/api/include/torch/version.h")
  file(READ "${TorchCpu_INCLUDE_DIR}/torch/csrc/api/include/torch/version.h" _torch_version)
endif()
if(_torch_version MATCHES "define TORCH_VERSION \"([^\"]*)\"")
  set(TorchCpu_VERSION "${CMAKE_MATCH_1}")
elseif(_torch_version MATCHES
    "VERSION_MAJOR ([0-9]+).*VERSION_MINOR ([0-9]+).*VERSION_PATCH ([0-9]+)")
  set(TorchCpu_VERSION "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3}")
endif()
# <root>/lib/python3.X/site-packages/torch: the interpreter that `refract run
# --mode reference` starts when REFRACT_PYTHON is not set.
if(TorchCpu_ROOT)
  cmake_path(SET _torch_python NORMALIZE "${TorchCpu_ROOT}/../../../../bin/python3")
  if(EXISTS "${_torch_python}")
    set(TorchCpu_PYTHON "${_torch_python}")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchCpu
  REQUIRED_VARS TorchCpu_LIBRARY TorchCpu_C10_LIBRARY TorchCpu_INCLUDE_DIR
  VERSION_VAR TorchCpu_VERSION
  REASON_FAILURE_MESSAGE
    "run scripts/quickstart.sh or scripts/test.sh, which install torch==2.11.0 into .venv, or set TorchCpu_ROOT")

if(TorchCpu_FOUND AND NOT TARGET TorchCpu::TorchCpu)
  add_library(TorchCpu::C10 SHARED IMPORTED)
  set_target_properties(TorchCpu::C10 PROPERTIES
    IMPORTED_LOCATION "${TorchCpu_C10_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${TorchCpu_INCLUDE_DIR};${TorchCpu_INCLUDE_DIR}/torch/csrc/api/include")
  add_library(TorchCpu::TorchCpu SHARED IMPORTED)
  set_target_properties(TorchCpu::TorchCpu PROPERTIES
    IMPORTED_LOCATION "${TorchCpu_LIBRARY}"
    INTERFACE_LINK_LIBRARIES TorchCpu::C10)
endif()
mark_as_advanced(TorchCpu_INCLUDE_DIR TorchCpu_LIBRARY TorchCpu_C10_LIBRARY)
