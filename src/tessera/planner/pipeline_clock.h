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

struct StageSeconds {
  CallSeconds forward = {};
  CallSeconds backward = {};  // of inputs alone where that of weights is a work of its own
  CallSeconds weight = {};
  double forward_ahead = 0.0;  // of a forward, at most, what waits for no other stage
  double backward_ahead = 0.0;
  double reduced = 0.0;     // that another stream is busy with gradients, from the last call on
  double left_after = 0.0;  // likewise, after that call has ended
};

// When the ranks of a pipeline are done with all microbatches, at the earliest.
struct PipelineEnds {
  std::vector<double> work;     // by rank, of stream 0
  std::vector<double> reduced;  // likewise, of gradients on another stream
};

// Ranks do their actions in order, of which each waits for the one of another stage; `hop` seconds
// pass from one rank to another. `first_wait`: for which the rank of stage 0 waits at first. Every
// stage has `calls` microbatches.
PipelineEnds pipeline_ends(std::span<const OrderedAction> order,
                           std::span<const StageSeconds> stages,
                           std::int64_t calls,
                           double hop,
                           double first_wait);

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
