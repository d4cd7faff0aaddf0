#pragma once

// Marks functions that kernels share with the host: nvcc compiles them for both, a C++ compiler for
// the host alone.
#ifdef __CUDACC__
#define TESSERA_HOST_DEVICE __host__ __device__
#else
#define TESSERA_HOST_DEVICE
#endif
