#pragma once

#include "tessera/ir/tensor_type.h"
#include "tessera/program/program.h"

namespace tessera {

inline TensorTypes operand_types(const Instruction& instruction) {
  TensorTypes types;
  types.reserve(instruction.operands.size());
  for (const TensorRef& operand : instruction.operands) {
    types.push_back(operand.type);
  }
  return types;
}

}  // namespace tessera
