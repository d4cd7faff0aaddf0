#include "tessera/passes/program/overlap.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/program/lower.h"
#include "tessera/program/region.h"

namespace tessera {
namespace {

constexpr StreamId kComm = {1};

bool is_comm(const Instruction& instruction) {
  return instruction.stream == kComm;
}

template <class Visit>
void for_each_tensor(const Instruction& instruction, const Visit& visit) {
  for (const TensorRef& operand : instruction.operands) {
    visit(operand, false);
  }
  for (const TensorRef& result : instruction.results) {
    visit(result, true);
  }
}

// Whether both touch one buffer and one of them writes it. As verify() does, this looks at whole
// buffers.
bool conflict(const Instruction& a, const Instruction& b) {
  bool found = false;
  for_each_tensor(a, [&](const TensorRef& x, bool a_writes) {
    for_each_tensor(b, [&](const TensorRef& y, bool b_writes) {
      found = found || (x.buffer == y.buffer && (a_writes || b_writes));
    });
  });
  return found;
}

// The segments of one code: the same places, the first microbatch's with other ops.
struct Variants {
  std::vector<Segment*> variants;         // the first microbatch's last
  std::vector<std::int64_t> blocks = {};  // by place

  // Of every microbatch but the first: what it touches includes what that touches.
  std::vector<Instruction>& instructions() const { return variants.front()->instructions; }

  std::int32_t size() const {
    return variants.empty() ? 0 : static_cast<std::int32_t>(instructions().size());
  }

  const Instruction& operator[](std::int32_t place) const {
    return instructions()[static_cast<std::size_t>(place)];
  }

  std::int64_t block(std::int32_t place) const { return blocks[static_cast<std::size_t>(place)]; }
};

class Overlapping {
 public:
  Overlapping(Program program, std::int64_t layers)
      : program_(std::move(program)), layers_(layers) {}

  Program run() {
    if (!choose_streams()) {
      return std::move(program_);
    }
    program_.streams = {"compute", "comm"};
    add_first_forward();
    collect_code();
    reduce_in_backward();
    for (Variants& code : code_) {
      find_blocks(code);
    }
    for (const Action action : {Action::kForward, Action::kBackward}) {
      issue_gathers_early(code_of(action));
      find_blocks(code_of(action));
    }
    begin_backward_in_forward();
    start_lives();
    for (const Action action : {Action::kForward, Action::kBackward, Action::kUpdate}) {
      add_waits_of_comm(action);
      finish(action);
    }
    return std::move(program_);
  }

 private:
  static constexpr std::size_t kNumActions = 3;

  Variants& code_of(Action action) { return code_[static_cast<std::size_t>(action)]; }

  // Gathers and reductions of state, and what adds a reduced gradient to its accumulator, which is
  // of no use to the layers: before the update only the comm stream touches it.
  bool choose_streams() {
    bool any = false;
    for (Segment& segment : program_.segments) {
      std::vector<const TensorRef*> reduced;
      for (Instruction& instruction : segment.instructions) {
        if (reduces(instruction)) {
          reduced.push_back(&instruction.results[0]);
        }
        if (reduces(instruction) || instruction.op->get_if<GatherSlicesAttrs>() != nullptr ||
            accumulates(instruction, reduced)) {
          instruction.stream = kComm;
          any = true;
        }
      }
    }
    return any;
  }

  static bool reduces(const Instruction& instruction) {
    return instruction.op->get_if<ReduceSlicesAttrs>() != nullptr ||
           instruction.op->get_if<AllReduceSlicesAttrs>() != nullptr;
  }

  bool accumulates(const Instruction& instruction,
                   const std::vector<const TensorRef*>& reduced) const {
    const bool adds = instruction.op->get_if<AddAttrs>() != nullptr ||
                      instruction.op->get_if<CastAttrs>() != nullptr;
    return adds && program_[instruction.results[0].buffer].category == Category::kGradient &&
           std::any_of(reduced.begin(), reduced.end(), [&](const TensorRef* tensor) {
             return *tensor == instruction.operands.back();
           });
  }

  // The first microbatch's forward waits for nothing of a microbatch before it.
  void add_first_forward() {
    std::vector<SegmentId> forward;
    for (std::size_t i = 0; i < program_.segments.size(); ++i) {
      if (program_.segments[i].code.action == Action::kForward) {
        forward.push_back(SegmentId::of(i));
      }
    }
    if (program_.num_microbatches == 1 || forward.size() != 1) {
      return;
    }
    Segment first = program_[forward[0]];
    first.name += "_first";
    program_.segments.push_back(std::move(first));
    const auto call =
        std::find_if(program_.calls.begin(), program_.calls.end(), [&](const Call& each) {
          return each.segment == forward[0] && each.microbatch == 0;
        });
    TESSERA_CHECK(call != program_.calls.end(), "forward is not called for microbatch 0");
    call->segment = SegmentId::of(program_.segments.size() - 1);
  }

  void collect_code() {
    std::set<SegmentId> first;
    for (const Call& call : program_.calls) {
      if (call.microbatch == 0) {
        first.insert(call.segment);
      }
    }
    for (const bool is_first : {false, true}) {
      for (std::size_t i = 0; i < program_.segments.size(); ++i) {
        Segment& segment = program_.segments[i];
        if (first.contains(SegmentId::of(i)) == is_first) {
          Variants& code = code_of(segment.code.action);
          code.variants.push_back(&segment);
          TESSERA_CHECK(code.instructions().size() == segment.instructions.size() &&
                            code.variants.size() <= 2,
                        "segment {} is no variant of {}",
                        segment.name,
                        code.variants[0]->name);
        }
      }
    }
  }

  // The reductions of whole gradients need not wait for the step's end: each goes right behind what
  // finishes its gradient, which is done in the last microbatch.
  void reduce_in_backward() {
    const Variants& backward = code_of(Action::kBackward);
    const Variants& update = code_of(Action::kUpdate);
    for (std::int32_t i = 0; i < update.size();) {
      const auto finished = reduces(update[i]) ? last_conflict(backward, update[i]) : std::nullopt;
      if (!finished || last_conflict(update, update[i], i)) {
        ++i;
        continue;
      }
      Instruction reduction = update[i];
      reduction.only_last = program_.num_microbatches > 1;
      reduction.layer = backward[*finished].layer;
      for (Segment* segment : update.variants) {
        segment->instructions.erase(segment->instructions.begin() + i);
      }
      for (Segment* segment : backward.variants) {
        segment->instructions.insert(segment->instructions.begin() + *finished + 1, reduction);
      }
    }
  }

  // The last place before `end` that may not run beside `by`.
  static std::optional<std::int32_t> last_conflict(const Variants& code,
                                                   const Instruction& by,
                                                   std::optional<std::int32_t> end = {}) {
    for (std::int32_t i = end.value_or(code.size()); i-- > 0;) {
      if (conflict(code[i], by)) {
        return i;
      }
    }
    return std::nullopt;
  }

  // Blocks of computation; what runs on the comm stream belongs to the computation before it.
  static void find_blocks(Variants& code) {
    code.blocks.clear();
    std::int64_t block = -1;
    std::optional<std::int32_t> layer;
    for (std::int32_t i = 0; i < code.size(); ++i) {
      const Instruction& instruction = code[i];
      const bool update = code.variants[0]->code.action == Action::kUpdate;
      if (is_comm(instruction)) {
        layer = update ? std::nullopt : layer;
      } else if (layer != instruction.layer) {
        ++block;
        layer = instruction.layer;
      }
      code.blocks.push_back(std::max<std::int64_t>(block, 0));
    }
  }

  // The first computation from `place` on of `block` or a later one.
  static std::optional<std::int32_t> begin_of_block(const Variants& code,
                                                    std::int64_t block,
                                                    std::int32_t place = 0) {
    for (std::int32_t i = place; i < code.size(); ++i) {
      if (!is_comm(code[i]) && code.block(i) >= block) {
        return i;
      }
    }
    return std::nullopt;
  }

  // The first computation from `place` on, but before `end`, that may not run beside `by`.
  static std::optional<std::int32_t> first_conflict(const Variants& code,
                                                    const Instruction& by,
                                                    std::int32_t place,
                                                    std::int32_t end) {
    for (std::int32_t i = place; i < end; ++i) {
      if (!is_comm(code[i]) && conflict(code[i], by)) {
        return i;
      }
    }
    return std::nullopt;
  }

  void issue_gathers_early(const Variants& code) const {
    std::vector<std::vector<std::int32_t>> before(static_cast<std::size_t>(code.size()));
    std::vector<bool> moved(before.size(), false);
    for (std::int32_t i = 0; i < code.size(); ++i) {
      if (code[i].op->get_if<GatherSlicesAttrs>() == nullptr) {
        continue;
      }
      const auto reader = first_conflict(code, code[i], i, code.size());
      const auto target =
          reader ? begin_of_block(code, code.block(*reader) - layers_) : std::nullopt;
      if (target && *target < i) {
        const std::int32_t place = earliest(code, i, *target);
        before[static_cast<std::size_t>(place)].push_back(i);
        moved[static_cast<std::size_t>(i)] = true;
      }
    }
    std::vector<std::int32_t> order;
    for (std::int32_t i = 0; i < code.size(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      order.insert(order.end(), before[at].begin(), before[at].end());
      if (!moved[at]) {
        order.push_back(i);
      }
    }
    for (Segment* segment : code.variants) {
      std::vector<Instruction> instructions;
      for (const std::int32_t i : order) {
        instructions.push_back(std::move(segment->instructions[static_cast<std::size_t>(i)]));
      }
      segment->instructions = std::move(instructions);
    }
  }

  // The first place from `target` on where gather `i` may stand. Gathers keep their order, so that
  // those that make parts of one buffer do not hold each other up.
  static std::int32_t earliest(const Variants& code, std::int32_t i, std::int32_t target) {
    std::int32_t place = i;
    while (place > target && (code[place - 1].op->get_if<GatherSlicesAttrs>() != nullptr ||
                              !conflict(code[place - 1], code[i]))) {
      --place;
    }
    return place;
  }

  static std::int64_t num_blocks(const Variants& code) {
    return code.size() > 0 ? code.block(code.size() - 1) + 1 : 0;
  }

  // Every backward follows its microbatch's forward, whose last blocks are where the gathers of its
  // first ones are issued.
  void begin_backward_in_forward() {
    const Variants& forward = code_of(Action::kForward);
    const Variants& backward = code_of(Action::kBackward);
    if (forward.size() == 0) {
      return;
    }
    for (std::int32_t i = 0; i < backward.size();) {
      const auto reader = first_conflict(backward, backward[i], i, backward.size());
      if (backward[i].op->get_if<GatherSlicesAttrs>() == nullptr || !reader ||
          backward.block(*reader) >= layers_ || earliest(backward, i, 0) > 0) {
        ++i;
        continue;
      }
      const std::int64_t block = num_blocks(forward) + backward.block(*reader) - layers_;
      move_to_forward(i, begin_of_block(forward, std::max<std::int64_t>(block, 0)));
    }
  }

  // Moves the gather of the backward's `from` behind the gathers that the forward already issues at
  // its `target`, or as near to it as may be.
  void move_to_forward(std::int32_t from, std::optional<std::int32_t> target) {
    const Variants& forward = code_of(Action::kForward);
    const Variants& backward = code_of(Action::kBackward);
    std::int32_t place = forward.size();
    while (place > target.value_or(place) && !conflict(forward[place - 1], backward[from])) {
      --place;
    }
    const Instruction gather = backward[from];
    for (Segment* segment : backward.variants) {
      segment->instructions.erase(segment->instructions.begin() + from);
    }
    for (Segment* segment : forward.variants) {
      segment->instructions.insert(segment->instructions.begin() + place, gather);
    }
    find_blocks(code_of(Action::kForward));
    find_blocks(code_of(Action::kBackward));
  }

  // Lives of buffers by the new places, as if all ran in order.
  void start_lives() {
    std::vector<bool> seen(program_.buffers.size(), false);
    const auto touch = [&](BufferId id, Place place) {
      Buffer& buffer = program_.buffers[id.at()];
      if (!buffer.persistent) {
        buffer.begin = seen[id.at()] ? buffer.begin : place;
        buffer.end = place;
        seen[id.at()] = true;
      }
    };
    for (const Variants& code : code_) {
      for (std::int32_t i = 0; i < code.size(); ++i) {
        const Place place = place_of(code, i);
        for_each_tensor(code[i],
                        [&](const TensorRef& tensor, bool) { touch(tensor.buffer, place); });
        for (const Segment* segment : code.variants) {
          const BufferId workspace = segment->instructions[static_cast<std::size_t>(i)].workspace;
          if (workspace.valid()) {
            touch(workspace, place);
            program_.buffers[workspace.at()].name = workspace_name(place);
          }
        }
      }
    }
  }

  static Place place_of(const Variants& code, std::int32_t i) {
    return {.code = code.variants[0]->code, .instruction = i};
  }

  // An event that the instruction signals.
  EventId signal(const Variants& code, std::int32_t place) {
    const auto [found, is_new] =
        events_.try_emplace(in_order(place_of(code, place)), EventId::of(events_.size()));
    for (Segment* segment : code.variants) {
      if (is_new) {
        segment->instructions[static_cast<std::size_t>(place)].signals.push_back(found->second);
      }
    }
    return found->second;
  }

  // `of_this` tells a signal of the same microbatch (or step), which every variant waits for, from
  // one of the microbatch before.
  static void wait(const Variants& code, std::int32_t place, EventId event, bool of_this = true) {
    for (std::size_t v = 0; v < code.variants.size(); ++v) {
      const bool is_first = v > 0;
      auto& waits = code.variants[v]->instructions[static_cast<std::size_t>(place)].waits;
      if ((of_this || !is_first) && std::find(waits.begin(), waits.end(), event) == waits.end()) {
        waits.push_back(event);
      }
    }
  }

  static std::optional<std::int32_t> last_computation(const Variants& code) {
    for (std::int32_t i = code.size(); i-- > 0;) {
      if (!is_comm(code[i])) {
        return i;
      }
    }
    return std::nullopt;
  }

  // What stands before a collective in the program happens before it: it may use memory that was
  // theirs.
  void add_waits_of_comm(Action action) {
    const Variants& code = code_of(action);
    for (std::int32_t i = 0; i < code.size(); ++i) {
      if (!is_comm(code[i]) || (i > 0 && is_comm(code[i - 1]))) {
        continue;
      }
      if (i > 0) {
        wait(code, i, signal(code, i - 1));
        continue;
      }
      const Action previous = action == Action::kForward    ? Action::kBackward
                              : action == Action::kBackward ? Action::kForward
                                                            : Action::kBackward;
      if (action == Action::kForward && program_.num_microbatches == 1) {
        continue;
      }
      if (const auto last = last_computation(code_of(previous))) {
        wait(code, i, signal(code_of(previous), *last), action != Action::kForward);
      }
    }
  }

  // The first place that must wait for `by`: one that may not run beside it, or the beginning of
  // `block`.
  static std::optional<std::int32_t> place_to_wait(const Variants& code,
                                                   const Instruction& by,
                                                   std::int64_t block,
                                                   std::int32_t from = 0) {
    const auto limit = begin_of_block(code, block, from);
    const auto conflict = first_conflict(code, by, from, limit.value_or(code.size()));
    return conflict ? conflict : limit;
  }

  // By place, the last collective of another code (or this one) that computation waits for there.
  using Waits = std::map<std::int32_t, std::int32_t>;

  static void add_wait(Waits& waits, std::int32_t place, std::int32_t collective) {
    std::int32_t& last = waits.try_emplace(place, collective).first->second;
    last = std::max(last, collective);
  }

  // Collectives run in order, so that a wait for one is a wait for all before it.
  void place_waits(const Variants& signals,
                   const Variants& code,
                   const Waits& waits,
                   bool of_this) {
    std::int32_t last = -1;
    for (const auto& [place, collective] : waits) {
      if (collective > last) {
        wait(code, place, signal(signals, collective), of_this);
        last = collective;
      }
    }
  }

  // Where computation waits for each collective of `action`; until then what it uses lives.
  void finish(Action action) {
    const Variants& code = code_of(action);
    Waits here;
    Waits in_next;
    Waits in_update;
    for (std::int32_t i = 0; i < code.size(); ++i) {
      if (!is_comm(code[i])) {
        continue;
      }
      if (const auto place = place_to_wait(code, code[i], code.block(i) + layers_ + 1, i)) {
        add_wait(here, *place, i);
        extend_lives(code, i, place_of(code, std::max(*place - 1, 0)));
      } else if (action == Action::kForward) {
        finish_in_backward(i, in_next);
      } else if (action == Action::kBackward) {
        finish_after_backward(i, in_next, in_update);
      } else {
        extend_lives(code, i, place_of(code, code.size() - 1));
      }
    }
    place_waits(code, code, here, true);
    if (action == Action::kForward) {
      place_waits(code, code_of(Action::kBackward), in_next, true);
    } else {
      place_waits(code, code_of(Action::kForward), in_next, false);
      place_waits(code, code_of(Action::kUpdate), in_update, true);
    }
  }

  void finish_in_backward(std::int32_t collective, Waits& waits) {
    const Variants& forward = code_of(Action::kForward);
    const Variants& backward = code_of(Action::kBackward);
    const std::int64_t block = forward.block(collective) + layers_ + 1 - num_blocks(forward);
    const auto place = place_to_wait(backward, forward[collective], block);
    if (place) {
      add_wait(waits, *place, collective);
    }
    extend_lives(forward,
                 collective,
                 place ? place_of(backward, std::max(*place - 1, 0))
                       : place_of(forward, forward.size() - 1));
  }

  // What the next microbatch's forward or, after the last one, the update waits for. With several
  // microbatches it lives through the update, where nothing needs the memory of the layers.
  void finish_after_backward(std::int32_t collective, Waits& in_forward, Waits& in_update) {
    const Variants& backward = code_of(Action::kBackward);
    const Variants& forward = code_of(Action::kForward);
    const Variants& update = code_of(Action::kUpdate);
    const Instruction& by = backward[collective];
    Place end = place_of(backward, backward.size() - 1);
    if (update.size() > 0) {
      const auto place = first_conflict(update, by, 0, update.size());
      if (place) {
        add_wait(in_update, *place, collective);
      }
      end = place_of(update, std::max(place.value_or(update.size()) - 1, 0));
    }
    if (program_.num_microbatches > 1 && forward.size() > 0) {
      const auto block = place_to_wait(forward, by, layers_ + 1);
      const auto place = block ? block : last_computation(forward);
      TESSERA_CHECK(place.has_value(), "forward computes nothing");
      add_wait(in_forward, *place, collective);
      extend_lives(backward, collective, place_of(forward, std::max(*place - 1, 0)), true);
    }
    extend_lives(backward, collective, end);
  }

  // What the collective uses lives to `end`, of its own microbatch or of the next.
  void extend_lives(const Variants& code,
                    std::int32_t collective,
                    Place end,
                    bool of_next = false) {
    for_each_tensor(code[collective], [&](const TensorRef& tensor, bool) {
      extend_life(tensor.buffer, end, of_next);
    });
    for (const Segment* segment : code.variants) {
      const BufferId workspace =
          segment->instructions[static_cast<std::size_t>(collective)].workspace;
      if (workspace.valid()) {
        extend_life(workspace, end, of_next);
      }
    }
  }

  void extend_life(BufferId id, Place end, bool of_next) {
    Buffer& buffer = program_.buffers[id.at()];
    if (buffer.persistent) {
      return;
    }
    const bool is_of_next = in_order(buffer.end) < in_order(buffer.begin);
    if (of_next) {
      buffer.pool = {};  // there is one for all microbatches
    }
    if (of_next && end.code.action >= buffer.begin.code.action) {
      buffer.persistent = true;  // it lives until about where it begins again
      buffer.begin = buffer.end = {};
    } else if (of_next == is_of_next) {
      buffer.end = in_order(buffer.end) < in_order(end) ? end : buffer.end;
    } else if (of_next) {
      buffer.end = end;
    }
  }

  // Where a place comes in a microbatch.
  using Order = std::pair<Action, std::int32_t>;

  static Order in_order(const Place& place) { return {place.code.action, place.instruction}; }

  Program program_;
  std::int64_t layers_;
  std::array<Variants, kNumActions> code_;  // by action
  std::map<Order, EventId> events_;         // by place
};

}  // namespace

Program overlap(Program program, std::int64_t layers) {
  TESSERA_REQUIRE(layers >= 1,
                  ErrorCode::kInvalidArgument,
                  "collectives {} layers ahead: expected at least 1",
                  layers);
  return Overlapping(std::move(program), layers).run();
}

}  // namespace tessera
