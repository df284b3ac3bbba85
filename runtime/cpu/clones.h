#ifndef REFRACT_RUNTIME_CPU_CLONES_H_
#define REFRACT_RUNTIME_CPU_CLONES_H_

// Compiles a function once per instruction set; the loader chooses the copy.
// Sanitizers start after that choice, and Clang 14 supports the attribute for
// other names only, so both compile one version.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if defined(REFRACT_WITHOUT_AVX512)
#define REFRACT_CPU_CLONES \
  __attribute__((target_clones("default", "arch=x86-64-v3")))
#else
#define REFRACT_CPU_CLONES \
  __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#endif
#else
#define REFRACT_CPU_CLONES
#endif
#define REFRACT_INLINE inline __attribute__((always_inline))

#endif  // REFRACT_RUNTIME_CPU_CLONES_H_
