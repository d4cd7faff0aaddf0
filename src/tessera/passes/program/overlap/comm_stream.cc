#include "tessera/passes/program/overlap/comm_stream.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

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

// Reductions that move to backward codes, which are written anew once: of their instructions there
// are thousands, and a reduction for each parameter.
class MovedReductions {
 public:
  explicit MovedReductions(std::vector<CodeBody>& codes) {
    for (CodeBody& code : codes) {
      const Action action = code.code.action;
      if (action == Action::kBackward || action == Action::kWeightGradient) {
        targets_.push_back(
            {.code = &code, .after = Insertions(code.variants.front().instructions.size())});
      }
    }
  }

  // Puts it after the last instruction of all backward codes that it may not run beside, as one of
  // its layer; false: there is none.
  bool add(Instruction reduction) {
    for (auto target = targets_.rbegin(); target != targets_.rend(); ++target) {
      for (std::int32_t i = target->code->size(); i-- > 0;) {
        std::vector<Instruction>& here = target->after[static_cast<std::size_t>(i)];
        const auto moved = std::find_if(here.rbegin(), here.rend(), [&](const Instruction& other) {
          return conflict(other, reduction);
        });
        if (moved != here.rend()) {
          reduction.layer = moved->layer;
          here.insert(moved.base(), std::move(reduction));
          return true;
        }
        if (conflict((*target->code)[i], reduction)) {
          reduction.layer = (*target->code)[i].layer;
          here.insert(here.begin(), std::move(reduction));
          return true;
        }
      }
    }
    return false;
  }

  void apply() {
    for (Target& target : targets_) {
      for (Segment& variant : target.code->variants) {
        std::vector<Instruction> instructions;
        for (std::size_t i = 0; i < target.after.size(); ++i) {
          instructions.push_back(std::move(variant.instructions[i]));
          std::ranges::copy(target.after[i], std::back_inserter(instructions));
        }
        variant.instructions = std::move(instructions);
      }
    }
  }

 private:
  using Insertions = std::vector<std::vector<Instruction>>;

  struct Target {
    CodeBody* code = nullptr;
    Insertions after;  // by instruction
  };

  std::vector<Target> targets_;  // in the order of calls
};

// Whether something before instruction `i` that stays in the update comes first.
bool waits_for_update(const CodeBody& update, std::int32_t i, const std::vector<bool>& is_moved) {
  for (std::int32_t before = 0; before < i; ++before) {
    if (!is_moved[static_cast<std::size_t>(before)] && conflict(update[before], update[i])) {
      return true;
    }
  }
  return false;
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
  MovedReductions moved(codes);
  std::vector<bool> is_moved(static_cast<std::size_t>(update->size()), false);
  for (std::int32_t i = 0; i < update->size(); ++i) {
    Instruction reduction = (*update)[i];
    if (!is_reduction(reduction) || waits_for_update(*update, i, is_moved)) {
      continue;
    }
    reduction.only_last = !is_called_once;
    is_moved[static_cast<std::size_t>(i)] = moved.add(std::move(reduction));
  }
  moved.apply();
  update->remove(is_moved);
}

}  // namespace tessera
