// Precompiled headers of most tests (cmake/RefractComponent.cmake). Each test
// still includes the headers that it uses.
#ifndef REFRACT_TESTS_BASE_HEADERS_H_
#define REFRACT_TESTS_BASE_HEADERS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#endif  // REFRACT_TESTS_BASE_HEADERS_H_
