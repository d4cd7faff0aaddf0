#pragma once

#include <string>

#include "tessera/launch/rank_control.h"
#include "tessera/launch/run_directory.h"

namespace tessera {

// Whether somebody has given the run's directory another name while the run writes there.
class MovedDirectory {
 public:
  // `home` is null on ranks whose process does not hold the directory.
  explicit MovedDirectory(const RunDirectory* home) : home_(home) {}

  // Whether this rank sees that it moved, which it does until the run follows it.
  bool is_moved() const { return !is_known_ && home_ != nullptr && !home_->is_in_place(); }

  // Returns its place now, on every rank; empty where it was removed. All ranks call it together.
  std::string follow(RankControl& control) {
    std::string to = control.from_leader(home_ == nullptr ? "" : home_->place().string());
    is_known_ = true;
    return to;
  }

 private:
  const RunDirectory* home_;
  bool is_known_ = false;
};

}  // namespace tessera
