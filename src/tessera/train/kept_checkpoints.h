#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "tessera/base/error.h"
#include "tessera/checkpoint/directory_remover.h"
#include "tessera/launch/rank_control.h"
#include "tessera/train/save_rules.h"

namespace tessera {

// Which of its checkpoints a run keeps: the newest, and the best by its validation loss. All ranks
// call the same, at the same points, unless a comment says otherwise. Errors: what the ranks' talk
// throws; `warn` is told, on rank 0, of all others.
class KeptCheckpoints {
 public:
  // Borrows the control and the rules, whose directory may change.
  KeptCheckpoints(RankControl& control,
                  const SaveRules& rules,
                  std::function<void(const std::string&)> warn);

  // Whether there is a checkpoint since the last prune(), or what an earlier start left.
  void note_new(bool is_new) { is_new_ = is_new; }

  // Whether there is, and the run does not keep all.
  bool is_new() const { return is_new_ && rules_.keys.keep > 0; }

  // Removes all but the checkpoints that the run keeps, once after a new one and once after a
  // start. `newest` stays.
  void prune(const std::filesystem::path& newest, DirectoryRemover& remover);

  // Whether that would remove any.
  bool has_too_many();

  // The loss by which link_best() knows the best checkpoint.
  void note_validation(std::int64_t step, double loss) { validation_losses_[step] = loss; }

  // Links the best checkpoint, if the run keeps it. Rank 0 alone.
  void link_best() const;

 private:
  // body(), whose errors the run survives.
  template <class Body>
  void warn_of(const Body& body) const {
    try {
      body();
    } catch (const Error& error) {
      warn_(error.what());
    }
  }

  RankControl& control_;
  const SaveRules& rules_;
  std::function<void(const std::string&)> warn_;
  bool is_new_ = true;
  std::map<std::int64_t, double> validation_losses_;  // by step
};

}  // namespace tessera
