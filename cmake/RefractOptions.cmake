# Build options. An optional part is AUTO (built when found), ON (its absence is
# a configure error) or OFF.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

option(REFRACT_BUILD_TESTS "Build the tests" ON)
option(REFRACT_BUILD_BENCH "Build the benchmarks in bench/" ON)
option(REFRACT_PRECOMPILE "Precompile the headers of tests (GCC's break tools of Clang's)" ON)
option(REFRACT_UNITY "Compile libraries and tests a folder at a time: half the processor time of a first build" OFF)
option(REFRACT_WITH_AVX512 "Code for AVX-512 in the CPU kernels (OFF: run what a processor without it runs)" ON)
option(REFRACT_BUILD_FUZZ "Build the fuzz targets of tests/fuzz for libFuzzer (needs Clang)" OFF)
option(REFRACT_WERROR "Turn warnings into errors (set by the presets)" OFF)
set(REFRACT_SANITIZE "" CACHE STRING
    "Sanitizers for every target: 'address;undefined' or 'thread'")
set(REFRACT_WITH_CUDA AUTO CACHE STRING "CUDA backend: AUTO, ON or OFF")
set_property(CACHE REFRACT_WITH_CUDA PROPERTY STRINGS AUTO ON OFF)
set(REFRACT_WITH_VERBS AUTO CACHE STRING "RDMA verbs transport and its simulator: AUTO, ON or OFF")
set_property(CACHE REFRACT_WITH_VERBS PROPERTY STRINGS AUTO ON OFF)
set(REFRACT_WITH_KAFKA AUTO CACHE STRING "Deltas from Kafka: AUTO, ON or OFF")
set_property(CACHE REFRACT_WITH_KAFKA PROPERTY STRINGS AUTO ON OFF)

find_program(REFRACT_CCACHE ccache)
if(REFRACT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Else ccache takes nothing that uses a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    env CCACHE_SLOPPINESS=pch_defines,time_macros "${REFRACT_CCACHE}")
endif()

# Links a test in half the time; absent from newer distributions.
find_program(REFRACT_GOLD ld.gold)

# Lines for the summary: refract_report(NAME "built: why" | "left out: why").
set_property(GLOBAL PROPERTY REFRACT_SUMMARY "")
function(refract_report name text)
  set_property(GLOBAL APPEND PROPERTY REFRACT_SUMMARY "${name}|${text}")
endfunction()

function(refract_print_summary)
  message(STATUS "Refract ${PROJECT_VERSION} (${CMAKE_BUILD_TYPE})")
  get_property(lines GLOBAL PROPERTY REFRACT_SUMMARY)
  foreach(line IN LISTS lines)
    string(REPLACE "|" ";" parts "${line}")
    list(POP_FRONT parts name)
    list(JOIN parts "|" text)
    message(STATUS "  ${name}: ${text}")
  endforeach()
endfunction()
