# Tests on real verbs: tests/rdma_vm/run_in_vm takes them to an RDMA device of
# this machine or, without one, into a virtual machine with soft-RoCE. Label
# `rdma`. A boot takes 5 to 30 s, so one CTest test runs several programs.

# refract_rdma_program(NAME SOURCES … DEPS …): a GoogleTest program that is only
# built; refract_rdma_test says where it runs.
function(refract_rdma_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE
    ${ARG_DEPS} PkgConfig::ibverbs GTest::gtest GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  refract_apply_flags(${name})
endfunction()

# refract_rdma_test(NAME LAYOUT dummy|veth TIMEOUT s PROGRAMS "target args…"…
#                   [OPTIONS option…])
#
# LAYOUT   dummy: one device; veth: two, on the ends of a veth pair, where netem,
#          link states and interface counters act on packets
# TIMEOUT  seconds for each program, at emulated speed
# PROGRAMS each a target, or one with arguments as in a shell
# OPTIONS  further options of run_in_vm, such as --memory 4096
function(refract_rdma_test name)
  cmake_parse_arguments(ARG "" "LAYOUT;TIMEOUT" "PROGRAMS;OPTIONS" ${ARGN})
  set(lines "")
  foreach(program IN LISTS ARG_PROGRAMS)
    string(REGEX MATCH "^[^ ]+" target "${program}")
    string(REGEX REPLACE "^[^ ]+" "" arguments "${program}")
    string(APPEND lines "\"$<TARGET_FILE:${target}>\"${arguments}\n")
  endforeach()
  string(REPLACE "/" "_" file "${name}")
  set(folder "${PROJECT_BINARY_DIR}/tests/rdma_vm")
  file(GENERATE OUTPUT "${folder}/${file}.list" CONTENT "${lines}")
  add_test(NAME ${name} COMMAND "${PROJECT_SOURCE_DIR}/tests/rdma_vm/run_in_vm"
    --name ${name} --layout ${ARG_LAYOUT} --timeout ${ARG_TIMEOUT}
    --list "${folder}/${file}.list" --job-dir "${folder}/${file}" ${ARG_OPTIONS})
  # Above every limit of run_in_vm itself, which explains what it ends.
  list(LENGTH ARG_PROGRAMS count)
  math(EXPR limit "300 + ${count} * (${ARG_TIMEOUT} + 60)")
  # CPUs that take turns are one thread, which waits for timers half of the time.
  set(load PROCESSORS 2 COST 750)
  if("--take-turns" IN_LIST ARG_OPTIONS)
    set(load PROCESSORS 1 COST 60)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS rdma TIMEOUT ${limit}
    ${load} SKIP_RETURN_CODE 77
    ENVIRONMENT "REFRACT_SOURCE_DIR=${PROJECT_SOURCE_DIR};REFRACT_BUILD_DIR=${PROJECT_BINARY_DIR}")
endfunction()
