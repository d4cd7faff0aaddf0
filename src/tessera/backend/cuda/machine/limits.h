#pragma once

#include <cstdint>

namespace tessera::cuda {

// What bounds the workspaces of the CUDA kernels, the same on every device, so that the memory of a
// program is known without one.
struct Limits {
  // Of every matrix product, whatever its shape: 32 MiB, as NVIDIA advises for Hopper, and what
  // brings it to a multiple of 256.
  std::int64_t gemm_workspace = (std::int64_t{32} << 20U) + 256;

  // Of a library's attention backward, with its scratch: larger problems are done in parts.
  std::int64_t flash_workspace = std::int64_t{9} << 28U;  // 2.25 GiB

  // Tokens of a row per document that the library starts blocks for, at least one per row. Rows
  // with more documents are left to own kernels, which pass over what nobody sees.
  std::int64_t tokens_of_document = 512;
};

// Those of this process. Only the emulation, whose problems are small, changes them, before its
// first program.
Limits& limits();

}  // namespace tessera::cuda
