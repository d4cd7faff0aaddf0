#include "tessera/train/training_loop.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/actions/timeline.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/program/step_traffic.h"
#include "tessera/resolve/run_memory.h"
#include "tessera/train/measure_peak.h"
#include "tessera/train/open_record.h"
#include "tessera/train/run_record.h"

namespace tessera {
namespace {

// The memory of a rank, as run_memory() states it before the start.
std::int64_t memory_bytes(const RunSetup& setup, std::int64_t rank, const RunSaves& saves) {
  return RunMemory{.categories = {},
                   .arena = setup.programs.of(rank).arena_bytes(),
                   .checkpoint_copy = saves.memory_bytes(),
                   .on_device = setup.run.target.is_device(),
                   .host = {.bytes = setup.programs.of(rank).step.host_bytes}}
      .total();
}

// Of each pipeline rank, where there are several: what their programs state, which all ranks know
// of each other.
std::vector<PipelineRankMetrics> pipeline_metrics(const RunSetup& setup) {
  std::vector<PipelineRankMetrics> metrics;
  const std::vector<std::int64_t> memory = run_memory(setup.run, setup.programs).by_pipeline_rank;
  for (std::size_t place = 0; place < memory.size(); ++place) {
    metrics.push_back({.memory_bytes = memory[place],
                       .comm_bytes = by_level(step_traffic(setup.programs[place].step),
                                              setup.run.plan.layout.mesh)});
  }
  return metrics;
}

// "pipeline rank 1: stages 1, 2".
std::string text_of_stages(const ActionTable& table, std::size_t place) {
  std::string stages;
  for (std::size_t stage = 0; stage < table.rank_of_stage.size(); ++stage) {
    if (table.rank_of_stage[stage] == static_cast<std::int64_t>(place)) {
      stages += format("{}{}", stages.empty() ? "" : ", ", stage);
    }
  }
  return format("pipeline rank {}: stage{} {}",
                place,
                stages.find(',') == std::string::npos ? "" : "s",
                stages);
}

}  // namespace

void settle_products(RankBackend& backend, RankControl& control, ProductChoices which) {
  backend.settle_products(which, control.leads(), [&control](const std::string& text) {
    return control.from_all(text);
  });
}

TrainingLoop::TrainingLoop(const Parts& parts, RunValidation* validation)
    : parts_(parts),
      config_(parts.setup.config),
      validation_(validation),
      owed_(config_.checkpoint),
      pipeline_metrics_(parts.setup.programs.size() > 1 ? pipeline_metrics(parts.setup)
                                                        : std::vector<PipelineRankMetrics>()) {}

TrainResult TrainingLoop::run() {
  const bool owes_validation = agree_on_owed_validation();
  if (step() >= config_.train.steps && !owes_validation) {
    return end_without_steps();
  }
  begin(owes_validation);
  TrainResult result{.step = step()};
  while (step() < config_.train.steps && !agreed_to_stop()) {
    if (step() > 0) {
      save_owed();
    }
    const StepMetrics metrics = train_and_validate();
    result.step = metrics.step;
    result.loss = metrics.loss;
    keep(metrics);
    write_trace();
    measure_peak_once();
  }
  // A run of few steps may end before it looks again.
  if (parts_.state.saves().agree({.moved = parts_.state.is_moved()}).moved) {
    parts_.state.leave_moved_directory();
  }
  end(result);
  return result;
}

// Whether the run was stopped in the validation of the step that it goes on from.
bool TrainingLoop::agree_on_owed_validation() {
  if (!validation_ || !validation_->is_due(step())) {
    return false;
  }
  const bool owes = parts_.control.leads() && lacks_validation(config_.run.dir, step());
  return !parts_.control.from_leader(owes ? "owes" : "").empty();
}

TrainResult TrainingLoop::end_without_steps() {
  if (parts_.control.leads()) {
    log_info(format("nothing to do: the run is at step {} of {}", step(), config_.train.steps));
  }
  parts_.control.patiently("linking the best checkpoint", [&] {
    if (parts_.control.leads()) {
      link_best_of_ended_run(parts_.setup, parts_.state.saves());
    }
  });
  prune_at_end();
  parts_.state.saves().end_removals(true);
  return {.step = step(), .checkpoint = parts_.state.saves().last()};
}

// The work before the first step of this session.
void TrainingLoop::begin(bool owes_validation) {
  parts_.control.go_on("between two steps");
  has_begun_ = true;
  if (parts_.setup.takes_signals) {
    stop_.emplace(StopSignal::kRepeats, launcher_grace());
    if (const std::string words = stop_->how_to_stop(); parts_.control.leads() && !words.empty()) {
      log_info(words);
    }
  }
  parts_.control.patiently("opening the run's files", [&] {
    if (parts_.control.leads()) {
      parts_.state.saves().leave_other_branch(step());
      parts_.record.open(parts_.setup, parts_.state.meta(), parts_.state.saves());
    }
  });
  owed_ = OwedSaves(config_.checkpoint);  // whose clock starts
  rehearse();
  if (owes_validation) {
    make_up_validation();
  }
}

// Runs a step that changes no state, for ranks that each time their products: all that counts is
// then computed alike.
void TrainingLoop::rehearse() {
  if (!parts_.backend.settles_products() || step() >= config_.train.steps) {
    return;
  }
  parts_.steps.run_without_update(step() + 1);
  settle_products(parts_.backend, parts_.control, ProductChoices::kTimed);
}

// A step, and the validation where one is due after it.
StepMetrics TrainingLoop::train_and_validate() {
  const auto& pipeline = parts_.setup.run.plan.pipeline;
  const auto run = [&] { return parts_.steps.run(parts_.state.meta()); };
  const std::size_t place = parts_.setup.programs.place_of(parts_.rank);
  last_result_ =
      pipeline ? with_context([&] { return text_of_stages(pipeline->table, place); }, run) : run();
  parts_.state.advance(last_result_);
  StepMetrics metrics = last_result_.metrics;
  metrics.memory_bytes = memory_bytes(parts_.setup, parts_.rank, parts_.state.saves());
  metrics.pipeline_ranks = pipeline_metrics_;
  for (const PipelineRankMetrics& of_rank : pipeline_metrics_) {
    metrics.memory_bytes = std::max(metrics.memory_bytes, of_rank.memory_bytes);
  }
  parts_.record.note(metrics, peak_flop_per_second_);
  if (validation_ && validation_->is_due(metrics.step)) {
    metrics.validation_loss = validate();
  }
  return metrics;
}

// Keeps a step's line in the metrics, and a checkpoint where one is due. A step that was not finite
// has none: the next one that is makes up for it.
void TrainingLoop::keep(const StepMetrics& metrics) {
  parts_.record.write(metrics, parts_.state.saves());
  parts_.state.note_outcome(last_result_);
  owed_.note_step(metrics.step);
  save_owed();
}

// After the step whose trace is asked for: the ranks of a process together write one file. One that
// cannot be written is no reason to end a run.
void TrainingLoop::write_trace() {
  StepTraceFile* const trace = parts_.setup.trace;
  if (trace == nullptr || trace->step() != step()) {
    return;
  }
  std::string written;
  std::string failure;
  parts_.control.patiently("ending the step whose trace is asked for", [] {});
  parts_.control.patiently("writing the trace of a step", [&] {
    try {
      written = parts_.setup.takes_signals ? trace->write(config_.run.dir).string() : "";
    } catch (const Error& error) {
      failure = error.what();
    }
  });
  if (!failure.empty()) {
    const std::string text =
        format("the trace of step {} is not written: {}", trace->step(), failure);
    parts_.control.leads() ? parts_.record.warn(text) : log_warning(text);
  } else {
    parts_.record.inform(format("trace of step {}: {}", trace->step(), written));
  }
}

void TrainingLoop::save_owed() {
  if (!owed_.is_owed() || !parts_.state.is_finite()) {
    return;
  }
  owed_.drop();
  if (!parts_.state.saves().has(step())) {
    // Beside the training where the plan has the copy that it takes.
    const PlannedRun& run = parts_.setup.run;
    const bool has_copy = run.saves_in_background ||
                          (run.target.is_device() && !run.plan.passes.has_states_elsewhere());
    parts_.state.save(!config_.checkpoint.async ? RunSaves::How::kNow
                      : has_copy                ? RunSaves::How::kBackground
                                                : RunSaves::How::kWaiting);
    owed_.note_start();
  }
}

// Whether any rank was asked to stop. A save that one was asked for is owed from then on, and told
// of once it is there.
bool TrainingLoop::agreed_to_stop() {
  RunState& state = parts_.state;
  RunSaves& saves = state.saves();
  const bool was_asked_to_save = stop_ && stop_->take_save_request();
  // By rank 0's clock, so that all ranks save the same step.
  const bool is_due = parts_.control.leads() && !saves.is_under_way() && owed_.is_due();
  const RunSaves::Asked any = saves.agree({.stop = stop_ && stop_->requested(),
                                           .save = was_asked_to_save,
                                           .is_due = is_due,
                                           .moved = state.is_moved()});
  if (any.moved) {
    state.leave_moved_directory();
  }
  if (owed_.take_word(saves.is_under_way())) {
    parts_.record.inform(saves.last_good());
  }
  owed_.note_asked(any);
  return any.stop;
}

// A validation overwrites all of the step's arena except the states.
std::optional<double> TrainingLoop::validate() {
  const std::optional<double> loss = validation_->run([&](std::int64_t done, std::int64_t total) {
    parts_.record.show_validation(done, total);
    return !agreed_to_stop();
  });
  if (loss) {
    parts_.state.saves().note_validation(step(), *loss);
    parts_.record.inform(format("step {}: validation loss {:.4f}", step(), *loss));
  }
  return loss;
}

void TrainingLoop::make_up_validation() {
  parts_.record.inform(
      format("validating step {}, in whose validation the run was stopped", step()));
  const std::optional<double> loss = validate();
  if (loss && parts_.record.write_validation(step(), *loss)) {
    parts_.state.saves().link_best();
  }
}

// Measures after the first step, which it would keep waiting otherwise; on all ranks at once, since
// they share the machine. Its products are too small to say anything of a GPU.
void TrainingLoop::measure_peak_once() {
  if (!peak_flop_per_second_ && step() < config_.train.steps &&
      !parts_.setup.run.target.is_device()) {
    peak_flop_per_second_ = measure_peak(*parts_.backend, config_.train.dtype) *
                            static_cast<double>(parts_.setup.run.plan.layout.mesh.num_ranks());
  }
}

void TrainingLoop::end(TrainResult& result) {
  RunState& state = parts_.state;
  parts_.record.finish_progress();
  result.interrupted = step() < config_.train.steps || (validation_ && validation_->was_left());
  if (const StepTraceFile* const trace = parts_.setup.trace;
      trace != nullptr && !trace->has_any()) {
    parts_.record.warn(
        format("stopped before step {}, of which a trace was asked for", trace->step()));
  }
  state.save_last();
  // After a signal the next start removes what is too much.
  if (state.is_finite() && !result.interrupted) {
    prune_at_end();
  }
  result.checkpoint = state.saves().last();
  result.pipeline = pipeline_waiting();
  parts_.record.end(result);
  state.saves().end_removals(!result.interrupted);
}

// What ranks measured, beside what their schedule says.
std::vector<PipelineWaiting> TrainingLoop::pipeline_waiting() {
  const auto& pipeline = parts_.setup.run.plan.pipeline;
  if (!pipeline) {
    return {};
  }
  const Timeline expected =
      timeline(pipeline->table, parts_.setup.run.stage_costs, parts_.setup.run.hop);
  // None of a rank that talks to no other, as one of empty stages between two of another's.
  const std::optional<double> own = parts_.steps.waiting();
  const std::vector<std::string> measured = parts_.control.from_all(own ? format("{}", *own) : "");
  std::vector<PipelineWaiting> waiting(pipeline->table.rows.size());
  for (std::size_t rank = 0; rank < measured.size(); ++rank) {
    if (measured[rank].empty()) {
      continue;
    }
    const std::size_t place = parts_.setup.programs.place_of(static_cast<std::int64_t>(rank));
    const double share = std::stod(measured[rank]);
    waiting[place].measured = std::min(waiting[place].measured.value_or(share), share);
  }
  for (std::size_t place = 0; place < waiting.size(); ++place) {
    waiting[place].expected = bubble(expected, static_cast<std::int64_t>(place));
  }
  return waiting;
}

void TrainingLoop::prune_at_end() {
  if (parts_.state.saves().has_too_many() && shows_sound_state()) {
    parts_.state.saves().prune();
  }
}

// Whether the state that the run ends with is good: its last step may have ruined it. A step that
// changes nothing shows it. A validation would not: norms hide what overflows from the loss.
bool TrainingLoop::shows_sound_state() {
  const std::string fault = parts_.state.find_fault(parts_.steps.run_without_update(step() + 1));
  if (!fault.empty()) {
    const RunSaves& saves = parts_.state.saves();
    parts_.record.warn(format(
        "the last step has ruined the weights: after step {} {}; all checkpoints stay, and "
        "--checkpoint.resume={} goes on from the one before",
        step(),
        fault,
        find_newest_checkpoint(saves.directory(), saves.last_step()).value_or("none").string()));
  }
  return fault.empty();
}

}  // namespace tessera
