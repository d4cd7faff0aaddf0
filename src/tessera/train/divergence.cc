#include "tessera/train/divergence.h"

#include <filesystem>
#include <optional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/checkpoint.h"

namespace tessera {
namespace {

std::string states_before(const RunSaves& saves) {
  const std::optional<std::filesystem::path>& last = saves.last();
  if (!last) {
    return "They began with the initial state: there is no checkpoint";
  }
  const std::string began = format("They began with {}, which may be ruined", last->string());
  const auto before = find_newest_checkpoint(saves.directory(), saves.last_step());
  return before ? format("{}; --checkpoint.resume={} goes on from the checkpoint before it",
                         began,
                         before->string())
                : format("{}; there is no checkpoint before it", began);
}

}  // namespace

void Divergence::stop(const RunSaves& saves) const {
  fail(ErrorCode::kDiverged,
       "steps {} to {} were not finite: training has diverged. Try a lower optimizer.lr, a "
       "longer schedule.warmup or a smaller optimizer.clip. {}",
       steps_.front(),
       steps_.back(),
       states_before(saves));
}

}  // namespace tessera
