#ifndef REFRACT_RUNTIME_CUDA_ANNOTATIONS_H_
#define REFRACT_RUNTIME_CUDA_ANNOTATIONS_H_

// Where a function may run. The same headers are read by nvcc and by the host
// compiler, which runs the kernels on an emulated GPU in tests.

#ifdef __CUDACC__
#define REFRACT_HOST_DEVICE __host__ __device__ inline
#define REFRACT_DEVICE __device__ inline
#else
#define REFRACT_HOST_DEVICE inline
#define REFRACT_DEVICE inline
#endif

#endif  // REFRACT_RUNTIME_CUDA_ANNOTATIONS_H_
