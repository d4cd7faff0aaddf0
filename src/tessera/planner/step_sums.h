#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/simulate/timed_program.h"

namespace tessera {

// Seconds of what the streams of a rank do when nothing disturbs it. Kernels of stream 0 by whether
// they need the units of the device, which collectives of a library take part of; legs by whether
// they are such collectives.
struct StreamSeconds {
  double computing = 0.0;
  double streaming = 0.0;
  double talking = 0.0;        // legs of stream 0
  double beside = 0.0;         // all of the other stream
  double beside_native = 0.0;  // of that, collectives of a library

  // All of stream 0.
  double main() const { return computing + streaming + talking; }
};

// x a + y b, of which nothing is below 0.
StreamSeconds combine(double x, const StreamSeconds& a, double y, const StreamSeconds& b);

// Of a microbatch, in seconds. A backward is that of inputs alone
// where gradients of weights are a work of their own.
struct PartSeconds {
  double forward = 0.0;
  double backward = 0.0;
  double weight = 0.0;
};

// What a step amounts to, that of a model of few layers: numbers that grow evenly with the layers,
// so that those of two models tell those of a third.
struct StepSums {
  // The update; and the first microbatch, with what comes before, the second and the last of three,
  // or the only one.
  StreamSeconds update = {};
  StreamSeconds applied = {};  // of the update, what waits for the gradient norm of all ranks
  std::array<StreamSeconds, 3> microbatches = {};
  // Of the other stream, in the second microbatch or the only one: gathers, and all else.
  PartSeconds gathers = {};
  PartSeconds reductions = {};
  double persistent = 0.0;   // bytes of states, inputs, and what a step makes once
  double activations = 0.0;  // bytes that are alive together
  double alive = 0.0;        // likewise, of all that is not persistent
  double arena = 0.0;        // bytes of all
  double parameters = 0.0;   // elements of this rank's part, before slices are cut
  double trained = 0.0;      // of those, with gradients
  double looked_up = 0.0;    // of the embedding, where states are whole
};

// x a + y b, of which nothing is below 0.
StepSums combine(double x, const StepSums& a, double y, const StepSums& b);

// All but the update of a step of so many microbatches, of the sums of three or, for one, of one.
StreamSeconds all_microbatches(const StepSums& sums, std::int64_t microbatches);

// What a microbatch takes on stream 0, part by part.
struct StepParts {
  PartSeconds embedding;
  PartSeconds layer;  // the least of all
  PartSeconds head;
};

// Of a layer's work, what needs nothing that another layer has made, the most of all: as what is
// computed again.
struct AheadSeconds {
  double forward = 0.0;
  double backward = 0.0;
};

// When stream 0 has nothing to do, whatever the number of layers: before its first kernel that
// waits for another stream, and after its last one before the update.
struct StepEnds {
  double before = 0.0;
  double after = 0.0;
};

// Takes the time from what makes codes of weights for products in 8-bit floats: a plan may make
// them once a step where a program of few microbatches makes them in each.
void leave_out_weight_codes(TimedProgram& program);

// `spread`: how many times as long kernels take as a mean rank's.
StepSums step_sums(const TimedProgram& program, double spread);
// By microbatch.
std::vector<StepParts> step_parts(const TimedProgram& program, double spread);
AheadSeconds ahead_seconds(const TimedProgram& program, double spread);
StepEnds step_ends(const TimedProgram& program, double spread);

}  // namespace tessera
