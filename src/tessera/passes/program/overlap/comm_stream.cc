#include "tessera/passes/program/overlap/comm_stream.h"

#include <algorithm>
#include <optional>

#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

bool accumulates(const Program& program,
                 const Instruction& instruction,
                 const std::vector<const TensorRef*>& reduced) {
  const bool adds = instruction.op->get_if<AddAttrs>() != nullptr ||
                    instruction.op->get_if<CastAttrs>() != nullptr;
  return adds && program[instruction.results[0].buffer].category == Category::kGradient &&
         std::ranges::any_of(reduced, [&](const TensorRef* tensor) {
           return *tensor == instruction.operands.back();
         });
}

// The last backward code that the reduction may not run beside, and where.
struct GradientEnd {
  CodeBody* code = nullptr;
  std::int32_t instruction = 0;
};

std::optional<GradientEnd> find_end(std::vector<CodeBody>& codes, const Instruction& reduction) {
  for (auto code = codes.rbegin(); code != codes.rend(); ++code) {
    const Action action = code->code.action;
    if (action != Action::kBackward && action != Action::kWeightGradient) {
      continue;
    }
    if (const auto found = code->last_conflict(reduction, code->size())) {
      return GradientEnd{.code = &*code, .instruction = *found};
    }
  }
  return std::nullopt;
}

}  // namespace

bool choose_comm_stream(Program& program) {
  bool any = false;
  for (Segment& segment : program.segments) {
    if (segment.code.action == Action::kStart) {
      continue;  // gather_beside() comes to its gathers
    }
    std::vector<const TensorRef*> reduced;
    for (Instruction& instruction : segment.instructions) {
      if (is_reduction(instruction)) {
        reduced.push_back(&instruction.results[0]);
      }
      if (is_reduction(instruction) || is_gather(instruction) ||
          accumulates(program, instruction, reduced)) {
        instruction.stream = kCommStream;
        any = true;
      }
    }
  }
  return any;
}

void reduce_before_update(std::vector<CodeBody>& codes, bool is_called_once) {
  const auto update = std::ranges::find_if(
      codes, [](const CodeBody& body) { return body.code.action == Action::kUpdate; });
  if (update == codes.end()) {
    return;
  }
  for (std::int32_t i = 0; i < update->size();) {
    const auto finish = is_reduction((*update)[i]) ? find_end(codes, (*update)[i]) : std::nullopt;
    if (!finish || update->last_conflict((*update)[i], i)) {
      ++i;
      continue;
    }
    Instruction reduction = update->extract(i);
    reduction.only_last = !is_called_once;
    reduction.layer = (*finish->code)[finish->instruction].layer;
    finish->code->insert(finish->instruction + 1, reduction);
  }
}

}  // namespace tessera
