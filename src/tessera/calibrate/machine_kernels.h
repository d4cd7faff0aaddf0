#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/ir/dtype.h"
#include "tessera/ir/op.h"
#include "tessera/ir/tensor_type.h"

namespace tessera {

// Which constants of a curve a kernel tells.
enum class KernelFamily : std::uint8_t { kProduct, kAttention, kStream };

// An op that a machine is timed with.
struct MachineKernel {
  KernelFamily family = KernelFamily::kStream;
  std::string what;  // for people
  OpRef op;
  TensorTypes operands;
};

// Of the ops of a training step with factors and activations of `dtype` (f32 or bf16): products as
// forward and backward have them, attention and its gradients, and streams from what a core's cache
// holds to several times what the last cache does.
std::vector<MachineKernel> machine_kernels(DType dtype);

}  // namespace tessera
