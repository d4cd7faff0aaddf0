#include "tessera/train/kept_checkpoints.h"

#include <utility>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera {

KeptCheckpoints::KeptCheckpoints(RankControl& control,
                                 const SaveRules& rules,
                                 std::function<void(const std::string&)> warn)
    : control_(control), rules_(rules), warn_(std::move(warn)) {}

void KeptCheckpoints::prune(const std::filesystem::path& newest, DirectoryRemover& remover) {
  if (is_new() && control_.leads()) {
    warn_of([&] {
      prune_checkpoints(rules_.directory(), static_cast<int>(rules_.keys.keep), newest, remover);
    });
  }
  is_new_ = false;
}

bool KeptCheckpoints::has_too_many() {
  bool too_many = false;
  if (control_.leads() && is_new()) {
    warn_of([&] { too_many = count_checkpoints(rules_.directory()) > rules_.keys.keep; });
  }
  return !control_.from_leader(too_many ? "too many" : "").empty();
}

// Not worth the run: the link is for people, all checkpoints are there without it.
void KeptCheckpoints::link_best() const {
  if (!rules_.keys.keep_best) {
    return;
  }
  warn_of([&] { link_best_checkpoint(rules_.directory(), validation_losses_); });
}

}  // namespace tessera
