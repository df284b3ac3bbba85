#ifndef REFRACT_RUNTIME_CUDA_CALLS_ANNOTATIONS_H_
#define REFRACT_RUNTIME_CUDA_CALLS_ANNOTATIONS_H_

// Marks where a function may run. nvcc reads these headers, and so does the
// host compiler, which runs the kernels on an emulated GPU in tests.

#ifdef __CUDACC__
#define REFRACT_HOST_DEVICE __host__ __device__ inline
#define REFRACT_DEVICE __device__ inline
// For loops whose arrays must stay in registers: nvcc does not unroll long
// bodies by itself.
#define REFRACT_UNROLL _Pragma("unroll")
#else
#define REFRACT_HOST_DEVICE inline
#define REFRACT_DEVICE inline
#define REFRACT_UNROLL
#endif

#endif  // REFRACT_RUNTIME_CUDA_CALLS_ANNOTATIONS_H_
