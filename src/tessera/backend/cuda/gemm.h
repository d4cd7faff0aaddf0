#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cuda/context.h"
#include "tessera/ir/dtype.h"

namespace tessera::cuda {

// C[m, n] = sum_k A[m, k] B[k, n] (+ C[m, n]), row-major matrices with a pitch between rows.
struct Gemm {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;  // A is stored (k, m)
  bool transpose_b = false;  // B is stored (n, k)
  std::int64_t pitch_a = 0;  // elements between stored rows
  std::int64_t pitch_b = 0;
  std::int64_t pitch_c = 0;
  DType input = DType::kF32;   // of A and B: f32 or bf16
  DType output = DType::kF32;  // of C; sums are f32
  bool accumulate = false;

  friend bool operator==(const Gemm&, const Gemm&) = default;
};

struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
};

// Workspace of every product, whatever its shape, so that a program's memory is known without a
// device: 32 MiB, as NVIDIA advises for Hopper, and what brings it to a multiple of 256. Loops need
// none, and tests look at every byte of it.
#ifdef TESSERA_EMULATED_CUDA
inline constexpr std::int64_t kGemmWorkspaceBytes = 256;
#else
inline constexpr std::int64_t kGemmWorkspaceBytes = (std::int64_t{32} << 20U) + 256;
#endif

// What runs products: cuBLASLt on a device, loops where kernels are emulated.
class Gemms {
 public:
  Gemms() = default;
  virtual ~Gemms() = default;
  Gemms(const Gemms&) = delete;
  Gemms& operator=(const Gemms&) = delete;

  // As the next of `stream`. Equal arguments give equal bits.
  // Errors: kDeviceError; kUnsupported where no algorithm takes the shape.
  virtual void run(CUstream_st* stream,
                   const Gemm& gemm,
                   const GemmOperands& operands,
                   std::span<std::byte> workspace) = 0;
};

}  // namespace tessera::cuda
