#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/train/run_saves.h"

namespace tessera {

// The steps since the last one that was applied, whose loss or gradient was not finite. Each
// changed nothing; several in a row will not mend themselves.
class Divergence {
 public:
  void note_applied() { steps_.clear(); }

  void note_not_finite(std::int64_t step) { steps_.push_back(step); }

  // Whether the last step was finite.
  bool is_over() const { return steps_.empty(); }

  bool is_final() const { return steps_.size() >= kMost; }

  // Ends the run: kDiverged, with what to try and where to go on from. `saves` holds the state
  // before these steps, though the step that made it may have ruined it.
  [[noreturn]] void stop(const RunSaves& saves) const;

 private:
  static constexpr std::size_t kMost = 3;

  std::vector<std::int64_t> steps_;
};

}  // namespace tessera
