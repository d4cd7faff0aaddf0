#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tessera/backend/cuda/device/context.h"
#include "tessera/backend/device_backend.h"
#include "tessera/ops/gemm.h"

namespace tessera::cuda {

struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;  // of C's dtype, a number a column; null: none
};

// Products of one shape, whose matrices lie so many elements apart.
struct GemmBatch {
  std::int64_t count = 1;
  std::int64_t stride_a = 0;
  std::int64_t stride_b = 0;
  std::int64_t stride_c = 0;

  friend bool operator==(const GemmBatch&, const GemmBatch&) = default;
};

// A product with a bias whose gelu is C; or, without one, the gradient of gelu(argument), which
// becomes that of its argument.
struct GeluOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;       // null: C is multiplied by gelu'(argument)
  void* argument = nullptr;         // of C's dtype and shape; with a bias it is written, or null
  std::int64_t pitch_argument = 0;  // elements between its rows
};

// A product of 8-bit floats as tensor cores take it: the elements of each factor that are summed
// over lie together (transpose_b alone is set), in groups of 16; so do the columns. A sum is
// multiplied by what its row and its column are to be, then rounded.
struct Float8Gemm {
  Gemm gemm;  // its `input` does not count
  DType a = DType::kF8E4M3;
  DType b = DType::kF8E4M3;
  bool by_row = false;  // there is one inverse for each row of A and one for each column of B
  bool fast_accumulation = false;  // with fewer bits than f32 has

  friend bool operator==(const Float8Gemm&, const Float8Gemm&) = default;
};

struct Float8Operands {
  const void* a = nullptr;
  const void* b = nullptr;
  const float* inverse_a = nullptr;
  const float* inverse_b = nullptr;
  void* c = nullptr;
};

// What runs products: cuBLASLt on a device, the CPU's where kernels are emulated.
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

  // The operands, without a bias, are those of the first. Errors: as of run().
  virtual void run_batch(CUstream_st* stream,
                         const Gemm& gemm,
                         const GemmBatch& batch,
                         const GemmOperands& first,
                         std::span<std::byte> workspace) = 0;

  // Whether a library does this in one: if not, nothing was done. Equal arguments get equal
  // answers, but where take_choices() came in between.
  virtual bool run_gelu(CUstream_st* /*stream*/,
                        const Gemm& /*gemm*/,
                        const GeluOperands& /*operands*/,
                        std::span<std::byte> /*workspace*/) {
    return false;
  }

  virtual void run_float8(CUstream_st* stream,
                          const Float8Gemm& gemm,
                          const Float8Operands& operands,
                          std::span<std::byte> workspace) = 0;

  // Called between steps: keeps in files what was chosen for products.
  virtual void keep_choices() {}

  // As DeviceBackend has them.
  virtual bool shares_choices() const { return false; }

  virtual std::string choices(ProductChoices /*which*/) const { return {}; }

  virtual void take_choices(ProductChoices /*which*/, std::span<const std::string> /*of_ranks*/) {}
};

}  // namespace tessera::cuda
