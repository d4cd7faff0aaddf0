#pragma once

#include <cstddef>
#include <vector>

#include "tessera/ir/ids.h"
#include "tessera/ir/tensor_type.h"
#include "tessera/program/program.h"

namespace tessera {

// The stream of the thread that runs a step.
inline constexpr StreamId kOwnStream = {0};

// An instruction in one call of a step. Points into its program.
struct InstructionRun {
  const Call* call = nullptr;
  std::size_t index = 0;  // of the instruction in its segment

  friend bool operator==(const InstructionRun&, const InstructionRun&) = default;
};

inline const Instruction& instruction_of(const Program& program, const InstructionRun& run) {
  return program[run.call->segment].instructions[run.index];
}

inline TensorTypes operand_types(const Instruction& instruction) {
  TensorTypes types;
  for (const TensorRef& operand : instruction.operands) {
    types.push_back(operand.type);
  }
  return types;
}

// Calls body(run, instruction) for all of a step, in the order of its calls.
template <class Body>
void for_each_run(const Program& program, const Body& body) {
  for (const Call& call : program.calls) {
    const std::vector<Instruction>& instructions = program[call.segment].instructions;
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      body(InstructionRun{.call = &call, .index = i}, instructions[i]);
    }
  }
}

}  // namespace tessera
