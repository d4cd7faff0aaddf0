#include "tessera/train/step_runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "tessera/base/elapsed.h"
#include "tessera/dataset/input_rows.h"
#include "tessera/launch/stop_signal.h"
#include "tessera/mesh/traffic.h"
#include "tessera/optim/schedule.h"
#include "tessera/runtime/training_step.h"

namespace tessera {
namespace {

// The sign of a NaN says nothing.
double unsigned_nan(double value) {
  return std::isnan(value) ? std::abs(value) : value;
}

double mean_loss(const StepOutputs& outputs, std::int64_t num_labels) {
  return unsigned_nan(double{outputs.loss_sum} /
                      static_cast<double>(std::max<std::int64_t>(num_labels, 1)));
}

std::vector<SampledSource> sampled_sources(const RunSequences& sequences) {
  std::vector<SampledSource> sources;
  for (const std::int64_t count : sequences.train.part_sequences()) {
    sources.push_back({.num_sequences = count, .weight = sequences.weights[sources.size()]});
  }
  return sources;
}

}  // namespace

BatchShare batch_share(const RunSetup& setup, std::int64_t rank) {
  const RunLayout& layout = setup.run.plan.layout;
  return {.rows = setup.config.train.microbatch,
          .num_data = layout.num_data(),
          .place = data_place(layout.mesh, rank),
          .tokens = context_part(layout, rank)};
}

StepRunner::StepRunner(const RunSetup& setup,
                       std::int64_t rank,
                       RankBackend& backend,
                       Executor& executor,
                       std::optional<double> grace)
    : setup_(setup),
      rank_(rank),
      backend_(backend),
      executor_(executor),
      grace_(grace),
      sampler_({.seed = static_cast<std::uint64_t>(setup.config.run.seed),
                .sources = sampled_sources(setup.sequences),
                .global_batch = setup.config.train.global_batch,
                .shuffle = setup.config.data.shuffle}) {}

// Returns the labels that count on all ranks.
std::int64_t StepRunner::load_batch(std::int64_t step) {
  const std::vector<std::int64_t> batch = sampler_.batch(step);
  const BatchShare share = batch_share(setup_, rank_);
  for (std::int64_t m = 0; m < executor_.program().num_microbatches; ++m) {
    const std::span<const std::int64_t> rows = share_of(batch, share, m);
    const std::int64_t first = (step - 1) * std::ssize(batch) + (rows.data() - batch.data());
    for (std::int64_t row = 0; row < std::ssize(rows); ++row) {
      const std::int64_t sequence = rows[static_cast<std::size_t>(row)];
      write_row(executor_, read_row(setup_.sequences.train, sequence), share.tokens, row, m);
      load_number(
          executor_, static_cast<std::uint64_t>(setup_.config.run.seed), first + row, row, m);
    }
  }
  std::int64_t valid = 0;
  for (const std::int64_t sequence : batch) {
    valid += setup_.sequences.train.num_valid_labels(sequence);
  }
  return valid;
}

StepRunner::Result StepRunner::run(const CheckpointMeta& done) {
  using Clock = std::chrono::steady_clock;
  const TrainSection& train = setup_.config.train;
  const Clock::time_point start = Clock::now();
  const std::int64_t step = done.step + 1;
  if (setup_.hooks.before_step) {
    setup_.hooks.before_step(rank_, step);
  }
  const std::int64_t valid = load_batch(step);
  const double lr =
      learning_rate(setup_.config.schedule, setup_.config.optimizer.lr, train.steps, step);
  const Traffic sent_before = backend_.sent();
  // A short step ends, and is saved, before the launcher kills.
  executor_.give_up_where(grace_ && seconds_ > kShareOfGrace * *grace_
                              ? +[] { return seconds_from_launcher().has_value(); }
                              : nullptr);
  const bool is_traced = setup_.trace != nullptr && setup_.trace->step() == step;
  if (is_traced) {
    executor_.stamp_steps();
  }
  const StepOutputs outputs = TrainingStep(executor_).run(
      {.num_labels = valid, .learning_rate = lr, .update_number = done.applied_steps + 1});
  if (is_traced) {
    setup_.trace->add(rank_, executor_);
    executor_.stop_stamps();
  }
  Traffic sent = backend_.sent();
  add(sent, sent_before, -1);
  const std::int64_t tokens = train.global_batch * setup_.config.data.sequence_length;
  seconds_ = seconds_since(start);
  if (num_steps_++ > 0) {
    all_seconds_ += seconds_;
    const std::optional<double> waited = executor_.waited_for_ranks_seconds();
    if (waited) {
      waited_seconds_ = waited_seconds_.value_or(0) + *waited;
    }
  }
  return {.metrics = {.step = step,
                      .loss = mean_loss(outputs, valid),
                      .grad_norm = unsigned_nan(double{outputs.grad_norm}),
                      .lr = lr,
                      .tokens = done.tokens_seen + tokens,
                      .step_seconds = seconds_,
                      .tokens_per_second = static_cast<double>(tokens) / seconds_,
                      .comm_bytes = by_level(sent, setup_.run.plan.layout.mesh)},
          .applied = outputs.applied,
          .num_labels = valid};
}

std::optional<double> StepRunner::waiting() const {
  return all_seconds_ > 0 && waited_seconds_ ? std::optional(*waited_seconds_ / all_seconds_)
                                             : std::nullopt;
}

StepRunner::Shown StepRunner::run_without_update(std::int64_t step) {
  const std::int64_t valid = load_batch(step);
  const StepOutputs outputs = TrainingStep(executor_).run({.num_labels = valid, .apply = false});
  return {.loss = mean_loss(outputs, valid),
          .grad_norm = unsigned_nan(double{outputs.grad_norm}),
          .num_labels = valid};
}

}  // namespace tessera
