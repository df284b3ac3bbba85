# Programs of tests: files of a folder share one, and each file is a test of CTest.

# Selects tests by file and names their results (its own comment says how).
add_library(refract_test_main OBJECT "${PROJECT_SOURCE_DIR}/tests/base/main.cc")
target_link_libraries(refract_test_main PUBLIC GTest::gtest GTest::gmock absl::strings)
refract_apply_flags(refract_test_main)

# Precompiles the headers that most tests include, once per set of compile flags.
# Parsing them takes a fifth to a half of a test's compile time. `level` is -O0,
# -O1 or empty.
function(refract_precompile_test_headers target level)
  set(holder "refract_test_headers${level}")
  if(NOT TARGET ${holder})
    # GCC takes precompiled headers only where the flags agree: a program, as the
    # tests are. Some libraries bring -pthread.
    add_executable(${holder} "${PROJECT_SOURCE_DIR}/tests/base/headers.cc")
    target_link_libraries(${holder} PRIVATE GTest::gtest GTest::gmock
      absl::span absl::statusor absl::strings)
    refract_apply_flags(${holder})
    target_compile_options(${holder} PRIVATE -pthread ${level})
    target_precompile_headers(${holder} PRIVATE "${PROJECT_SOURCE_DIR}/tests/base/headers.h")
  endif()
  target_precompile_headers(${target} REUSE_FROM ${holder})
endfunction()

# refract_test_program(TARGET SOURCES … DEPS …): a GoogleTest program.
function(refract_test_program target)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${target} ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE refract_test_main ${ARG_DEPS})
  set_target_properties(${target} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  refract_apply_flags(${target})
  # -O3 takes a quarter of a test's time to compile, with a sanitizer -O1 a third.
  # Some tests compute for long themselves.
  set(level)
  if(target MATCHES "^runtime_cuda_(kernels|map_wide)_test$|^transport_sim_(tests|conformance_test)")
  elseif(REFRACT_SANITIZE)
    set(level -O0)
  elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
    set(level -O1)
  endif()
  target_compile_options(${target} PRIVATE -pthread ${level})
  if(REFRACT_PRECOMPILE)
    refract_precompile_test_headers(${target} "${level}")
  endif()
  if(REFRACT_UNITY)
    # The files share headers and instances of templates, which take about half of
    # their time.
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  endif()
  if(REFRACT_GOLD)
    target_link_options(${target} PRIVATE -fuse-ld=gold)
    if(NOT REFRACT_SANITIZE)
      # A program that uses nothing of LibTorch starts without its 0.4 s. libstdc++ comes
      # first because LibTorch exports copies of some of its functions.
      target_link_options(${target} PRIVATE -Wl,--as-needed -lstdc++)
    endif()
  endif()
endfunction()

# refract_add_test(NAME PROGRAM [ARGUMENT …]): a test of CTest, label `unit`, and a
# target that builds its program: base_json_test of base/json_test.
function(refract_add_test name program)
  # Instrumented code takes several times as long.
  set(timeout 120)
  if(REFRACT_SANITIZE)
    set(timeout 600)
  endif()
  add_test(NAME ${name} COMMAND ${program} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT ${timeout}
    SKIP_RETURN_CODE 77
    ENVIRONMENT "REFRACT_SOURCE_DIR=${PROJECT_SOURCE_DIR};REFRACT_BUILD_DIR=${PROJECT_BINARY_DIR};REFRACT_PYTHON=${TorchCpu_PYTHON}")
  string(REPLACE "/" "_" target "${name}")
  if(NOT TARGET ${target})
    add_custom_target(${target})
    if(TARGET ${program})
      add_dependencies(${target} ${program})
    endif()
  endif()
endfunction()

# refract_test_programs(COMPONENT FILES … DEPS … [ALONE REGEX])
#
# Programs of the test files of a component, relative to the current folder: one of
# the files of a folder, ten at most. Small folders join their parent's. A file that
# matches ALONE, and one that includes LibTorch (*_torch_test.cc, where LibTorch itself
# is the oracle), shares no program with other kinds. Each file becomes the test of its
# name without .cc. The variable test_targets of the caller names the programs.
function(refract_test_programs component)
  cmake_parse_arguments(ARG "" "ALONE" "FILES;DEPS" ${ARGN})
  foreach(file IN LISTS ARG_FILES)
    cmake_path(GET file PARENT_PATH folder)
    list(APPEND files_of_${folder} ${file})
  endforeach()
  set(groups)
  foreach(file IN LISTS ARG_FILES)
    cmake_path(GET file PARENT_PATH folder)
    list(LENGTH files_of_${folder} count)
    if(count LESS 4 AND NOT folder STREQUAL component)
      cmake_path(GET folder PARENT_PATH folder)
    endif()
    string(REPLACE "/" "_" group "${folder}_tests")
    if(file MATCHES "_torch_test\\.cc$")
      set(group "${component}_libtorch_tests")
    elseif(ARG_ALONE AND file MATCHES "${ARG_ALONE}")
      string(REGEX REPLACE "\\.cc$" "" group "${file}")
      string(REPLACE "/" "_" group "${group}")
    endif()
    math(EXPR members_${group} "${members_${group}} + 1")
    math(EXPR unit "(${members_${group}} - 1) / 10")
    if(unit GREATER 0)
      string(APPEND group "_${unit}")
    endif()
    list(APPEND sources_${group} ${file})
    list(APPEND groups ${group})
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group IN LISTS groups)
    refract_test_program(${group} SOURCES ${sources_${group}} DEPS ${ARG_DEPS})
    if(group MATCHES "_libtorch_tests")
      refract_torch_sources(${group} ${sources_${group}})
    endif()
    foreach(file IN LISTS sources_${group})
      string(REGEX REPLACE "\\.cc$" "" name "${file}")
      set(only --file=tests/${file})
      if(ARG_ALONE AND file MATCHES "${ARG_ALONE}")
        set(only)
      endif()
      refract_add_test(${name} ${group} ${only})
    endforeach()
  endforeach()
  set(test_targets ${groups} PARENT_SCOPE)
endfunction()
