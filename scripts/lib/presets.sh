# Building and testing a CMake preset for scripts/test.sh and scripts/nightly.sh.
# Sourced after install.sh, in the root of the tree. RESULTS is a folder; files
# in it are what scripts/summarize_tests.py reads.

# Sets what sanitizers report in every program that is started afterwards.
refract_sanitizer_options() {
  export ASAN_OPTIONS="detect_leaks=1:strict_string_checks=1"
  export UBSAN_OPTIONS="print_stacktrace=1"
  export LSAN_OPTIONS="suppressions=$PWD/cmake/lsan.supp:print_suppressions=0"
  export TSAN_OPTIONS="suppressions=$PWD/cmake/tsan.supp:second_deadlock_stack=1"
}

# refract_configure_preset RESULTS PRESET
refract_configure_preset() {
  cmake --preset "$2" >"$1/$2-configure.log" 2>&1 || {
    tail -n 20 "$1/$2-configure.log" >&2
    refract_die "cmake --preset $2 failed"
  }
}

# refract_build_preset RESULTS PRESET JOBS [TARGET…]: everything without TARGET.
# REFRACT_BUILD_TIMEOUT_S: seconds after which the build is given up.
refract_build_preset() {
  local results="$1" preset="$2" jobs="$3" limit=()
  shift 3
  [[ -z ${REFRACT_BUILD_TIMEOUT_S:-} ]] || limit=(timeout "$REFRACT_BUILD_TIMEOUT_S")
  refract_build "$results/$preset-build.log" \
    "${limit[@]}" cmake --build "build/$preset" -- -j "$jobs" "$@" || {
    refract_show_errors "$results/$preset-build.log"
    refract_die "the $preset build failed (whole log: $results/$preset-build.log)"
  }
}

# refract_list_tests PRESET [CTEST ARGUMENT…]: their names, one a line.
refract_list_tests() {
  ctest --test-dir "build/$1" -N "${@:2}" | sed -n 's/^ *Test *#[0-9]*: \([^ ]*\).*/\1/p'
}

# refract_test_preset RESULTS PRESET [CTEST ARGUMENT…]. A failing test does not
# stop the others; the summary tells. ctest leaves out of its results what it did
# not begin before --stop-time: the summary finds these tests by the list.
refract_test_preset() {
  local results="$1" preset="$2"
  shift 2
  refract_list_tests "$preset" "$@" >"$results/$preset-tests.txt"
  # Each program writes its cases here, so that the summary counts cases.
  # A test takes half of one of two cores (PROCESSORS: how many halves), since tests of
  # processes wait for a good part of their time. With a sanitizer they compute.
  local jobs=4
  [[ $preset == release || $preset == dev ]] || jobs=2
  GTEST_OUTPUT="xml:$PWD/$results/$preset-cases/" \
    ctest --test-dir "build/$preset" -j "$jobs" --no-tests=error --output-on-failure \
    --test-output-size-passed 1000000 --test-output-size-failed 1000000 \
    --output-junit "$PWD/$results/$preset.xml" "$@" || true
}
