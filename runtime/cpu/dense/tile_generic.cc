// For any processor. Without hardware support the C library computes fused
// multiply-adds: slowly, with the same bits.

#include <cmath>
#include <cstring>

#include "runtime/cpu/dense/tile_template.h"

namespace refract::runtime::cpu {
namespace {

struct Generic {
  static constexpr int kLanes = 4;
  struct Vector {
    float x[kLanes];
  };
  template <typename F>
  static Vector Map(F f) {
    Vector result;
    for (int i = 0; i < kLanes; ++i) result.x[i] = f(i);
    return result;
  }
  static Vector Zero() { return Broadcast(0.0f); }
  static Vector Broadcast(float x) {
    return Map([&](int) { return x; });
  }
  static Vector Load(const float* from) {
    return Map([&](int i) { return from[i]; });
  }
  static void Store(Vector x, float* to) { std::memcpy(to, x.x, sizeof(x.x)); }
  static Vector Add(Vector x, Vector y) {
    return Map([&](int i) { return x.x[i] + y.x[i]; });
  }
  static Vector Multiply(Vector x, Vector y) {
    return Map([&](int i) { return x.x[i] * y.x[i]; });
  }
  static Vector MultiplyAdd(Vector x, Vector y, Vector z) {
    // One rounding, as the vector instructions of other tiles have it.
    return Map([&](int i) { return std::fma(x.x[i], y.x[i], z.x[i]); });
  }
  static Vector Relu(Vector x) {
    return Map([&](int i) { return x.x[i] < 0 ? 0.0f : x.x[i]; });
  }
  static Vector LoadWeight(const float* from) { return Load(from); }
  static Vector LoadWeight(const uint16_t* from) {
    return Map([&](int i) {
      // bfloat16 is the upper half of a float32.
      const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      return value;
    });
  }
  static Vector LoadWeight(const int8_t* from) {
    return Map([&](int i) { return static_cast<float>(from[i]); });
  }
};

template <WeightForm kForm>
void AddForm(TileSet& set) {
  AddTiles<Generic, kForm, 1, 4>(set);
}

TileSet MakeSet() {
  TileSet set;
  set.name = "generic";
  set.max_rows = 4;
  set.block_bytes = int64_t{512} << 10;
  AddForm<WeightForm::kFloat32>(set);
  AddForm<WeightForm::kBFloat16>(set);
  AddForm<WeightForm::kInt8>(set);
  return set;
}

}  // namespace

const TileSet& GenericTileSet() {
  static const TileSet set = MakeSet();
  return set;
}

}  // namespace refract::runtime::cpu
