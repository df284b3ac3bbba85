// For any processor: see gather_kernels.h.

#include <bit>

#include "runtime/cpu/half.h"
#include "runtime/cpu/look_ups/gather/gather_kernels.h"

namespace refract::runtime::cpu {
namespace {

#include "runtime/cpu/look_ups/gather/gather_template.h"

// Loops over four floats, which compilers put into one register.
struct Vector {
  static constexpr int64_t kLanes = 4;
  static constexpr bool kPicks = false;
  struct Reg {
    float lane[kLanes];
  };
  struct Bits {
    std::byte byte[kLanes * sizeof(float)];
  };
  template <typename F>
  static Reg Make(F f) {
    Reg result;
    for (int i = 0; i < kLanes; ++i) result.lane[i] = f(i);
    return result;
  }
  static Reg Zero() { return Set1(0); }
  static Reg Set1(float x) {
    return Make([&](int) { return x; });
  }
  static Reg Add(Reg a, Reg b) {
    return Make([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Reg Mul(Reg a, Reg b) {
    return Make([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Reg MulAddExact(Reg a, Reg b, Reg c) { return Add(Mul(a, b), c); }
  static Reg Div(Reg a, Reg b) {
    return Make([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static Reg Max(Reg a, Reg b) {
    return Make(
        [&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static void Store(float* to, Reg x) { __builtin_memcpy(to, &x, sizeof(x)); }
  static Bits LoadBits(const std::byte* p) {
    Bits bits;
    __builtin_memcpy(&bits, p, sizeof(bits));
    return bits;
  }
  static void StoreBits(std::byte* p, Bits x) {
    __builtin_memcpy(p, &x, sizeof(x));
  }

  static Reg F32(const std::byte* p) {
    Reg result;
    __builtin_memcpy(&result, p, sizeof(result));
    return result;
  }
  static Reg F16(const std::byte* p) {
    return Make([&](int i) { return Half(p + 2 * i); });
  }
  static Reg BF16(const std::byte* p) {
    return Make([&](int i) {
      BFloat16 value;
      __builtin_memcpy(&value, p + 2 * i, sizeof(value));
      return ToFloat(value);
    });
  }
  template <int kBits>
  static Reg Unpack(const std::byte* p) {
    return Make([&](int i) {
      const int bit = i * kBits;
      return static_cast<float>((static_cast<int>(p[bit / 8]) >> (bit % 8)) &
                                ((1 << kBits) - 1));
    });
  }
  static Reg U8(const std::byte* p) { return Unpack<8>(p); }
  static Reg U4(const std::byte* p) { return Unpack<4>(p); }
  static Reg U2(const std::byte* p) { return Unpack<2>(p); }
  static void Halves(const std::byte* p, Reg& a, Reg& b) {
    a = Set1(Half(p));
    b = Set1(Half(p + 2));
  }
  static float Half(const std::byte* p) {
    Float16 value;
    __builtin_memcpy(&value, p, sizeof(value));
    return ToFloat(value);
  }
};

GatherSet MakeGeneric() {
  GatherSet set;
  FillSet<Vector>("generic", set);
  return set;
}

}  // namespace

const GatherSet& GenericGatherSet() {
  static const GatherSet set = MakeGeneric();
  return set;
}

}  // namespace refract::runtime::cpu
