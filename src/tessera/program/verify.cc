#include <algorithm>
#include <iterator>
#include <map>
#include <queue>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/program/freed_memory.h"
#include "tessera/program/program.h"
#include "tessera/program/region.h"
#include "tessera/program/verify_states.h"

namespace tessera {
namespace {

// One life of one instance of a buffer.
struct Life {
  Written written;
  Clock last_write;  // per stream, the time of its last write to the buffer
  Clock last_read;
  Clock last_use_before;        // of its bytes, by the buffers that held them
  const Call* began = nullptr;  // null for a persistent buffer
};

class ProgramVerifier {
 public:
  explicit ProgramVerifier(const Program& program)
      : program_(program), clocks_(program.streams.size(), Clock(program.streams.size(), 0)) {}

  void run() {
    check_buffers();
    check_arena();
    check_bindings();
    verify_states(program_);
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
      if (!program_.buffers[i].persistent) {
        ending_at_[program_.buffers[i].end].push_back(BufferId::of(i));
      }
    }
    for (const Call& call : program_.calls) {
      check_call(call);
      run_call(call);
    }
    for (const auto& [key, life] : lives_) {
      const Buffer& buffer = program_[key.first];
      TESSERA_CHECK(buffer.persistent || buffer.lives_into_next_microbatch(),
                    "buffer {} \"{}\" is never freed",
                    key.first.index,
                    buffer.name);
    }
    check_outputs();
  }

 private:
  using Key = std::pair<BufferId, std::int32_t>;  // buffer, instance

  void check_buffers() const {
    TESSERA_CHECK(program_.arena_bytes >= 0, "the arena has {} bytes", program_.arena_bytes);
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
      const Buffer& buffer = program_.buffers[i];
      TESSERA_CHECK(buffer.bytes >= 0 && buffer.num_instances >= 1 && buffer.offset >= 0 &&
                        buffer.offset % kArenaAlignment == 0 &&
                        buffer.offset <= program_.arena_bytes - buffer.total_bytes(),
                    "buffer {} \"{}\" at {} with {} bytes does not lie in the arena of {} bytes",
                    i,
                    buffer.name,
                    buffer.offset,
                    buffer.bytes,
                    program_.arena_bytes);
      TESSERA_CHECK(
          buffer.persistent || buffer.begin <= buffer.end || buffer.lives_into_next_microbatch(),
          "buffer {} \"{}\" ends before it begins",
          i,
          buffer.name);
    }
  }

  // Buffers that can be alive at one time must not share bytes. What lives at one moment is kept by
  // offset, so that only neighbours have to be compared.
  void check_arena() const {
    const auto by_offset = [&](BufferId a, BufferId b) {
      return std::pair(program_[a].offset, a) < std::pair(program_[b].offset, b);
    };
    std::set<BufferId, decltype(by_offset)> alive(by_offset);
    const auto begin_life = [&](BufferId id) {
      const auto place = alive.insert(id).first;
      if (place != alive.begin()) {
        check_apart(*std::prev(place), id);
      }
      if (std::next(place) != alive.end()) {
        check_apart(id, *std::next(place));
      }
    };

    struct Held {
      BufferId id;
      LifeSpan span;
    };

    std::vector<Held> order;
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
      const Buffer& buffer = program_.buffers[i];
      if (buffer.total_bytes() > 0 && buffer.persistent) {
        begin_life(BufferId::of(i));
      } else if (buffer.total_bytes() > 0) {
        for (const LifeSpan& span : life_spans(buffer)) {
          order.push_back({.id = BufferId::of(i), .span = span});
        }
      }
    }
    std::stable_sort(order.begin(), order.end(), [](const Held& a, const Held& b) {
      return a.span.begin < b.span.begin;
    });
    const auto ends_later = [](const Held& a, const Held& b) { return a.span.end > b.span.end; };
    std::priority_queue<Held, std::vector<Held>, decltype(ends_later)> ends(ends_later);
    for (const Held& held : order) {
      while (!ends.empty() && ends.top().span.end < held.span.begin) {
        alive.erase(ends.top().id);
        ends.pop();
      }
      begin_life(held.id);
      ends.push(held);
    }
  }

  void check_apart(BufferId lower, BufferId upper) const {
    TESSERA_CHECK(program_[lower].offset + program_[lower].total_bytes() <= program_[upper].offset,
                  "buffers {} \"{}\" and {} \"{}\" are alive at one time and overlap",
                  lower.index,
                  program_[lower].name,
                  upper.index,
                  program_[upper].name);
  }

  // What the host writes or reads lives always. What it wrote, or an earlier step, is there from
  // the start.
  void check_bindings() {
    const auto check = [&](std::string_view kind, const auto& bindings, bool there) {
      for (const Binding& binding : bindings) {
        with_context([&] { return format("{} \"{}\"", kind, binding.name); },
                     [&] {
                       check_fits(binding.tensor);
                       const Buffer& buffer = program_[binding.tensor.buffer];
                       TESSERA_CHECK(buffer.persistent,
                                     "lies in buffer {} \"{}\", which does not live always",
                                     binding.tensor.buffer.index,
                                     buffer.name);
                       // Accumulators start empty: the first microbatch must write them.
                       if (there && buffer.category != Category::kGradient) {
                         there_at_start_[binding.tensor.buffer].add(region_of(binding.tensor));
                       }
                     });
      }
    };
    check("input", program_.inputs, true);
    check("scalar", program_.scalars, true);
    check("state", program_.states, true);
    check("output", program_.outputs, false);
  }

  void check_outputs() {
    for (const Binding& output : program_.outputs) {
      TESSERA_CHECK(life_at({output.tensor.buffer, 0}).written.covers(region_of(output.tensor)),
                    "output \"{}\", {}, is not written by the end of the step",
                    output.name,
                    to_string(output.tensor));
    }
  }

  void check_call(const Call& call) const {
    TESSERA_CHECK(call.segment.valid() && call.segment.at() < program_.segments.size(),
                  "call of segment {}",
                  call.segment.index);
    TESSERA_CHECK(call.microbatch >= 0 && call.microbatch < program_.num_microbatches,
                  "call of segment {} with microbatch {} of {}",
                  program_[call.segment].name,
                  call.microbatch,
                  program_.num_microbatches);
  }

  void run_call(const Call& call) {
    const Segment& segment = program_[call.segment];
    for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
      const Instruction& instruction = segment.instructions[i];
      const Place here{.action = static_cast<std::int32_t>(segment.action),
                       .instruction = static_cast<std::int32_t>(i)};
      with_context(
          [&] {
            return format("segment {}, microbatch {}, instruction {}: {}",
                          segment.name,
                          call.microbatch,
                          i,
                          to_string(*instruction.op));
          },
          [&] {
            execute(call, here, instruction);
            check_aliases(instruction);
          });
      end_lives(call, here);
    }
  }

  void execute(const Call& call, Place here, const Instruction& instruction) {
    TESSERA_CHECK(instruction.stream.valid() && instruction.stream.at() < program_.streams.size(),
                  "stream {}",
                  instruction.stream.index);
    Clock& clock = clocks_[instruction.stream.at()];
    for (const EventId event : instruction.waits) {
      const auto found = events_.find(event);
      TESSERA_CHECK(found != events_.end(), "waits for event {}, never signalled", event.index);
      merge(clock, found->second);
    }
    ++clock[instruction.stream.at()];
    if (program_.runs(instruction, call)) {
      use_buffers(call, here, instruction);
    }
    for (const EventId event : instruction.signals) {
      events_[event] = clock;
    }
  }

  void use_buffers(const Call& call, Place here, const Instruction& instruction) {
    const std::size_t stream = instruction.stream.at();
    for (const TensorRef& operand : instruction.operands) {
      read(call, here, instruction, operand);
    }
    if (instruction.workspace.valid()) {
      Life& life = life_of(call, here, instruction.workspace);
      check_bytes_are_free(life, instruction, instruction.workspace);
      life.last_write[stream] = clocks_[stream][stream];
    }
    for (const TensorRef& result : instruction.results) {
      write(call, here, instruction, result);
    }
  }

  // Tensors of different buffers are apart because the buffers are.
  static bool overlap(const TensorRef& a, const TensorRef& b) {
    return a.buffer == b.buffer && tessera::overlap(region_of(a), region_of(b));
  }

  // A result shares no byte with other results or the workspace. Where it shares bytes with an
  // operand, the op must allow it, and both must lie exactly alike.
  static void check_aliases(const Instruction& instruction) {
    const OpInfo facts = info(*instruction.op);
    const auto& [operands, results] = std::tie(instruction.operands, instruction.results);
    TESSERA_CHECK(operands.size() == static_cast<std::size_t>(facts.num_operands) &&
                      results.size() == static_cast<std::size_t>(facts.num_results),
                  "{} operands and {} results, expected {} and {}",
                  operands.size(),
                  results.size(),
                  facts.num_operands,
                  facts.num_results);
    for (std::size_t r = 0; r < results.size(); ++r) {
      for (std::size_t other = 0; other < r; ++other) {
        TESSERA_CHECK(!overlap(results[r], results[other]),
                      "results {} and {} overlap in buffer {}",
                      other,
                      r,
                      results[r].buffer.index);
      }
      for (std::size_t o = 0; o < operands.size(); ++o) {
        check_alias(facts, instruction, o, r);
      }
    }
    if (instruction.workspace.valid()) {
      for (const auto* tensors : {&operands, &results}) {
        for (const TensorRef& tensor : *tensors) {
          TESSERA_CHECK(tensor.buffer != instruction.workspace,
                        "workspace {} also holds {}",
                        instruction.workspace.index,
                        to_string(tensor));
        }
      }
    }
  }

  static void check_alias(const OpInfo& facts,
                          const Instruction& instruction,
                          std::size_t o,
                          std::size_t r) {
    const TensorRef& operand = instruction.operands[o];
    const TensorRef& result = instruction.results[r];
    const auto alias =
        std::find_if(facts.aliases.begin(), facts.aliases.end(), [&](const Alias& candidate) {
          return candidate.result == static_cast<std::int32_t>(r) &&
                 candidate.operand == static_cast<std::int32_t>(o);
        });
    const bool required = alias != facts.aliases.end() && alias->required;
    if (!required && !overlap(operand, result)) {
      return;
    }
    TESSERA_CHECK(alias != facts.aliases.end(),
                  "result {}, {}, overlaps operand {}, {}, which the op does not allow",
                  r,
                  to_string(result),
                  o,
                  to_string(operand));
    TESSERA_CHECK(operand.buffer == result.buffer && region_of(operand) == region_of(result) &&
                      size_bytes(operand.type.dtype) == size_bytes(result.type.dtype),
                  "result {}, {}, does not lie exactly over operand {}, {}",
                  r,
                  to_string(result),
                  o,
                  to_string(operand));
  }

  // The current life of the buffer, which begins here if this is its first place.
  Life& life_of(const Call& call, Place here, BufferId id) {
    check_exists(id);
    const Buffer& buffer = program_[id];
    const Key key = key_of(call, id);
    TESSERA_CHECK(key.second >= 0 && key.second < buffer.num_instances,
                  "instance {} of buffer {} \"{}\" with {} instances",
                  key.second,
                  id.index,
                  buffer.name,
                  buffer.num_instances);
    if (buffer.persistent) {
      return life_at(key);
    }
    const bool begins = buffer.begin == here;
    TESSERA_CHECK(begins || lives_.contains(key),
                  "buffer {} \"{}\" is used outside its life",
                  id.index,
                  buffer.name);
    Life& life = life_at(key);
    life.began = life.began == nullptr ? &call : life.began;
    TESSERA_CHECK(!begins || life.began == &call,
                  "buffer {} \"{}\" begins again while it lives",
                  id.index,
                  buffer.name);
    return life;
  }

  Key key_of(const Call& call, BufferId id) const {
    return {id, program_[id].num_instances > 1 ? call.instance : 0};
  }

  Life& life_at(const Key& key) {
    const auto [found, is_new] = lives_.try_emplace(key);
    if (is_new) {
      const Clock never(program_.streams.size(), 0);
      found->second = {
          .written = {}, .last_write = never, .last_read = never, .last_use_before = never};
      if (program_.streams.size() > 1) {
        const auto [begin, end] = bytes_of(key);
        found->second.last_use_before = freed_.last_use(begin, end, never);
      }
      if (const auto there = there_at_start_.find(key.first); there != there_at_start_.end()) {
        found->second.written = there->second;
      }
    }
    return found->second;
  }

  // Where an instance lies in the arena.
  std::pair<std::int64_t, std::int64_t> bytes_of(const Key& key) const {
    const Buffer& buffer = program_[key.first];
    const std::int64_t begin = buffer.offset + key.second * buffer.instance_stride();
    return {begin, begin + buffer.bytes};
  }

  void check_exists(BufferId id) const {
    TESSERA_CHECK(
        id.valid() && id.at() < program_.buffers.size(), "there is no buffer {}", id.index);
  }

  void check_fits(const TensorRef& tensor) const {
    check_exists(tensor.buffer);
    TESSERA_CHECK(region_of(tensor).end() <= program_[tensor.buffer].bytes,
                  "{} does not fit buffer {} of {} bytes",
                  to_string(tensor),
                  tensor.buffer.index,
                  program_[tensor.buffer].bytes);
  }

  void read(const Call& call, Place here, const Instruction& by, const TensorRef& tensor) {
    Life& life = life_of(call, here, tensor.buffer);
    check_fits(tensor);
    TESSERA_CHECK(life.written.covers(region_of(tensor)),
                  "reads {} in buffer \"{}\", not written before",
                  to_string(tensor),
                  program_[tensor.buffer].name);
    check_order(life.last_write, by, tensor.buffer, "was written");
    life.last_read[by.stream.at()] = clocks_[by.stream.at()][by.stream.at()];
  }

  void write(const Call& call, Place here, const Instruction& by, const TensorRef& tensor) {
    Life& life = life_of(call, here, tensor.buffer);
    check_fits(tensor);
    check_order(life.last_write, by, tensor.buffer, "was written");
    check_order(life.last_read, by, tensor.buffer, "was read");
    check_bytes_are_free(life, by, tensor.buffer);
    life.written.add(region_of(tensor));
    life.last_write[by.stream.at()] = clocks_[by.stream.at()][by.stream.at()];
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

  void end_lives(const Call& call, Place here) {
    if (const auto found = ending_at_.find(here); found != ending_at_.end()) {
      for (const BufferId id : found->second) {
        end_life(key_of(call, id));
      }
    }
  }

  void end_life(const Key& key) {
    const auto found = lives_.find(key);
    if (found == lives_.end()) {
      return;
    }
    if (program_.streams.size() > 1) {
      Life& life = found->second;
      merge(life.last_use_before, life.last_write);
      merge(life.last_use_before, life.last_read);
      const auto [begin, end] = bytes_of(key);
      freed_.add(begin, end, life.last_use_before);
    }
    lives_.erase(found);
  }

  const Program& program_;
  std::map<BufferId, Written> there_at_start_;
  std::map<Place, std::vector<BufferId>> ending_at_;  // buffers that are not persistent
  std::map<Key, Life> lives_;
  FreedMemory freed_;  // of buffers that ended
  std::map<EventId, Clock> events_;
  std::vector<Clock> clocks_;
};

}  // namespace

void verify(const Program& program) {
  with_context([&] { return format("program {}", program.name); },
               [&] { ProgramVerifier(program).run(); });
}

}  // namespace tessera
