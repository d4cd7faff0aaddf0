#include "tessera/train/rank_trainer.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/config/config.h"
#include "tessera/dataset/same_data.h"
#include "tessera/launch/rank_backend.h"
#include "tessera/launch/rank_control.h"
#include "tessera/launch/rank_launch.h"
#include "tessera/launch/run_directory.h"
#include "tessera/launch/same_collectives.h"
#include "tessera/resolve/run_memory.h"
#include "tessera/train/rank_record.h"
#include "tessera/train/run_record.h"
#include "tessera/train/run_saves.h"
#include "tessera/train/run_state.h"
#include "tessera/train/run_validation.h"
#include "tessera/train/step_runner.h"
#include "tessera/train/training_loop.h"
#include "tessera/weights/companions.h"

namespace tessera {
namespace {

RankBackend make_backend(const RunSetup& setup, World& world) {
  const RunConfig& config = setup.config;
  if (setup.hooks.make_device == nullptr) {
    RankBackend::Wrap wrap;
    if (setup.hooks.wrap_backend) {
      wrap = [&](std::unique_ptr<Backend> backend) {
        return setup.hooks.wrap_backend(world.rank(), std::move(backend));
      };
    }
    return {world, setup.run.plan.layout.mesh, config, wrap};
  }
  return {world,
          setup.run.plan.layout.mesh,
          static_cast<int>(config.run.threads),
          setup.hooks.make_device(world.rank()),
          setup.hooks.join_native,
          world_options(config)};
}

// A session of the run on one rank: its start, the loop, and its way out where that fails.
class RankSession {
 public:
  RankSession(const RunSetup& setup, World& world, std::optional<std::int64_t>& last_step)
      : setup_(setup),
        world_(world),
        control_(world, setup.config.checkpoint.deadline_seconds),
        backend_(make_backend(setup, world)),
        programs_(setup.programs.of(world.rank())),
        arenas_(allocate_arenas(*backend_, setup.programs, setup.run, world.rank())),
        executor_(programs_.step, *backend_, arenas_),
        record_(control_.leads()),
        state_(setup, world, control_, executor_, record_, last_step),
        steps_(setup, world.rank(), backend_, executor_, launcher_grace()) {}

  TrainResult run() {
    try {
      start();
      return loop_->run();
    } catch (...) {
      const Error error = to_error(std::current_exception());
      // Before what other ranks may look at or wait for goes; they save what they have, too.
      backend_->abort(error.what());
      state_.saves().end_alone();
      if (!loop_ || !loop_->has_begun() || error.code() == ErrorCode::kDiverged) {
        throw Error(error);
      }
      record_.write_rest(state_.saves());
      throw state_.saves().with_way_on(error, state_.save_on_way_out(patience_on_way_out()));
    }
  }

 private:
  void start() {
    require_same(programs_.step);
    settle_products(backend_, control_, ProductChoices::kKnown);
    prepare_validation();
    for (const std::string& note : executor_.file_notes()) {
      if (control_.leads()) {
        log_info(note);
      }
    }
    state_.start();
    if (setup_.trace != nullptr) {
      setup_.trace->require_among(state_.meta().step + 1, setup_.config.train.steps);
    }
    control_.talk([&](Communicator& group) {
      require_same_data(group, describe_data(setup_.sequences, state_.meta().tokenizer));
    });
    if (setup_.run.saves_in_background) {
      state_.reserve();
    }
    control_.patiently("writing the run's config", [&] { write_config(); });
    loop_.emplace(TrainingLoop::Parts{.setup = setup_,
                                      .rank = world_.rank(),
                                      .control = control_,
                                      .backend = backend_,
                                      .record = record_,
                                      .state = state_,
                                      .steps = steps_},
                  validation_.get());
  }

  void require_same(const Program& program) {
    control_.talk([&](Communicator& group) {
      require_same_collectives(
          group, program, setup_.run.plan.layout.mesh, backend_->orders_streams());
    });
  }

  void prepare_validation() {
    if (programs_.validation) {
      require_same(*programs_.validation);
      validation_ = std::make_unique<RunValidation>(setup_, world_.rank(), *backend_, arenas_);
    }
  }

  // The resolved config, and the files that belong to it, on rank 0.
  void write_config() {
    if (!control_.leads()) {
      return;
    }
    const RunConfig& config = setup_.config;
    const std::filesystem::path directory = config.run.dir;
    write_file_atomic(directory / "config.toml", to_toml(config));
    if (!config.cluster.file.empty() && config.cluster.file != "local") {
      write_file_atomic(cluster_copy(directory), read_file(config.cluster.file));
    }
    if (!config.tokenizer.path.empty()) {
      keep_tokenizer(directory, config.tokenizer.path, state_.meta().tokenizer);
      keep_companions(config, directory, state_.meta().tokenizer);
    }
  }

  // A rank that computes learns of the failure when it next waits for another one.
  double patience_on_way_out() const {
    if (const std::optional<double> left = seconds_from_launcher()) {
      return kShareOfGrace * *left;
    }
    const double deadline = world_options(setup_.config).patience_seconds();
    return std::min(deadline, std::clamp(deadline / 4, 1.0, 5.0) + 2 * steps_.seconds());
  }

  const RunSetup& setup_;
  World& world_;
  RankControl control_;
  RankBackend backend_;
  const Programs& programs_;
  ProgramArenas arenas_;  // the device's of both programs
  Executor executor_;
  std::unique_ptr<RunValidation> validation_;  // null where the run does not validate
  RankRecord record_;
  RunState state_;
  StepRunner steps_;
  std::optional<TrainingLoop> loop_;  // once the state is there
};

}  // namespace

TrainResult train_rank(const RunSetup& setup,
                       World& world,
                       std::optional<std::int64_t>& last_step) {
  return RankSession(setup, world, last_step).run();
}

}  // namespace tessera
