#ifndef REFRACT_BENCH_RUNTIME_PEAK_H_
#define REFRACT_BENCH_RUNTIME_PEAK_H_

#include <string_view>

namespace refract::bench {

// `flops` floating-point operations (two per multiply-add and lane) as fused
// multiply-adds on registers: the peak rate of a core. Returns a number that
// depends on all of them. `isa`: a TileSet's name, whose registers are used.
double RunFmaLoop(double flops, std::string_view isa);

}  // namespace refract::bench

#endif  // REFRACT_BENCH_RUNTIME_PEAK_H_
