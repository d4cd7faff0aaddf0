#pragma once

// Marks functions that kernels share with the host: nvcc compiles them for both, a C++ compiler for
// the host alone. Those that must be inlined are compiled for the instruction set of their caller.
#ifdef __CUDACC__
#define TESSERA_HOST_DEVICE __host__ __device__
#define TESSERA_HOST_DEVICE_INLINE __host__ __device__ __forceinline__
#else
#define TESSERA_HOST_DEVICE
#define TESSERA_HOST_DEVICE_INLINE [[gnu::always_inline]] inline
#endif
