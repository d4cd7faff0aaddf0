#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/models/model.h"
#include "tessera/plan/target.h"
#include "tessera/train/pipeline_waiting.h"

namespace tessera {

class Backend;
class DeviceBackend;
class NcclWorld;
class World;
struct NcclOptions;

// How a run ended.
struct TrainResult {
  std::int64_t rank = 0;            // of this process: 0 speaks for all
  std::int64_t step = 0;            // last step that ended
  std::optional<double> loss = {};  // of that step, mean over its valid tokens; none: nothing to do
  bool interrupted = false;         // by a signal (StopSignal); everything is saved
  // Of that step, or of the last before it that changed the state; none: none has ended.
  std::optional<std::filesystem::path> checkpoint = {};
  std::vector<PipelineWaiting> pipeline = {};  // of each pipeline rank of a session with steps
};

// Calls into the caller's code, on the ranks' own threads.
struct TrainHooks {
  std::function<void(std::int64_t rank, std::int64_t step)> before_step = nullptr;

  // What a rank runs on in place of run.device, and what its programs are compiled for.
  std::function<std::unique_ptr<DeviceBackend>(std::int64_t rank)> make_device = nullptr;
  std::optional<Target> target = {};  // none: as run.device says

  // What such ranks talk by in place of the world of their run (JoinNative); null: by that.
  std::function<std::unique_ptr<NcclWorld>(World& host, const NcclOptions& options)> join_native =
      nullptr;

  // The step whose trace (StepTraceFile) is written into config.run.dir. One that the start does
  // not run is kInvalidConfig.
  std::optional<std::int64_t> trace_step = {};

  // What a rank on the CPU runs on, around the backend that it would run on.
  std::function<std::unique_ptr<Backend>(std::int64_t rank, std::unique_ptr<Backend> backend)>
      wrap_backend = nullptr;
};

// Trains `model` as `config` says: data, program, steps, metrics and checkpoints in config.run.dir,
// progress on stderr. Goes on from the checkpoint that checkpoint.resume names; newer ones in
// config.run.dir are set aside before the first new step.
// Nothing in config.model is looked at, so that `model` may be one that no config can name.
// Errors: every code; a run that is not finite three steps in a row throws kDiverged. An error
// after the directory is taken leaves exit-<rank>.json there, which the next run removes.
TrainResult train(const RunConfig& config,
                  const ModelDescription& model,
                  const TrainHooks& hooks = {});

}  // namespace tessera
