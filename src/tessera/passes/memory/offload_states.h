#pragma once

#include <cstdint>
#include <limits>

#include "tessera/program/program.h"

namespace tessera {

// How much of a rank's states lies in another space, by kind: the tensors are chosen so that they
// have that many bytes or a few more, or are all that there are.
struct OffloadedBytes {
  std::int64_t optimizer = std::numeric_limits<std::int64_t>::max();
  std::int64_t parameters = std::numeric_limits<std::int64_t>::max();

  friend bool operator==(const OffloadedBytes&, const OffloadedBytes&) = default;
};

inline constexpr OffloadedBytes kNothingMoved = {.optimizer = 0, .parameters = 0};

// What lies in another space than the device's.
struct OffloadOptions {
  Space optimizer = Space::kDevice;    // moments and masters
  Space parameters = Space::kDevice;   // and buffers of the model
  Space activations = Space::kDevice;  // that forward leaves to backward (offload_layers())
  bool all_activations = true;         // else those alone that are marked to leave
  OffloadedBytes moved = {};
  std::int64_t piece_bytes = std::int64_t{16} << 20;  // of a state's tensor, as the update moves it
  std::int64_t least_bytes = kPageBytes;              // what has less stays

  bool moves_states() const { return optimizer != Space::kDevice || parameters != Space::kDevice; }

  friend bool operator==(const OffloadOptions&, const OffloadOptions&) = default;
};

// Moves states to other spaces. The update works on a piece at a time in memory of its own, of
// which there are three: while one is updated, the next is fetched and the last one stored, on
// streams "fetch" and "store"; the first fetches come before all else of the update. Where not all
// are to move (options.moved), those that do are spread among those that stay, so that the update
// works on these while others move. AdamW works element by element, so that every result stays
// bitwise the same. Layers still read parameters where they lie: offload_layers() is to follow.
// What is smaller than a page stays, as does what something else than AdamW of the update uses,
// such as masters that are gathered.
//
// Example, of a moment in three pieces: #7 is in a file, #8 to #10 are the pieces' memory
//   #8 = fetch(#7+0) stream 1 signal 1
//   #9 = fetch(#7+4096) stream 1 signal 2
//   ... = adamw(..., #8, ...) wait 1
//   #7+0 = store(#8) stream 2 signal 4
//   #10 = fetch(#7+8192) stream 1 signal 3
// becomes of  ... = adamw(..., #7, ...)
Program offload_states(Program program, const OffloadOptions& options);

}  // namespace tessera
