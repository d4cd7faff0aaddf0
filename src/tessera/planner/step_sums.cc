#include "tessera/planner/step_sums.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tessera/ir/state.h"
#include "tessera/ops/all_ops.h"
#include "tessera/planner/live_bytes.h"
#include "tessera/program/program.h"

namespace tessera {
namespace {

const Segment& segment_of(const TimedProgram& program, const IssueStep& step) {
  return (*program.program)[program.program->calls[step.call].segment];
}

StreamSeconds seconds_of(const TimedProgram& program, const IssueStep& step, double spread) {
  StreamSeconds seconds;
  if (!step.works) {
    return seconds;
  }
  for (const Piece& piece : program.pieces_of(step)) {
    const double alone =
        piece.is_leg() ? to_seconds(piece.ticks + piece.moving) : spread * to_seconds(piece.ticks);
    if (step.stream != 0) {
      seconds.beside += alone;
      seconds.beside_native += piece.native ? alone : 0.0;
    } else if (piece.is_leg()) {
      seconds.talking += alone;
    } else {
      (piece.compute > 0 ? seconds.computing : seconds.streaming) += alone;
    }
  }
  return seconds;
}

void add(StreamSeconds& sum, const StreamSeconds& more) {
  sum = combine(1.0, sum, 1.0, more);
}

std::set<BufferId> looked_up_buffers(const Program& program) {
  std::set<BufferId> buffers;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      if (instruction.op->get_if<EmbeddingAttrs>() != nullptr) {
        buffers.insert(instruction.operands[0].buffer);
      }
    }
  }
  return buffers;
}

void add_memory(const Program& program, StepSums& sums) {
  sums.arena = static_cast<double>(program.arena_bytes);
  for (const Buffer& buffer : program.buffers) {
    if (buffer.persistent) {
      sums.persistent += static_cast<double>(program.total_bytes(buffer));
    }
  }
  for (const MemoryRow& row : memory_by_category(program)) {
    if (row.category == Category::kActivation) {
      sums.activations = static_cast<double>(row.peak_bytes);
    }
  }
  sums.alive = live_bytes(program).most;
  const std::set<BufferId> tables = looked_up_buffers(program);
  for (const StateBinding& state : program.states) {
    if (state.state.role == StateRole::kParameter) {
      const auto count = static_cast<double>(state.tensor.type.num_elements());
      sums.parameters += count;
      sums.trained += find_state(program, state.name, StateRole::kMoment1) != nullptr ? count : 0.0;
      sums.looked_up += tables.contains(state.tensor.buffer) ? count : 0.0;
    }
  }
}

// What stream 0 does in one microbatch's forward or backward, by layer, and what comes before the
// first and after the last instruction of a layer.
struct PassSeconds {
  double before = 0.0;
  std::map<std::int32_t, double> layers;
  double after = 0.0;
};

using Passes = std::map<std::pair<std::int32_t, Action>, PassSeconds>;  // by microbatch

Passes pass_seconds(const TimedProgram& program, double spread) {
  Passes passes;
  for (const IssueStep& step : program.order.steps) {
    const Call& call = program.program->calls[step.call];
    const Action action = segment_of(program, step).code.action;
    if (step.stream != 0 || !is_of_microbatches(action)) {
      continue;
    }
    const double seconds = seconds_of(program, step, spread).main();
    PassSeconds& pass = passes[{call.microbatch, action}];
    const std::int32_t layer = instruction_of(*program.program, step).layer;
    if (layer >= 0) {
      pass.layers[layer] += seconds;
    } else {
      (pass.layers.empty() ? pass.before : pass.after) += seconds;
    }
  }
  return passes;
}

double PartSeconds::* part_of(Action action) {
  return action == Action::kForward          ? &PartSeconds::forward
         : action == Action::kWeightGradient ? &PartSeconds::weight
                                             : &PartSeconds::backward;
}

// What the layers of a pass do before each needs what another one has made in it.
class AheadOfPass {
 public:
  void add(const Instruction& instruction, double seconds) {
    const std::int32_t layer = instruction.layer;
    if (layer < 0) {
      return;
    }
    const bool waits = std::ranges::any_of(instruction.operands, [&](const TensorRef& tensor) {
      const auto maker = makers_.find(tensor.buffer);
      return maker != makers_.end() && maker->second != layer;
    });
    Ahead& own = layers_[layer];
    own.has_waited = own.has_waited || waits;
    own.seconds += own.has_waited ? 0.0 : seconds;
    for (const TensorRef& tensor : instruction.results) {
      makers_[tensor.buffer] = layer;
    }
  }

  // Of those that wait for another layer at all.
  double most() const {
    double most = 0.0;
    for (const auto& [layer, own] : layers_) {
      most = own.has_waited ? std::max(most, own.seconds) : most;
    }
    return most;
  }

 private:
  struct Ahead {
    double seconds = 0.0;
    bool has_waited = false;
  };

  std::map<std::int32_t, Ahead> layers_;
  std::map<BufferId, std::int32_t> makers_;  // the layers that wrote last, in this pass
};

// Whether it makes codes of a weight, or one of the scales that they are made with. `made` are what
// such instructions before it have made.
bool makes_weight_codes(const Program& program,
                        const Instruction& instruction,
                        const std::set<BufferId>& made) {
  const Op& op = *instruction.op;
  const bool looks =
      op.get_if<AmaxAttrs>() != nullptr || op.get_if<QuantizeFloat8Attrs>() != nullptr;
  const bool follows =
      op.get_if<AllReduceAttrs>() != nullptr || op.get_if<TransposeCodesAttrs>() != nullptr;
  return (looks || follows) &&
         std::ranges::any_of(instruction.operands, [&](const TensorRef& operand) {
           const Buffer& buffer = program[operand.buffer];
           return made.contains(operand.buffer) ||
                  (looks && buffer.category == Category::kParameter);
         });
}

double least_layer(const PassSeconds& pass) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [layer, seconds] : pass.layers) {
    least = std::min(least, seconds);
  }
  return pass.layers.empty() ? 0.0 : least;
}

}  // namespace

StreamSeconds combine(double x, const StreamSeconds& a, double y, const StreamSeconds& b) {
  const auto sum = [&](double StreamSeconds::* part) {
    return std::max(0.0, x * a.*part + y * b.*part);
  };
  return {.computing = sum(&StreamSeconds::computing),
          .streaming = sum(&StreamSeconds::streaming),
          .talking = sum(&StreamSeconds::talking),
          .beside = sum(&StreamSeconds::beside),
          .beside_native = sum(&StreamSeconds::beside_native)};
}

PartSeconds combine(double x, const PartSeconds& a, double y, const PartSeconds& b) {
  const auto sum = [&](double PartSeconds::* part) {
    return std::max(0.0, x * a.*part + y * b.*part);
  };
  return {.forward = sum(&PartSeconds::forward),
          .backward = sum(&PartSeconds::backward),
          .weight = sum(&PartSeconds::weight)};
}

StepSums combine(double x, const StepSums& a, double y, const StepSums& b) {
  const auto sum = [&](double StepSums::* part) {
    return std::max(0.0, x * a.*part + y * b.*part);
  };
  StepSums sums = {.update = combine(x, a.update, y, b.update),
                   .applied = combine(x, a.applied, y, b.applied),
                   .gathers = combine(x, a.gathers, y, b.gathers),
                   .reductions = combine(x, a.reductions, y, b.reductions),
                   .persistent = sum(&StepSums::persistent),
                   .activations = sum(&StepSums::activations),
                   .alive = sum(&StepSums::alive),
                   .arena = sum(&StepSums::arena),
                   .parameters = sum(&StepSums::parameters),
                   .trained = sum(&StepSums::trained),
                   .looked_up = sum(&StepSums::looked_up)};
  for (std::size_t i = 0; i < sums.microbatches.size(); ++i) {
    sums.microbatches[i] = combine(x, a.microbatches[i], y, b.microbatches[i]);
  }
  return sums;
}

StreamSeconds all_microbatches(const StepSums& sums, std::int64_t microbatches) {
  StreamSeconds whole = sums.microbatches[0];
  if (microbatches > 1) {
    add(whole, sums.microbatches[2]);
    const auto between = static_cast<double>(microbatches - 2);
    whole = combine(1.0, whole, between, sums.microbatches[1]);
  }
  return whole;
}

void leave_out_weight_codes(TimedProgram& program) {
  std::set<BufferId> made;
  for (const IssueStep& step : program.order.steps) {
    const Instruction& instruction = instruction_of(*program.program, step);
    if (!makes_weight_codes(*program.program, instruction, made)) {
      continue;
    }
    for (const TensorRef& result : instruction.results) {
      made.insert(result.buffer);
    }
    for (std::uint32_t i = program.first_piece[step.place]; i < program.first_piece[step.place + 1];
         ++i) {
      program.pieces[i].ticks = 0;
      program.pieces[i].moving = 0;
    }
  }
}

StepSums step_sums(const TimedProgram& program, double spread) {
  StepSums sums;
  bool is_applied = false;
  const std::size_t second = program.program->num_microbatches > 1 ? 1 : 0;
  for (const IssueStep& step : program.order.steps) {
    const auto microbatch = static_cast<std::size_t>(program.program->calls[step.call].microbatch);
    const Action action = segment_of(program, step).code.action;
    const StreamSeconds seconds = seconds_of(program, step, spread);
    add(action == Action::kUpdate ? sums.update : sums.microbatches.at(microbatch), seconds);
    if (microbatch == second && is_of_microbatches(action)) {
      const bool gathers =
          instruction_of(*program.program, step).op->get_if<GatherSlicesAttrs>() != nullptr;
      PartSeconds& sum = gathers ? sums.gathers : sums.reductions;
      sum.*part_of(action) += seconds.beside;
    }
    is_applied =
        is_applied || instruction_of(*program.program, step).op->get_if<AdamwAttrs>() != nullptr;
    if (is_applied) {
      add(sums.applied, seconds);
    }
  }
  add_memory(*program.program, sums);
  return sums;
}

std::vector<StepParts> step_parts(const TimedProgram& program, double spread) {
  std::vector<StepParts> parts(static_cast<std::size_t>(program.program->num_microbatches));
  for (const auto& [of, pass] : pass_seconds(program, spread)) {
    const auto& [microbatch, action] = of;
    double PartSeconds::* const part = part_of(action);
    const bool is_forward = action == Action::kForward;
    StepParts& own = parts.at(static_cast<std::size_t>(microbatch));
    own.layer.*part = least_layer(pass);
    (is_forward ? own.embedding : own.head).*part = pass.before;
    (is_forward ? own.head : own.embedding).*part = pass.after;
  }
  return parts;
}

AheadSeconds ahead_seconds(const TimedProgram& program, double spread) {
  std::map<Action, AheadOfPass> passes;
  for (const IssueStep& step : program.order.steps) {
    const Action action = segment_of(program, step).code.action;
    if (step.stream == 0 && is_of_microbatches(action) &&
        call_of(*program.program, step).microbatch == 0) {
      passes[action].add(instruction_of(*program.program, step),
                         seconds_of(program, step, spread).main());
    }
  }
  return {.forward = passes[Action::kForward].most(), .backward = passes[Action::kBackward].most()};
}

StepEnds step_ends(const TimedProgram& program, double spread) {
  StepEnds ends;
  const std::vector<IssueStep>& steps = program.order.steps;
  std::vector<double> beside = {0.0};  // seconds of the other stream, up to each step
  double main = 0.0;
  bool has_waited = false;
  double before_tail = 0.0;
  double before_update = 0.0;
  for (const IssueStep& step : steps) {
    const StreamSeconds seconds = seconds_of(program, step, spread);
    if (seconds.main() > 0.0 && step.num_waits > 0 && !std::exchange(has_waited, true)) {
      const StepIndex awaited = std::ranges::max(program.order.waits_of(step));
      ends.before = std::max(
          0.0, beside[awaited] + seconds_of(program, steps[awaited], spread).beside - main);
    }
    main += seconds.main();
    beside.push_back(beside.back() + seconds.beside);
    if (segment_of(program, step).code.action != Action::kUpdate) {
      before_tail = seconds.main() > 0.0 ? beside.back() : before_tail;
      before_update = beside.back();
    }
  }
  ends.after = before_update - before_tail;
  return ends;
}

}  // namespace tessera
