#pragma once

#include <memory>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/train/rank_trainer.h"
#include "tessera/train/run_record.h"
#include "tessera/train/run_saves.h"

namespace tessera {

// Opens the record of a run that goes on from the step of `meta`, on rank 0, and makes up for what
// an interruption left out. Then, `record` being set, where warnings of `saves` go: tells `saves`
// which checkpoint is the best so far, and warns where the disk will not hold those to come.
// Errors: as RunRecord.
void open_record(const RunSetup& setup,
                 const CheckpointMeta& meta,
                 RunSaves& saves,
                 std::unique_ptr<RunRecord>& record);

// What open_record() does for the link to the best checkpoint, of a run that has no step left: it
// may have been interrupted between its last save and this. Rank 0 alone; files that cannot be read
// are warned of.
void link_best_of_ended_run(const RunSetup& setup, RunSaves& saves);

}  // namespace tessera
