#include "tessera/train/owed_saves.h"

#include "tessera/base/elapsed.h"
#include "tessera/resolve/whole_training.h"

namespace tessera {

OwedSaves::OwedSaves(const CheckpointSection& checkpoint)
    : every_(checkpoint.every), minutes_(minutes_between_checkpoints(checkpoint)) {}

void OwedSaves::note_step(std::int64_t step) {
  owes_save_ = owes_save_ || (every_ > 0 && step % every_ == 0);
}

void OwedSaves::note_asked(const RunSaves::Asked& any) {
  owes_save_ = owes_save_ || any.save || any.is_due;
  owes_word_ = owes_word_ || any.save;
}

void OwedSaves::note_start() {
  owes_save_ = false;
  last_ = Clock::now();
}

bool OwedSaves::is_due() const {
  return minutes_ > 0 && seconds_since(last_) >= 60 * minutes_;
}

bool OwedSaves::take_word(bool is_under_way) {
  const bool is_there = owes_word_ && !owes_save_ && !is_under_way;
  owes_word_ = owes_word_ && !is_there;
  return is_there;
}

}  // namespace tessera
