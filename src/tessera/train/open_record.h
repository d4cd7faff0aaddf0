#pragma once

#include <memory>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/train/rank_trainer.h"
#include "tessera/train/run_record.h"
#include "tessera/train/run_saves.h"

namespace tessera {

// The record of a run that goes on from the step of `meta`, on rank 0, with what an interruption
// left out made up for. Also tells `saves` which checkpoint is the best so far, and warns where the
// disk will not hold those to come. Errors: as RunRecord.
std::unique_ptr<RunRecord> open_record(const RunSetup& setup,
                                       const CheckpointMeta& meta,
                                       RunSaves& saves);

}  // namespace tessera
