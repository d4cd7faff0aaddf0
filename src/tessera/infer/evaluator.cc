#include "tessera/infer/evaluator.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "tessera/actions/csv.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/config/config.h"
#include "tessera/launch/rank_launch.h"
#include "tessera/plan/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/plan/run_layout.h"
#include "tessera/resolve/make_plan.h"
#include "tessera/resolve/resolve.h"

namespace tessera {
namespace {

// Products of fewer rows leave cores idle; more only take memory.
constexpr std::int64_t kTokens = 2048;
constexpr std::int64_t kMaxRows = 32;

bool says_ranks(std::string_view override) {
  constexpr std::array<std::string_view, 9> kKeys = {"--parallel.",
                                                     "--context.",
                                                     "--pipeline.",
                                                     "--state.",
                                                     "--cluster.",
                                                     "--comm.",
                                                     "--checkpoint.deadline_seconds=",
                                                     "--run.threads=",
                                                     "--run.device="};
  return std::ranges::any_of(kKeys,
                             [&](std::string_view key) { return override.starts_with(key); });
}

// As many as the schedule takes; of its table an evaluation has the stages' ranks alone.
std::int64_t pipeline_microbatches(const RunConfig& config) {
  if (config.parallel.pipeline == 1) {
    return 1;
  }
  const std::string& table = config.pipeline.schedule;
  return is_table(config.pipeline) ? parse_table(read_file(table), table).table.microbatches
                                   : 2 * config.parallel.pipeline;
}

}  // namespace

RunConfig evaluation_config(const TrainedModel& trained, std::span<const std::string> overrides) {
  RunConfig config = trained.config;
  config.parallel = {};
  config.context = {};
  config.pipeline = {};
  config.state = {};
  config.cluster = {};
  config.comm = {};
  config.checkpoint = {};
  config.memory = {.limit_bytes = config.memory.limit_bytes};
  config.run.threads = 0;
  config.run.device = trained.device;
  config.run.time_gemms = false;  // the run keeps its choices for itself
  for (const std::string& override : overrides) {
    apply_override(config, override);
    TESSERA_REQUIRE(says_ranks(override),
                    ErrorCode::kInvalidConfig,
                    "{}: expected a key that says on what ranks the evaluation runs: one of "
                    "[parallel], [context], [pipeline], [state], [cluster] or [comm], "
                    "checkpoint.deadline_seconds, run.device or run.threads",
                    override);
  }
  config = resolve_ranks(std::move(config));
  // The batches and gradients of training are none of an evaluation's.
  config.optimizer.gradients = DType::kF32;
  config.train.dropout = 0.0;
  config.train.global_batch =
      config.train.microbatch * config.parallel.data.value_or(1) * pipeline_microbatches(config);
  const std::int64_t unit = context_unit(config);
  TESSERA_REQUIRE(config.data.sequence_length % unit == 0,
                  ErrorCode::kInvalidConfig,
                  "--parallel.context={0}: found {0}, and the model's sequences of {1} tokens are "
                  "no multiple of {2}",
                  config.parallel.context,
                  config.data.sequence_length,
                  unit);
  validate(config);
  return config;
}

Evaluator::Evaluator(const EvaluatorSetup& setup, World& world)
    : setup_(setup),
      world_(world),
      all_(control_group(world)),
      place_(data_place(setup.layout.mesh, world.rank())),
      part_(context_part(setup.layout, world.rank())),
      backend_(world, setup.layout.mesh, setup.model.config),
      executor_(setup.programs.of(world.rank()), *backend_) {
  Patience patience(*all_, "loading the model", setup.model.config.checkpoint.deadline_seconds);
  const CheckpointReader reader(
      setup.model.checkpoint,
      {.verify = Verify::kOnLoad, .rank = world.rank(), .num_ranks = world.size()});
  load_state(executor_.executor(),
             setup.parameters,
             reader,
             state_part(setup.layout.mesh, world.rank(), setup.layout.evaluation_dims()),
             static_cast<int>(setup.model.config.run.threads));
  patience.wait();
}

std::vector<double> Evaluator::losses(std::int64_t first, std::int64_t total, const ReadRow& read) {
  const std::int64_t count = std::min(num_sequences(), total - first);
  const std::int64_t microbatches = (count + num_rows() - 1) / num_rows();
  for (std::int64_t m = 0; m < microbatches; ++m) {
    load_rows(first + m * num_rows(), total, m, read);
  }
  executor_.run(microbatches);
  const std::int64_t rows = setup_.num_rows;
  std::vector<float> own;
  for (std::int64_t m = 0; m < microbatches; ++m) {
    for (std::int64_t row = 0; row < rows; ++row) {
      own.push_back(executor_.output(format("loss.{}", row), m));
    }
  }
  const std::vector<float> of_ranks = from_all(own);
  std::vector<double> losses(static_cast<std::size_t>(microbatches * num_rows()));
  for (std::int64_t rank = 0; rank < world_.size(); ++rank) {
    if (pipeline_place(setup_.layout.mesh, rank) != setup_.last_rank) {
      continue;
    }
    // Of these, ranks that read the same sequences say the same.
    const std::int64_t place = data_place(setup_.layout.mesh, rank) * rows;
    for (std::int64_t m = 0; m < microbatches; ++m) {
      std::copy_n(of_ranks.begin() + rank * std::ssize(own) + m * rows,
                  rows,
                  losses.begin() + m * num_rows() + place);
    }
  }
  losses.resize(static_cast<std::size_t>(count));
  return losses;
}

// This rank's rows of the microbatch that begins with sequence `first`.
void Evaluator::load_rows(std::int64_t first,
                          std::int64_t total,
                          std::int64_t microbatch,
                          const ReadRow& read) {
  for (std::int64_t row = 0; row < setup_.num_rows; ++row) {
    const std::int64_t sequence = first + place_ * setup_.num_rows + row;
    if (sequence < total) {
      write_row(executor_.executor(), read(sequence), part_, row, microbatch);
    } else {
      load_empty_row(executor_.executor(), row, microbatch);
    }
  }
}

// What each rank says, in their order.
std::vector<float> Evaluator::from_all(const std::vector<float>& own) {
  std::vector<float> all(own.size() * static_cast<std::size_t>(world_.size()));
  all_->all_gather(std::as_bytes(std::span(own)),
                   std::as_writable_bytes(std::span(all)),
                   own.size() * sizeof(float));
  return all;
}

EvaluatorRanks::EvaluatorRanks(const TrainedModel& model)
    : model_(model), launch_(find_mpi_launch()), world_(join_launched(model.config, launch_)) {
  if (!leads()) {
    silence_info();
  }
  if (world_) {
    waiting_ = waiting_group(*world_);
    patience_ = std::make_unique<Patience>(
        *waiting_, "preparing its data", model.config.checkpoint.deadline_seconds);
  }
}

// Where the ranks are processes: waits once until all have prepared their data or, with an error,
// failed before that; then as require_none_failed().
void EvaluatorRanks::meet(const std::optional<Error>& error) {
  if (patience_ && !std::exchange(has_prepared_, true)) {
    patience_->wait();
    require_none_failed(*world_, error);
  }
}

std::int64_t EvaluatorRanks::whole_length(std::int64_t length) const {
  const std::int64_t unit = context_unit(model_.config);
  return (length + unit - 1) / unit * unit;
}

void EvaluatorRanks::run(std::int64_t length,
                         const std::function<void(Evaluator&, bool keeps)>& body) {
  const RunConfig& config = model_.config;
  const PlannedRun run = plan_run(config, model_.model);
  const std::int64_t num_rows = std::clamp<std::int64_t>(kTokens / length, 1, kMaxRows);
  const ByPipelineRank<Program> programs =
      compile_run_evaluation(run.plan, num_rows, length, run.target);
  const std::vector<ParameterInit> parameters =
      parameter_inits(evaluation_graph(model_.model, num_rows, length, config.train.dtype));
  const EvaluatorSetup setup = {
      .model = model_,
      .layout = run.plan.layout,
      .programs = programs,
      .parameters = parameters,
      .num_rows = num_rows,
      .last_rank = run.plan.pipeline ? run.plan.pipeline->table.rank_of_stage.back() : 0};
  meet(std::nullopt);
  run_ranks(config, world_.get(), [&](World& world) {
    Evaluator evaluator(setup, world);
    body(evaluator, world_ != nullptr || world.rank() == 0);
  });
}

}  // namespace tessera
