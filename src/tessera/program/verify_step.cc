#include "tessera/program/verify_step.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/program/freed_memory.h"
#include "tessera/program/issue_order.h"
#include "tessera/program/lives.h"
#include "tessera/program/living_memory.h"
#include "tessera/program/step_uses.h"
#include "tessera/program/stream_clocks.h"

namespace tessera {
namespace {

// Records of things that come and go, with their memory kept for others.
template <class Record>
class Records {
 public:
  static constexpr std::uint32_t kNone = static_cast<std::uint32_t>(-1);

  // As its last user left it.
  std::uint32_t take() {
    if (free_.empty()) {
      records_.emplace_back();
      return static_cast<std::uint32_t>(records_.size() - 1);
    }
    const std::uint32_t record = free_.back();
    free_.pop_back();
    return record;
  }

  void give_back(std::uint32_t record) { free_.push_back(record); }

  Record& operator[](std::uint32_t record) { return records_[record]; }

  const Record& operator[](std::uint32_t record) const { return records_[record]; }

 private:
  std::vector<Record> records_;
  std::vector<std::uint32_t> free_;
};

// A read or write of a part of a buffer.
struct PartUse {
  Region region;
  Use use;
  bool is_write = false;
};

// Of a buffer's bytes in a life, by instructions of other streams than 0.
struct LifeUses {
  Uses writes;
  Uses reads;
  Uses before;  // by the buffers that held them
  // The same of a buffer in another space than the device's, whose parts move while others do.
  std::vector<PartUse> parts;
};

// One life of a buffer in a slot.
struct Life {
  Written written;
  std::int32_t microbatch = 0;  // of a buffer in a pool, whose slot is for calls of this one
  std::uint32_t uses = 0;       // their record, or none
};

std::pair<std::int64_t, std::int64_t> bytes_of(const Program& program, const BufferSlot& of) {
  const Buffer& buffer = program[of.buffer];
  const std::int64_t begin =
      program.begin_of(buffer.space) + buffer.offsets[static_cast<std::size_t>(of.slot)];
  return {begin, begin + buffer.bytes};
}

// Lives begin and end as the calls go; what is used is compared with what lives then.
class StepWalk {
 public:
  StepWalk(const Program& program, const WrittenBefore& there, const TensorRegions& regions)
      : program_(program),
        order_(issue_order(program)),
        clocks_(order_, program.streams.size()),
        numbers_(program),
        uses_(uses_of(program, regions, numbers_)),
        walk_(program),
        lives_(numbers_.size(), kNone),
        living_(program, numbers_) {
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
      const Buffer& buffer = program.buffers[i];
      const auto written = there.find(BufferId::of(i));
      for (std::int32_t slot = 0; buffer.persistent && slot < program.num_slots(buffer.pool);
           ++slot) {
        begin_life(numbers_[{.buffer = BufferId::of(i), .slot = slot}],
                   written == there.end() ? nullptr : &written->second,
                   slot);
      }
    }
  }

  void run() {
    const IssueStep* step = order_.steps.data();
    for (const Call& call : program_.calls) {
      call_ = &call;
      events_of_call_ = walk_.next_call();
      next_access_ = uses_.accesses.data() + uses_.begins[call.segment.at()];
      const Segment& segment = program_[call.segment];
      for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
        with_context(
            [&] {
              return format("segment {}, microbatch {}, instruction {}: {}",
                            segment.name,
                            call.microbatch,
                            i,
                            to_string(*segment.instructions[i].op));
            },
            [&] { run_step(*step, segment.instructions[i]); });
        ++step;
      }
    }
    walk_.end_step();
  }

  // Whether the buffer lives and all of the region is written.
  bool holds(const BufferSlot& of, const Region& region) const {
    const std::uint32_t record = lives_[numbers_[of]];
    return record != kNone && life_records_[record].written.covers(region);
  }

 private:
  void run_step(const IssueStep& step, const Instruction& instruction) {
    const auto take = [&](bool is_end, const auto& act) {
      while (!events_of_call_.empty() &&
             events_of_call_.front().at.instruction == step.instruction &&
             events_of_call_.front().is_end == is_end) {
        act(events_of_call_.front().number);
        events_of_call_ = events_of_call_.subspan(1);
      }
    };
    take(false, [&](std::size_t number) { begin_life(number, nullptr, call_->microbatch); });
    execute(step, instruction);
    take(true, [&](std::size_t number) { end_life(number); });
  }

  void execute(const IssueStep& step, const Instruction& instruction) {
    if (!order_.unmet.empty() && order_.unmet.front().step == order_.index_of(step)) {
      fail(ErrorCode::kInternal,
           "waits for event {}, never signalled",
           order_.unmet.front().event.index);
    }
    clocks_.begin(step);
    clocks_.tick();
    const Access* const accesses = next_access_;
    next_access_ += instruction.operands.size() + instruction.results.size() +
                    (instruction.workspace.valid() ? 1 : 0);
    if (step.works) {
      use_buffers(instruction, {accesses, next_access_});
    }
    clocks_.end(step);
  }

  // In this call's slot.
  std::size_t number_of(const Slots& slots) const {
    return slots.first + static_cast<std::size_t>(slot_in(slots.pool));
  }

  std::int32_t slot_in(PoolId pool) const {
    if (!pool.valid()) {
      return 0;
    }
    const std::int32_t slot = call_->slots[pool.at()];
    const Pool& of = program_.pools[pool.at()];
    TESSERA_CHECK(
        slot >= 0 && slot < of.slots, "slot {} of pool \"{}\" with {}", slot, of.name, of.slots);
    return slot;
  }

  void use_buffers(const Instruction& instruction, std::span<const Access> accesses) {
    for (const TensorRef& operand : instruction.operands) {
      read(accesses.front(), operand);
      accesses = accesses.subspan(1);
    }
    if (instruction.workspace.valid()) {
      Life& life = life_of(accesses.front());
      check_bytes_are_free(life, accesses.front());
      note(life, &LifeUses::writes, accesses.front());
      accesses = accesses.subspan(1);
    }
    for (const Access& result : accesses) {
      write(result);
    }
  }

  // The buffer's life that lives now, in this call's slot.
  Life& life_of(const Access& access) {
    const std::size_t number = number_of(access.slots);
    const std::uint32_t record = lives_[number];
    TESSERA_CHECK(record != kNone,
                  "buffer {} is used outside its life",
                  to_string(program_, numbers_.of(number)));
    Life& life = life_records_[record];
    TESSERA_CHECK(!access.slots.pool.valid() || life.microbatch == call_->microbatch,
                  "buffer {} is of microbatch {}",
                  to_string(program_, numbers_.of(number)),
                  life.microbatch);
    return life;
  }

  // The host writes each microbatch's part of what lives always into the slot of its number.
  void begin_life(std::size_t number, const Written* written, std::int32_t microbatch) {
    living_.begin(number);
    const std::uint32_t record = life_records_.take();
    lives_[number] = record;
    Life& life = life_records_[record];
    if (written != nullptr) {
      life.written = *written;
    } else {
      life.written.clear();
    }
    life.microbatch = microbatch;
    life.uses = kNone;
    if (!freed_.empty()) {
      const auto [begin, end] = bytes_of(program_, numbers_.of(number));
      Uses before = freed_.take(begin, end);
      clocks_.forget_ordered(before);
      if (!before.empty()) {
        kept_uses(life).before = std::move(before);
      }
    }
  }

  void end_life(std::size_t number) {
    std::uint32_t& record = lives_[number];
    if (const std::uint32_t last_uses = life_records_[record].uses; last_uses != kNone) {
      LifeUses& uses = use_records_[last_uses];
      uses.before.add(uses.writes);
      uses.before.add(uses.reads);
      clocks_.forget_ordered(uses.before);
      const auto [begin, end] = bytes_of(program_, numbers_.of(number));
      freed_.add(begin, end, uses.before);
      use_records_.give_back(last_uses);
    }
    life_records_.give_back(record);
    record = kNone;
    living_.end(number);
  }

  LifeUses& kept_uses(Life& life) {
    if (life.uses == kNone) {
      life.uses = use_records_.take();
      LifeUses& uses = use_records_[life.uses];
      uses.writes.clear();
      uses.reads.clear();
      uses.before.clear();
      uses.parts.clear();
    }
    return use_records_[life.uses];
  }

  void note(Life& life, Uses LifeUses::* uses, const Access& access) {
    if (const auto use = clocks_.use()) {
      LifeUses& kept = kept_uses(life);
      (kept.*uses).add(*use);
      if (is_elsewhere(access)) {
        if (kept.parts.size() >= kMostParts) {
          forget_ordered_parts(kept);
        }
        kept.parts.push_back(
            {.region = access.region, .use = *use, .is_write = uses == &LifeUses::writes});
      }
    }
  }

  // Those that all that follows comes after.
  void forget_ordered_parts(LifeUses& kept) const {
    std::erase_if(kept.parts, [&](const PartUse& part) {
      Uses use;
      use.add(part.use);
      clocks_.forget_ordered(use);
      return use.empty();
    });
  }

  bool is_elsewhere(const Access& access) const {
    return program_[access.buffer].space != Space::kDevice;
  }

  void read(const Access& access, const TensorRef& tensor) {
    Life& life = life_of(access);
    TESSERA_CHECK(life.written.covers(access.region),
                  "reads {} in buffer \"{}\", not written before",
                  to_string(tensor),
                  program_[access.buffer].name);
    check_order(life, &LifeUses::writes, access, "was written");
    note(life, &LifeUses::reads, access);
  }

  void write(const Access& access) {
    Life& life = life_of(access);
    check_order(life, &LifeUses::writes, access, "was written");
    check_order(life, &LifeUses::reads, access, "was read");
    check_bytes_are_free(life, access);
    life.written.add(access.region);
    note(life, &LifeUses::writes, access);
  }

  void check_order(const Life& life,
                   Uses LifeUses::* uses,
                   const Access& by,
                   const char* what) const {
    if (life.uses == kNone) {
      return;
    }
    const LifeUses& kept = use_records_[life.uses];
    const auto stream = is_elsewhere(by) && uses != &LifeUses::before
                            ? clocks_.unordered(uses_of_part(kept, uses, by.region))
                            : clocks_.unordered(kept.*uses);
    TESSERA_CHECK(!stream.has_value(),
                  "buffer {} \"{}\" {} on stream {} without an event in between",
                  by.buffer.index,
                  program_[by.buffer].name,
                  what,
                  program_.streams[stream->at()]);
  }

  // Those of the parts that share a byte with `region`.
  static Uses uses_of_part(const LifeUses& kept, Uses LifeUses::* uses, const Region& region) {
    Uses result;
    for (const PartUse& part : kept.parts) {
      if (part.is_write == (uses == &LifeUses::writes) && overlap(part.region, region)) {
        result.add(part.use);
      }
    }
    return result;
  }

  // A write to bytes that another buffer held must come after all that used them there.
  void check_bytes_are_free(const Life& life, const Access& by) const {
    check_order(life, &LifeUses::before, by, "takes bytes that were used before");
  }

  static constexpr std::uint32_t kNone = Records<Life>::kNone;

  // Of which it is looked whether some can be forgotten.
  static constexpr std::size_t kMostParts = 64;

  const Program& program_;
  IssueOrder order_;
  StreamClocks clocks_;
  SlotNumbers numbers_;
  StepUses uses_;
  LifeWalk walk_;
  std::span<const LifeEvent> events_of_call_;  // that are still to come
  const Access* next_access_ = nullptr;        // of the call
  std::vector<std::uint32_t> lives_;           // by number, its record while it lives, or none
  Records<Life> life_records_;
  Records<LifeUses> use_records_;
  LivingMemory living_;
  FreedMemory freed_;  // of buffers that ended
  const Call* call_ = nullptr;
};

void check_outputs(const Program& program, const StepWalk& walk) {
  for (const Binding& output : program.outputs) {
    const BufferId id = output.tensor.buffer;
    // Those of a pool are each microbatch's; there may be slots for more.
    const std::int64_t count = program[id].pool.valid() ? program.num_microbatches : 1;
    for (std::int32_t slot = 0; slot < count; ++slot) {
      TESSERA_CHECK(slot < program.num_slots(program[id].pool),
                    "output \"{}\" has {} slots for {} microbatches",
                    output.name,
                    program.num_slots(program[id].pool),
                    count);
      TESSERA_CHECK(walk.holds({.buffer = id, .slot = slot}, region_of(output.tensor)),
                    "output \"{}\", {}, is not written by the end of the step{}",
                    output.name,
                    to_string(output.tensor),
                    count > 1 ? format(" of microbatch {}", slot) : "");
    }
  }
}

}  // namespace

void verify_step(const Program& program, const WrittenBefore& there, const TensorRegions& regions) {
  StepWalk walk(program, there, regions);
  walk.run();
  check_outputs(program, walk);
}

}  // namespace tessera
