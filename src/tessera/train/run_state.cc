#include "tessera/train/run_state.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/launch/stop_signal.h"
#include "tessera/state/sum_of_squares.h"
#include "tessera/train/save_rules.h"
#include "tessera/train/start_state.h"

namespace tessera {
namespace {

SaveRules save_rules(const RunSetup& setup) {
  SaveRules rules = {.run_dir = setup.config.run.dir,
                     .keys = setup.config.checkpoint,
                     .resume_place = placed(setup.config, "checkpoint.resume")};
  // Without validations no checkpoint is the best.
  rules.keys.keep_best = rules.keys.keep_best && setup.config.validation.every > 0;
  return rules;
}

}  // namespace

RunState::RunState(const RunSetup& setup,
                   const World& world,
                   RankControl& control,
                   Executor& executor,
                   RankRecord& record,
                   std::optional<std::int64_t>& last_step)
    : setup_(setup),
      world_(world),
      control_(control),
      executor_(executor),
      record_(record),
      last_step_(last_step),
      parts_(setup.run.plan.layout, setup.programs),
      part_(parts_.of(world.rank())),
      saves_(control,
             save_rules(setup),
             {.rank = world.rank(),
              .num_ranks = world.size(),
              .copies = !executor.has_mirror(),
              .threads = static_cast<int>(setup.config.run.threads),
              .tensors = model_tensors(setup.parameters, setup.config.optimizer.moments)},
             [&record](const std::string& message) { record.warn(message); }),
      moved_(setup.home) {}

void RunState::start() {
  const RankState state = {.setup = setup_, .world = world_, .executor = executor_, .part = part_};
  const std::optional<std::filesystem::path> path = saves_.load_start(
      [&](const std::filesystem::path& from) { meta_ = load_checkpoint(state, from); });
  if (path.has_value()) {
    if (control_.leads()) {
      log_info(format("resuming from {} after step {}", path->string(), meta_.step));
      warn_of_changes(setup_, meta_, *path);
    }
  } else {
    control_.patiently("making its initial state",
                       [&] { meta_ = make_initial_state(state, control_.leads()); });
  }
  saves_.start_from(path, meta_.step);
  describe_run(setup_, meta_, saves_);
  last_step_ = meta_.step;
  applied_ = {.step = meta_.step, .tokens_seen = meta_.tokens_seen};
}

void RunState::reserve() {
  saves_.reserve(saved_tensors(executor_.program(), setup_.parameters, part_));
}

void RunState::advance(const StepRunner::Result& step) {
  meta_.step = step.metrics.step;
  meta_.tokens_seen = step.metrics.tokens;
  if (step.applied) {
    ++meta_.applied_steps;
    applied_ = {.step = meta_.step, .tokens_seen = meta_.tokens_seen};
  }
  last_step_ = meta_.step;
}

void RunState::note_outcome(const StepRunner::Result& step) {
  if (step.applied) {
    divergence_.note_applied();
    prune_before({.loss = step.metrics.loss,
                  .grad_norm = step.metrics.grad_norm,
                  .num_labels = step.num_labels});
    return;
  }
  if (step.num_labels == 0) {
    record_.warn(format("step {} is not applied: none of its labels counts ({})",
                        meta_.step,
                        setup_.config.data.mask_boundary
                            ? "data.mask_boundary"
                            : "conversations whose answers lie behind data.sequence_length"));
    return;
  }
  divergence_.note_not_finite(meta_.step);
  record_.warn(format("step {} is not applied: loss {}, gradient norm {}",
                      meta_.step,
                      step.metrics.loss,
                      step.metrics.grad_norm));
  if (divergence_.is_final()) {
    save_last(applied_meta());
    divergence_.stop(saves_);
  }
}

// A step was applied: what came before the newest checkpoint goes, unless it shows that one to be
// ruined.
void RunState::prune_before(const StepRunner::Shown& step) {
  if (saves_.may_prune_before(meta_.step)) {
    const std::string fault = find_fault(step);
    if (fault.empty()) {
      saves_.prune();
    } else if (!has_warned_) {
      record_.warn(
          format("step {} shows that the weights may be ruined: {}; all checkpoints stay "
                 "until a step shows that they are not",
                 meta_.step,
                 fault));
    }
    has_warned_ = !fault.empty();
  }
  if (is_usual(step.loss)) {
    usual_loss_ = step.loss;
  }
}

bool RunState::is_usual(double loss) const {
  constexpr double kFar = 10;
  // Of a model that knows nothing.
  const auto vocab = static_cast<double>(std::max<std::int64_t>(setup_.run.plan.model.vocab, 2));
  return loss <= kFar * std::max(usual_loss_, std::log(vocab));
}

std::string RunState::find_fault(const StepRunner::Shown& shown) {
  if (!std::isfinite(shown.loss) || !std::isfinite(shown.grad_norm)) {
    return format(
        "found loss {} and gradient norm {}, expected finite ones", shown.loss, shown.grad_norm);
  }
  if (shown.num_labels > 0 && shown.grad_norm == 0) {
    return "no weight has a gradient";
  }
  if (!is_usual(shown.loss)) {
    return format("the loss, {:.4g}, is far beyond that of the steps before", shown.loss);
  }
  const double squares = sum_of_squares(executor_);
  const bool fits = squares <= double{std::numeric_limits<float>::max()};  // false for a NaN
  std::array<std::int64_t, 1> any = {fits ? 0 : 1};
  control_.take_largest(any);
  return any[0] == 0 ? "" : "the squares of the weights are beyond what f32 holds";
}

void RunState::save_last() {
  save_last(divergence_.is_over() ? meta_ : applied_meta());
}

void RunState::leave_moved_directory() {
  const std::string to = moved_.follow(control_);
  saves_.end();
  if (!to.empty()) {
    saves_.move_to(to);
    save_last();
  }
  fail(ErrorCode::kInvalidConfig,
       "run.dir {} {} while the run was writing there: the run ends after step {}{}",
       std::filesystem::path(setup_.config.run.dir).string(),
       to.empty() ? "was removed" : format("was moved to {}", to),
       meta_.step,
       to.empty() ? ", which no checkpoint holds"
                  : format(", whose state is saved: --run.dir={} goes on from there", to));
}

LastState RunState::save_on_way_out(double patience_seconds) {
  const CheckpointMeta meta = applied_meta();
  // Ranks of another place along the pipeline have other states.
  const auto are_alike = [this](std::int64_t a, std::int64_t b) {
    return setup_.programs.place_of(a) == setup_.programs.place_of(b);
  };
  return saves_.save_alone(
      {.meta = meta,
       .torn = executor_.states_are_whole()
                   ? ""
                   : format("the update of step {} had begun", meta_.step + 1),
       .metrics_line = record_.line_of(meta.step),
       .tensors_of =
           [&](std::int64_t rank) {
             return are_alike(world_.rank(), rank)
                        ? replica_tensors(executor_, setup_.parameters, part_, parts_.of(rank))
                        : std::nullopt;
           },
       .has_states_of =
           [&](std::int64_t rank, std::int64_t other) {
             return are_alike(rank, other) && has_states_of(setup_.programs.of(rank).step,
                                                            setup_.parameters,
                                                            parts_.of(rank),
                                                            parts_.of(other));
           },
       .patience_seconds = patience_seconds});
}

CheckpointMeta RunState::applied_meta() const {
  CheckpointMeta meta = meta_;
  meta.step = applied_.step;
  meta.tokens_seen = applied_.tokens_seen;
  return meta;
}

// Saves the state as that of `meta`, unless a checkpoint holds it.
void RunState::save_last(const CheckpointMeta& meta) {
  saves_.end();
  if (meta.step > saves_.last_step()) {
    save(meta, RunSaves::How::kNow);
    saves_.end();
  }
}

// Starts to save the state as that of `meta`.
void RunState::save(const CheckpointMeta& meta, RunSaves::How how) {
  const Unhurried patience;
  saves_.end();
  if (saves_.agree({.moved = is_moved()}).moved) {
    leave_moved_directory();
  }
  record_.clear_progress();
  const std::vector<CheckpointTensor> tensors = state_tensors(executor_, setup_.parameters, part_);
  saves_.start(meta, tensors, how);
}

}  // namespace tessera
