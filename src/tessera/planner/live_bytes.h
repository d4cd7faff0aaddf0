#pragma once

#include <cstdint>
#include <map>

#include "tessera/program/program.h"

namespace tessera {

// Bytes of what does not live always, in the first microbatch of a step on one rank.
struct LiveBytes {
  // What lives at most in a forward or a backward: in each layer, and outside of them.
  struct Pass {
    std::map<std::int32_t, double> layers = {};
    double before = 0.0;
    double after = 0.0;
  };

  Pass forward = {};
  Pass backward = {};           // of inputs alone where weight gradients are a work of their own
  double after_forward = 0.0;   // what lives when that has ended
  double after_backward = 0.0;  // likewise
  double most = 0.0;            // of the whole step
};

LiveBytes live_bytes(const Program& program);

// What layers and the head keep and need, whatever their number: of programs of `few` layers and of
// more of them.
struct LayerBytes {
  double kept = 0.0;          // from forward to backward
  double left = 0.0;          // from backward to the gradients of weights
  double in_forward = 0.0;    // while a layer is computed, beside what the others before it keep
  double in_backward = 0.0;   // likewise, beside what it and those before it keep
  double head_forward = 0.0;  // while the head is, beside what all keep
  double head_backward = 0.0;
};

LayerBytes layer_bytes(const LiveBytes& few, const LiveBytes& more);

}  // namespace tessera
