#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/actions/run_order.h"

namespace tessera {

// What the rank of a stage does on stream 0 for a microbatch, in seconds: the first one, the last
// one, and those between them.
struct CallSeconds {
  double first = 0.0;
  double between = 0.0;
  double last = 0.0;

  double of(std::int64_t call, std::int64_t calls) const {
    return call == 0 ? first : call + 1 < calls ? between : last;
  }

  double all(std::int64_t calls) const {
    return first + (calls > 1 ? last + static_cast<double>(calls - 2) * between : 0.0);
  }
};

// What another stream does in an action with states.
struct BesideSeconds {
  double gathers = 0.0;     // of what the action reads
  double reductions = 0.0;  // of what it makes
};

struct StageSeconds {
  double layers = 0.0;
  CallSeconds forward = {};
  CallSeconds backward = {};  // of inputs alone where that of weights is a work of its own
  CallSeconds weight = {};
  double forward_ahead = 0.0;  // of a forward, at most, what waits for no other stage
  double backward_ahead = 0.0;
  BesideSeconds beside_forward = {};
  BesideSeconds beside_backward = {};
  BesideSeconds beside_weight = {};
  double reduced = 0.0;     // that another stream is busy with gradients, from the last call on
  double left_after = 0.0;  // likewise, after that call has ended
};

// When the ranks of a pipeline are done with all microbatches, at the earliest.
struct PipelineEnds {
  std::vector<double> work;     // by rank, of stream 0
  std::vector<double> reduced;  // likewise, of gradients on another stream
};

struct PipelineRun {
  std::int64_t calls = 1;   // microbatches of every stage
  double hop = 0.0;         // seconds from one rank to another
  double first_wait = 0.0;  // of the rank of stage 0, before its first action
  std::int64_t overlap_layers =
      1;  // by which another stream is ahead or behind, as overlap() has it
};

// Ranks do their actions in order, of which each waits for the one of another stage, and for what
// another stream does for it. What is gathered for an action begins in the last layers of the
// action before; all is there before it ends. What it reduces ends before its layers that come
// after the window of overlap(), or those of the next action.
PipelineEnds pipeline_ends(std::span<const OrderedAction> order,
                           std::span<const StageSeconds> stages,
                           const PipelineRun& run);

// The bytes of the microbatches that a stage holds.
struct StageBytes {
  double kept = 0.0;         // of each, from its forward to its backward
  double left = 0.0;         // of each, from there to the gradients of weights
  double in_forward = 0.0;   // while a forward is done, beside those that are held already
  double in_backward = 0.0;  // likewise
};

// The most that each rank holds at a time.
std::vector<double> pipeline_bytes(std::span<const OrderedAction> order,
                                   std::span<const StageBytes> stages);

}  // namespace tessera
