#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/program/program.h"
#include "tessera/program/region.h"
#include "tessera/program/verify_aliases.h"
#include "tessera/program/verify_states.h"
#include "tessera/program/verify_step.h"

namespace tessera {
namespace {

void check_buffers(const Program& program) {
  for (const Space space : kSpaces) {
    TESSERA_CHECK(program.bytes_in(space) >= 0,
                  "the arena of the {} has {} bytes",
                  name(space),
                  program.bytes_in(space));
  }
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
    const std::int64_t last = program.bytes_in(buffer.space) - buffer.padded_bytes();
    for (const std::int64_t offset : buffer.offsets) {
      TESSERA_CHECK(
          buffer.bytes >= 0 && offset >= 0 && offset % buffer.alignment() == 0 && offset <= last,
          "buffer {} \"{}\" at {} with {} bytes does not lie in the {}arena of {} bytes",
          i,
          buffer.name,
          offset,
          buffer.bytes,
          buffer.space == Space::kDevice ? "" : format("{}'s ", name(buffer.space)),
          program.bytes_in(buffer.space));
    }
  }
}

// Lives begin and end at instructions that there are.
void check_places(const Program& program) {
  std::map<Code, std::size_t> sizes;
  for (const Segment& segment : program.segments) {
    sizes[segment.code] = segment.instructions.size();
  }
  auto size = sizes.end();  // of the last place, whose code that of the next often is
  for (std::size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.persistent) {
      continue;
    }
    for (const Place& place : {buffer.begin, buffer.end}) {
      if (size == sizes.end() || size->first != place.code) {
        size = sizes.find(place.code);
      }
      TESSERA_CHECK(size != sizes.end() && place.instruction >= 0 &&
                        std::cmp_less(place.instruction, size->second),
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

Region checked_region(const Program& program, const TensorRef& tensor) {
  check_exists(program, tensor.buffer);
  const Region region = region_of(tensor);
  TESSERA_CHECK(region.end() <= program[tensor.buffer].bytes,
                "{} does not fit buffer {} of {} bytes",
                to_string(tensor),
                tensor.buffer.index,
                program[tensor.buffer].bytes);
  return region;
}

template <class AnyBinding>
void check_bindings(const Program& program,
                    std::string_view kind,
                    const std::vector<AnyBinding>& bindings) {
  for (const AnyBinding& binding : bindings) {
    with_context([&] { return format("{} \"{}\"", kind, binding.name); },
                 [&] {
                   checked_region(program, binding.tensor);
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

// The spaces of what an instruction reads and writes: those of the device, but for what is fetched
// from another one, or stored there.
void check_spaces(const Program& program, const Instruction& instruction) {
  const bool fetches = instruction.op->get_if<FetchAttrs>() != nullptr;
  const bool stores = instruction.op->get_if<StoreAttrs>() != nullptr;
  const auto check = [&](const TensorRef& tensor, bool elsewhere) {
    const Buffer& buffer = program[tensor.buffer];
    TESSERA_CHECK((buffer.space != Space::kDevice) == elsewhere,
                  "{} lies in buffer \"{}\" of the {}, expected one {}",
                  to_string(tensor),
                  buffer.name,
                  name(buffer.space),
                  elsewhere ? "of another space" : "of the device");
  };
  for (const TensorRef& operand : instruction.operands) {
    check(operand, fetches);
  }
  for (const TensorRef& result : instruction.results) {
    check(result, stores);
  }
}

// What holds in every call alike. Adds the regions of the tensors.
void check_instruction(const Program& program,
                       const Instruction& instruction,
                       TensorRegions& regions) {
  TESSERA_CHECK(instruction.stream.valid() && instruction.stream.at() < program.streams.size(),
                "stream {}",
                instruction.stream.index);
  for (const auto* tensors : {&instruction.operands, &instruction.results}) {
    for (const TensorRef& tensor : *tensors) {
      regions.push_back(checked_region(program, tensor));
    }
  }
  if (instruction.workspace.valid()) {
    check_exists(program, instruction.workspace);
  }
  check_spaces(program, instruction);
  verify_aliases(instruction);
}

TensorRegions check_segments(const Program& program) {
  TensorRegions result;
  for (const Segment& segment : program.segments) {
    for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
      const Instruction& instruction = segment.instructions[i];
      with_context(
          [&] {
            return format(
                "segment {}, instruction {}: {}", segment.name, i, to_string(*instruction.op));
          },
          [&] { check_instruction(program, instruction, result); });
    }
  }
  return result;
}

void verify_all(const Program& program) {
  check_buffers(program);
  check_places(program);
  check_calls(program);
  const WrittenBefore there = check_all_bindings(program);
  verify_states(program);
  verify_step(program, there, check_segments(program));
}

}  // namespace

void verify(const Program& program) {
  with_context([&] { return format("program {}", program.name); }, [&] { verify_all(program); });
}

}  // namespace tessera
