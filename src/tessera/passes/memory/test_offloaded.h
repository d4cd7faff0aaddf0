#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/models/llama/llama.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"

namespace tessera {

// For tests of what lies in other spaces.

// A step of a model whose tensors have several pages.
inline Program offloaded_step(const CompileOptions& options, std::int64_t layers) {
  return compile_training(
      training_graph(
          describe_llama(
              {.dim = 64, .layers = layers, .heads = 4, .kv_heads = 2, .ffn = 160, .vocab = 300}),
          2,
          32,
          DType::kF32),
      options);
}

inline Program offloaded_step(const OffloadOptions& offload, std::int64_t layers = 3) {
  CompileOptions options;
  options.offload = offload;
  return offloaded_step(options, layers);
}

template <class Attrs>
bool is_a(const Instruction& instruction) {
  return instruction.op->get_if<Attrs>() != nullptr;
}

// Instructions whose waits for fetches, or for stores, were left out, one instruction at a time,
// and how many of these programs verify() refused. Not those that wait for what comes, on its
// stream, before something that an earlier one of the segment waits for.
struct WaitsLeftOut {
  int tried = 0;
  int refused = 0;
};

// The events that instructions of a kind make happen, numbered in their order.
template <class Attrs>
std::map<EventId, int> number_events(const Program& program) {
  std::map<EventId, int> numbers;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      if (is_a<Attrs>(instruction)) {
        for (const EventId event : instruction.signals) {
          numbers.emplace(event, static_cast<int>(numbers.size()));
        }
      }
    }
  }
  return numbers;
}

inline bool is_refused(const Program& program) {
  try {
    verify(program);
    return false;
  } catch (const Error&) {
    return true;
  }
}

template <class Attrs>
WaitsLeftOut leave_out_waits(Program program) {
  const std::map<EventId, int> numbers = number_events<Attrs>(program);
  WaitsLeftOut left_out;
  for (Segment& segment : program.segments) {
    int last = -1;
    for (Instruction& instruction : segment.instructions) {
      const std::vector<EventId> waits = instruction.waits;
      const int before = last;
      std::erase_if(instruction.waits, [&](EventId event) {
        const auto found = numbers.find(event);
        last = found == numbers.end() ? last : std::max(last, found->second);
        return found != numbers.end();
      });
      // What the end of a segment waits for ends with the step at the latest.
      if (last > before && !is_a<FenceAttrs>(instruction)) {
        ++left_out.tried;
        left_out.refused += is_refused(program) ? 1 : 0;
      }
      instruction.waits = waits;
    }
  }
  return left_out;
}

}  // namespace tessera
