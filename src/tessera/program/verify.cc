#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/program/freed_memory.h"
#include "tessera/program/lives.h"
#include "tessera/program/living_memory.h"
#include "tessera/program/program.h"
#include "tessera/program/region.h"
#include "tessera/program/verify_aliases.h"
#include "tessera/program/verify_states.h"

namespace tessera {
namespace {

void check_buffers(const Program& program) {
  TESSERA_CHECK(program.arena_bytes >= 0, "the arena has {} bytes", program.arena_bytes);
  for (std::size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    TESSERA_CHECK(!buffer.pool.valid() || buffer.pool.at() < program.pools.size(),
                  "buffer {} \"{}\" in pool {} of {}",
                  i,
                  buffer.name,
                  buffer.pool.index,
                  program.pools.size());
    TESSERA_CHECK(std::cmp_equal(buffer.offsets.size(), program.num_slots(buffer.pool)),
                  "buffer {} \"{}\" has {} offsets for {} slots",
                  i,
                  buffer.name,
                  buffer.offsets.size(),
                  program.num_slots(buffer.pool));
    for (const std::int64_t offset : buffer.offsets) {
      TESSERA_CHECK(buffer.bytes >= 0 && offset >= 0 && offset % kArenaAlignment == 0 &&
                        offset <= program.arena_bytes - buffer.padded_bytes(),
                    "buffer {} \"{}\" at {} with {} bytes does not lie in the arena of {} bytes",
                    i,
                    buffer.name,
                    offset,
                    buffer.bytes,
                    program.arena_bytes);
    }
  }
}

// Lives begin and end at instructions that there are.
void check_places(const Program& program) {
  std::map<Code, std::size_t> sizes;
  for (const Segment& segment : program.segments) {
    sizes[segment.code] = segment.instructions.size();
  }
  for (std::size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    for (const Place& place : {buffer.begin, buffer.end}) {
      const auto size = sizes.find(place.code);
      TESSERA_CHECK(buffer.persistent || (size != sizes.end() && place.instruction >= 0 &&
                                          std::cmp_less(place.instruction, size->second)),
                    "buffer {} \"{}\" begins or ends with instruction {} of {}, which has {}",
                    i,
                    buffer.name,
                    place.instruction,
                    to_string(place.code),
                    size == sizes.end() ? 0 : size->second);
    }
  }
}

void check_calls(const Program& program) {
  for (const Call& call : program.calls) {
    TESSERA_CHECK(call.segment.valid() && call.segment.at() < program.segments.size(),
                  "call of segment {}",
                  call.segment.index);
    TESSERA_CHECK(call.microbatch >= 0 && call.microbatch < program.num_microbatches,
                  "call of segment {} with microbatch {} of {}",
                  program[call.segment].name,
                  call.microbatch,
                  program.num_microbatches);
  }
  for (const auto& [event, pool] : program.event_pools) {
    TESSERA_CHECK(pool.valid() && pool.at() < program.pools.size(),
                  "event {} of pool {} of {}",
                  event.index,
                  pool.index,
                  program.pools.size());
  }
}

void check_exists(const Program& program, BufferId id) {
  TESSERA_CHECK(id.valid() && id.at() < program.buffers.size(), "there is no buffer {}", id.index);
}

void check_fits(const Program& program, const TensorRef& tensor) {
  check_exists(program, tensor.buffer);
  TESSERA_CHECK(region_of(tensor).end() <= program[tensor.buffer].bytes,
                "{} does not fit buffer {} of {} bytes",
                to_string(tensor),
                tensor.buffer.index,
                program[tensor.buffer].bytes);
}

// What the host wrote, or an earlier step, is there from the start.
using WrittenBefore = std::map<BufferId, Written>;

template <class AnyBinding>
void check_bindings(const Program& program,
                    std::string_view kind,
                    const std::vector<AnyBinding>& bindings) {
  for (const AnyBinding& binding : bindings) {
    with_context([&] { return format("{} \"{}\"", kind, binding.name); },
                 [&] {
                   check_fits(program, binding.tensor);
                   const Buffer& buffer = program[binding.tensor.buffer];
                   TESSERA_CHECK(buffer.persistent,
                                 "lies in buffer {} \"{}\", which does not live always",
                                 binding.tensor.buffer.index,
                                 buffer.name);
                 });
  }
}

template <class AnyBinding>
void add_written(const Program& program,
                 const std::vector<AnyBinding>& bindings,
                 WrittenBefore& there) {
  for (const AnyBinding& binding : bindings) {
    // Accumulators start empty: the first microbatch must write them.
    if (program[binding.tensor.buffer].category != Category::kGradient) {
      there[binding.tensor.buffer].add(region_of(binding.tensor));
    }
  }
}

WrittenBefore check_all_bindings(const Program& program) {
  check_bindings(program, "input", program.inputs);
  check_bindings(program, "scalar", program.scalars);
  check_bindings(program, "state", program.states);
  check_bindings(program, "output", program.outputs);
  WrittenBefore there;
  add_written(program, program.inputs, there);
  add_written(program, program.scalars, there);
  add_written(program, program.states, there);
  return there;
}

// What holds in every call alike.
void check_instruction(const Program& program, const Instruction& instruction) {
  TESSERA_CHECK(instruction.stream.valid() && instruction.stream.at() < program.streams.size(),
                "stream {}",
                instruction.stream.index);
  for (const auto* tensors : {&instruction.operands, &instruction.results}) {
    for (const TensorRef& tensor : *tensors) {
      check_fits(program, tensor);
    }
  }
  if (instruction.workspace.valid()) {
    check_exists(program, instruction.workspace);
  }
  verify_aliases(instruction);
}

void check_segments(const Program& program) {
  for (const Segment& segment : program.segments) {
    for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
      const Instruction& instruction = segment.instructions[i];
      with_context(
          [&] {
            return format(
                "segment {}, instruction {}: {}", segment.name, i, to_string(*instruction.op));
          },
          [&] { check_instruction(program, instruction); });
    }
  }
}

// One life of a buffer in a slot.
struct Life {
  Written written;
  Clock last_write;  // per stream, the time of its last write to the buffer
  Clock last_read;
  Clock last_use_before;        // of its bytes, by the buffers that held them
  std::int32_t microbatch = 0;  // of a buffer in a pool, whose slot is for calls of this one
};

// Lives begin and end as the calls go; what is used is compared with what lives then.
class StepWalk {
 public:
  StepWalk(const Program& program, const WrittenBefore& there)
      : program_(program),
        walk_(program),
        numbers_(program),
        lives_(numbers_.size(), kNone),
        living_(program),
        clocks_(program.streams.size(), Clock(program.streams.size(), 0)) {
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
      const Buffer& buffer = program.buffers[i];
      const auto written = there.find(BufferId::of(i));
      for (std::int32_t slot = 0; buffer.persistent && slot < program.num_slots(buffer.pool);
           ++slot) {
        begin_life({.buffer = BufferId::of(i), .slot = slot},
                   written == there.end() ? nullptr : &written->second,
                   slot);
      }
    }
  }

  void run() {
    for (const Call& call : program_.calls) {
      call_ = &call;
      events_of_call_ = walk_.next_call();
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
            [&] { run_instruction(static_cast<std::int64_t>(i), segment.instructions[i]); });
      }
    }
    walk_.end_step();
  }

  void check_outputs() const {
    for (const Binding& output : program_.outputs) {
      const BufferId id = output.tensor.buffer;
      // Those of a pool are each microbatch's; there may be slots for more.
      const std::int64_t count = program_[id].pool.valid() ? program_.num_microbatches : 1;
      for (std::int32_t slot = 0; slot < count; ++slot) {
        TESSERA_CHECK(slot < program_.num_slots(program_[id].pool),
                      "output \"{}\" has {} slots for {} microbatches",
                      output.name,
                      program_.num_slots(program_[id].pool),
                      count);
        const std::size_t record = lives_[numbers_[{.buffer = id, .slot = slot}]];
        TESSERA_CHECK(record != kNone && records_[record].written.covers(region_of(output.tensor)),
                      "output \"{}\", {}, is not written by the end of the step{}",
                      output.name,
                      to_string(output.tensor),
                      count > 1 ? format(" of microbatch {}", slot) : "");
      }
    }
  }

 private:
  void run_instruction(std::int64_t index, const Instruction& instruction) {
    const auto take = [&](bool is_end, const auto& act) {
      while (!events_of_call_.empty() && events_of_call_.front().at.instruction == index &&
             events_of_call_.front().is_end == is_end) {
        act(events_of_call_.front().of);
        events_of_call_ = events_of_call_.subspan(1);
      }
    };
    take(false, [&](const BufferSlot& of) { begin_life(of, nullptr, call_->microbatch); });
    execute(instruction);
    take(true, [&](const BufferSlot& of) { end_life(of); });
  }

  void execute(const Instruction& instruction) {
    Clock& clock = clocks_[instruction.stream.at()];
    merge(clock, clocks_[0]);  // it is not issued before
    for (const EventId event : instruction.waits) {
      const auto found = events_.find(in_slot(event));
      TESSERA_CHECK(found != events_.end(), "waits for event {}, never signalled", event.index);
      merge(clock, found->second);
    }
    ++clock[instruction.stream.at()];
    if (program_.runs(instruction, *call_)) {
      use_buffers(instruction);
    }
    for (const EventId event : instruction.signals) {
      events_[in_slot(event)] = clock;
    }
  }

  std::pair<EventId, std::int32_t> in_slot(EventId event) const {
    return {event, slot_in(program_.pool_of(event))};
  }

  std::int32_t slot_in(PoolId pool) const {
    const std::int32_t slot = Program::slot_of(*call_, pool);
    TESSERA_CHECK(slot >= 0 && slot < program_.num_slots(pool),
                  "slot {} of pool \"{}\" with {}",
                  slot,
                  program_.pools[pool.at()].name,
                  program_.num_slots(pool));
    return slot;
  }

  void use_buffers(const Instruction& instruction) {
    for (const TensorRef& operand : instruction.operands) {
      read(instruction, operand);
    }
    if (instruction.workspace.valid()) {
      Life& life = life_of(instruction.workspace);
      check_bytes_are_free(life, instruction, instruction.workspace);
      note(life.last_write, instruction);
    }
    for (const TensorRef& result : instruction.results) {
      write(instruction, result);
    }
  }

  // Its life that lives now, in this call's slot.
  Life& life_of(BufferId id) {
    const Buffer& buffer = program_[id];
    const std::int32_t slot = slot_in(buffer.pool);
    const std::size_t record = lives_[numbers_[{.buffer = id, .slot = slot}]];
    TESSERA_CHECK(record != kNone,
                  "buffer {} is used outside its life",
                  to_string(program_, {.buffer = id, .slot = slot}));
    Life& life = records_[record];
    TESSERA_CHECK(!buffer.pool.valid() || life.microbatch == call_->microbatch,
                  "buffer {} is of microbatch {}",
                  to_string(program_, {.buffer = id, .slot = slot}),
                  life.microbatch);
    return life;
  }

  // The host writes each microbatch's part of what lives always into the slot of its number.
  void begin_life(const BufferSlot& of, const Written* written, std::int32_t microbatch) {
    living_.begin(of);
    const std::size_t record = new_record();
    lives_[numbers_[of]] = record;
    Life& life = records_[record];
    if (written != nullptr) {
      life.written = *written;
    } else {
      life.written.clear();
    }
    for (Clock* const clock : {&life.last_write, &life.last_read, &life.last_use_before}) {
      clock->assign(program_.streams.size(), 0);
    }
    if (program_.streams.size() > 1) {
      const auto [begin, end] = bytes_of(of);
      freed_.merge_last_use(begin, end, life.last_use_before);
    }
    life.microbatch = microbatch;
  }

  void end_life(const BufferSlot& of) {
    std::size_t& record = lives_[numbers_[of]];
    if (program_.streams.size() > 1) {
      Life& life = records_[record];
      merge(life.last_use_before, life.last_write);
      merge(life.last_use_before, life.last_read);
      const auto [begin, end] = bytes_of(of);
      freed_.add(begin, end, life.last_use_before);
    }
    free_.push_back(record);
    record = kNone;
    living_.end(of);
  }

  std::pair<std::int64_t, std::int64_t> bytes_of(const BufferSlot& of) const {
    const Buffer& buffer = program_[of.buffer];
    const std::int64_t begin = buffer.offsets[static_cast<std::size_t>(of.slot)];
    return {begin, begin + buffer.bytes};
  }

  void read(const Instruction& by, const TensorRef& tensor) {
    Life& life = life_of(tensor.buffer);
    TESSERA_CHECK(life.written.covers(region_of(tensor)),
                  "reads {} in buffer \"{}\", not written before",
                  to_string(tensor),
                  program_[tensor.buffer].name);
    check_order(life.last_write, by, tensor.buffer, "was written");
    note(life.last_read, by);
  }

  void write(const Instruction& by, const TensorRef& tensor) {
    Life& life = life_of(tensor.buffer);
    check_order(life.last_write, by, tensor.buffer, "was written");
    check_order(life.last_read, by, tensor.buffer, "was read");
    check_bytes_are_free(life, by, tensor.buffer);
    life.written.add(region_of(tensor));
    note(life.last_write, by);
  }

  void note(Clock& last, const Instruction& by) const {
    last[by.stream.at()] = clocks_[by.stream.at()][by.stream.at()];
  }

  void check_order(const Clock& last, const Instruction& by, BufferId id, const char* what) const {
    const Clock& clock = clocks_[by.stream.at()];
    for (std::size_t s = 0; s < last.size(); ++s) {
      TESSERA_CHECK(last[s] <= clock[s],
                    "buffer {} \"{}\" {} on stream {} without an event in between",
                    id.index,
                    program_[id].name,
                    what,
                    program_.streams[s]);
    }
  }

  // A write to bytes that another buffer held must come after all that used them there.
  void check_bytes_are_free(const Life& life, const Instruction& by, BufferId id) const {
    check_order(life.last_use_before, by, id, "takes bytes that were used before");
  }

  // The record of a life that begins.
  std::size_t new_record() {
    if (free_.empty()) {
      records_.emplace_back();
      return records_.size() - 1;
    }
    const std::size_t record = free_.back();
    free_.pop_back();
    return record;
  }

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  const Program& program_;
  LifeWalk walk_;
  std::span<const LifeEvent> events_of_call_;  // that are still to come
  SlotNumbers numbers_;
  std::vector<std::size_t> lives_;  // by number, its record while it lives, or none
  std::vector<Life> records_;       // with their memory kept for other lives
  std::vector<std::size_t> free_;   // of these
  LivingMemory living_;
  FreedMemory freed_;                                         // of buffers that ended
  std::map<std::pair<EventId, std::int32_t>, Clock> events_;  // by slot, too
  std::vector<Clock> clocks_;
  const Call* call_ = nullptr;
};

void verify_all(const Program& program) {
  check_buffers(program);
  check_places(program);
  check_calls(program);
  const WrittenBefore there = check_all_bindings(program);
  verify_states(program);
  check_segments(program);
  StepWalk walk(program, there);
  walk.run();
  walk.check_outputs();
}

}  // namespace

void verify(const Program& program) {
  with_context([&] { return format("program {}", program.name); }, [&] { verify_all(program); });
}

}  // namespace tessera
