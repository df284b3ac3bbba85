#include "bench/cuda/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace refract::bench {

void MustBeOk(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

void MustBeOk(const runtime::cuda::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

Quartiles QuartilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  auto at = [&](double q) {
    const double position = q * static_cast<double>(values.size() - 1);
    const auto low = static_cast<size_t>(position);
    const size_t high = std::min(low + 1, values.size() - 1);
    const double part = position - static_cast<double>(low);
    return values[low] * (1 - part) + values[high] * part;
  };
  return {at(0.25), at(0.5), at(0.75)};
}

std::vector<std::vector<double>> MeasureInTurn(
    const std::vector<Variant>& variants, int repetitions) {
  std::vector<std::vector<double>> seconds(variants.size());
  // The first turn of each variant is not counted. Variants take turns, so that
  // a slow moment of the machine meets all of them.
  for (int repetition = -1; repetition < repetitions; ++repetition) {
    for (size_t i = 0; i < variants.size(); ++i) {
      const size_t v =
          (i + static_cast<size_t>(repetition + 1)) % variants.size();
      // Wall time: each variant waits for the device before it returns.
      const auto start = std::chrono::steady_clock::now();
      variants[v]();
      const std::chrono::duration<double> took =
          std::chrono::steady_clock::now() - start;
      if (repetition >= 0) seconds[v].push_back(took.count());
    }
  }
  return seconds;
}

Quartiles PairedRatio(const std::vector<double>& a,
                      const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    ratios.push_back(a[i] / b[i]);
  }
  return QuartilesOf(std::move(ratios));
}

namespace {

// `, "key": value`; JSON has no infinity and no NaN.
std::string Member(const std::string& key, double value) {
  char text[40] = "null";
  if (std::isfinite(value)) std::snprintf(text, sizeof(text), "%.9g", value);
  return ", \"" + key + "\": " + text;
}

std::string Members(const Details& details) {
  std::string members;
  for (const auto& [key, number] : details) members += Member(key, number);
  return members;
}

}  // namespace

void Report(const std::string& name, const Quartiles& value, Bar side,
            double bar, const Details& details) {
  const bool at_most = side == Bar::kAtMost;
  // The bar must hold for the worse quartile: a median that passes by luck
  // would not be reproduced.
  const bool reached = at_most ? value.q75 <= bar : value.q25 >= bar;
  std::printf("%-52s %8.3f [%.3f, %.3f]  %s %.2f  %s\n", name.c_str(),
              value.median, value.q25, value.q75, at_most ? "<=" : ">=", bar,
              reached ? "reached" : "MISSED");
  // All names are constants of this program, without characters to escape.
  std::printf("= {\"name\": \"%s\", \"reached\": %s%s}\n", name.c_str(),
              reached ? "true" : "false",
              (Member("median", value.median) + Member("q25", value.q25) +
               Member("q75", value.q75) +
               Member(at_most ? "at_most" : "at_least", bar) + Members(details))
                  .c_str());
  std::fflush(stdout);
}

void ReportDetails(const Details& details) {
  std::printf("= {%s}\n", Members(details).substr(2).c_str());
  std::fflush(stdout);
}

DeviceMemory::DeviceMemory(int64_t bytes) {
  MustBeOk(cudaMalloc(&memory_, static_cast<size_t>(bytes)), "cudaMalloc");
  std::mt19937 random(1);
  std::vector<uint16_t> bits(size_t{8} << 20);
  // fp16 of 2^-7 to 1: small numbers as bfloat16 and as float, too.
  for (uint16_t& b : bits) {
    b = static_cast<uint16_t>(0x2000u + random() % 0x1C00u);
  }
  const auto piece = static_cast<int64_t>(bits.size() * sizeof(bits[0]));
  for (int64_t at = 0; at < bytes; at += piece) {
    MustBeOk(cudaMemcpy(static_cast<char*>(memory_) + at, bits.data(),
                        static_cast<size_t>(std::min(piece, bytes - at)),
                        cudaMemcpyHostToDevice),
             "cudaMemcpy");
  }
  // The last piece may still be in transit; other streams do not wait.
  MustBeOk(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

DeviceMemory::~DeviceMemory() { (void)cudaFree(memory_); }

}  // namespace refract::bench
