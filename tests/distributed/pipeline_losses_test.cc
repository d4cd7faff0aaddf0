// What a pipeline's ranks say of sequences that they do not train on is bit by bit what one rank
// says, however many batches there are.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/actions/forwards.h"
#include "tessera/base/format.h"
#include "tessera/launch/rank_backend.h"
#include "tessera/passes/stages/work_order.h"
#include "tessera/plan/graphs.h"
#include "tessera/plan/run_layout.h"
#include "tessera/program/collective_calls.h"
#include "tessera/program/first_microbatches.h"
#include "tessera/program/step_names.h"
#include "tessera/program/verify_ranks.h"
#include "tessera/runtime/launcher.h"
#include "tessera/runtime/loss_executor.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/training_state.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

RankRun base_run() {
  return {.model = odd_llama(4), .mesh = local_mesh({}), .global_batch = 2, .sequence_length = 8};
}

RankRun on_pipeline(RankRun run, MeshDegrees degrees, std::vector<std::int64_t> layers) {
  degrees.pipeline = std::ssize(layers);
  run.mesh = local_mesh(degrees);
  run.pipeline = {.layers = std::move(layers)};
  return run;
}

// A step of one microbatch over stages that lie on two ranks like this.
RankRun on_stages(RankRun run,
                  const std::vector<std::int64_t>& rank_of_stage,
                  std::vector<std::int64_t> layers) {
  run.mesh = local_mesh({.pipeline = 2});
  run.pipeline = {.layers = std::move(layers), .table = forwards(rank_of_stage, 1)};
  for (std::vector<StageAction>& row : run.pipeline.table->rows) {
    for (std::size_t i = row.size(); i-- > 0;) {
      row.push_back({.stage = row[i].stage, .kind = ActionKind::kBackward});
    }
  }
  return run;
}

bool is_pipeline(const RankRun& run) {
  return !run.pipeline.layers.empty();
}

// The forwards of so many microbatches, and nothing else.
CompileOptions forward_options(CompileOptions options,
                               std::int64_t in_flight,
                               TransferLaunch launch) {
  options.update.num_microbatches = in_flight;
  if (options.pipeline) {
    options.pipeline->order =
        work_orders(forwards(options.pipeline->cut.rank_of_stage, in_flight), launch);
  }
  return options;
}

std::vector<Program> compile_losses(const RankRun& run,
                                    Graph graph,
                                    const CompileOptions& options,
                                    std::int64_t in_flight,
                                    TransferLaunch launch) {
  const CompileOptions forward = forward_options(options, in_flight, launch);
  return is_pipeline(run) ? compile_pipeline_forward(std::move(graph), forward)
                          : std::vector<Program>{compile_forward(std::move(graph), forward)};
}

std::vector<Program> compile_steps(const RankRun& run, const CompileOptions& options) {
  return is_pipeline(run) ? compile_pipeline(whole_graph(run), options)
                          : std::vector<Program>{compile_training(whole_graph(run), options)};
}

// Ranks along the pipeline come to an end together, however many microbatches they do.
void expect_to_end(const RankRun& run,
                   const std::vector<Program>& programs,
                   TransferLaunch launch) {
  std::vector<std::size_t> class_of;  // by rank
  for (std::int64_t rank = 0; rank < run.mesh.num_ranks(); ++rank) {
    class_of.push_back(static_cast<std::size_t>(pipeline_place(run.mesh, rank)));
  }
  for (std::int64_t count = 1; count <= programs[0].num_microbatches; ++count) {
    std::vector<CollectiveSequence> classes;
    for (const Program& program : programs) {
      classes.push_back(collective_calls(first_microbatches(program, count)));
    }
    verify_ranks(run.mesh, classes, class_of);
    if (launch == TransferLaunch::kInOneQueue) {
      std::ranges::transform(classes, classes.begin(), in_one_queue);
      verify_ranks(run.mesh, classes, class_of);
    }
  }
}

// What is asked of the ranks.
struct Asked {
  std::vector<std::int64_t> batches;  // of each run, how many
  std::int64_t in_flight = 1;         // of the program
  bool by_row = false;                // the losses of sequences, those of each data rank its own
};

// By run, of each batch in turn.
using Losses = std::vector<std::vector<float>>;

class RankLosses {
 public:
  RankLosses(const RankRun& run, const Asked& asked, World& world)
      : run_(run),
        asked_(asked),
        place_(static_cast<std::size_t>(pipeline_place(run.mesh, world.rank()))),
        data_place_(data_place(run.mesh, world.rank())),
        rows_(run.global_batch / layout().num_data()),
        backend_(world, run.mesh, 1) {
    CompileOptions options = rank_options(run, workspace_of(*backend_));
    steps_ = compile_steps(run, options);
    for (const Program& step : steps_) {
      options.beside.push_back(&step);
    }
    options.update.dims = asked.by_row ? layout().evaluation_dims() : layout().dims();
    options.sum_outputs = !asked.by_row;
    const Graph graph =
        asked.by_row ? evaluation_graph(description(run), rows_, run.sequence_length, run.dtype)
                     : whole_graph(run);
    const auto compiled = [&](TransferLaunch launch) {
      return compile_losses(run, graph, options, asked.in_flight, launch);
    };
    programs_ = compiled(TransferLaunch::kByStream);
    if (world.rank() == 0) {
      expect_to_end(run, programs_, TransferLaunch::kByStream);
      expect_to_end(run, compiled(TransferLaunch::kInOneQueue), TransferLaunch::kInOneQueue);
    }
    const std::int64_t bytes = std::max(steps_[place_].arena_bytes, programs_[place_].arena_bytes);
    const ProgramArenas arenas = {.device = backend_->allocate(bytes), .device_bytes = bytes};
    losses_ = std::make_unique<LossExecutor>(programs_[place_], *backend_, arenas);
    Executor step(steps_[place_], *backend_, arenas);
    initialize_state(step,
                     parameter_inits(graph),
                     run.seed,
                     state_part(run.mesh, world.rank(), layout().dims()));
  }

  Losses run() {
    Losses losses;
    for (const std::int64_t count : asked_.batches) {
      std::vector<float>& of_run = losses.emplace_back();
      for (std::int64_t first = 0; first < count; first += asked_.in_flight) {
        const std::int64_t at_once = std::min(asked_.in_flight, count - first);
        for (std::int64_t m = 0; m < at_once; ++m) {
          load(first + m, m);
        }
        losses_->run(at_once);
        for (std::int64_t m = 0; m < at_once; ++m) {
          read(m, of_run);
        }
      }
    }
    return losses;
  }

 private:
  RunLayout layout() const {
    return {.mesh = run_.mesh,
            .placement = run_.placement,
            .sequence_parallel = run_.sequence_parallel};
  }

  // Of an input, at token t of a sequence. As many labels count as the number of the batch says.
  std::int32_t id_of(std::string_view input,
                     std::int64_t batch,
                     std::int64_t sequence,
                     std::int64_t t) const {
    const std::int64_t vocab = description(run_).vocab;
    if (input == step_names::kLabels) {
      return t < batch || !counts(sequence, t) ? -1 : token(batch, sequence, t + 1, vocab);
    }
    if (input == step_names::kTokens) {
      return token(batch, sequence, t, vocab);
    }
    return input == step_names::kPositions ? static_cast<std::int32_t>(t) : 0;
  }

  // This rank's rows of a batch: those inputs that the program has.
  void load(std::int64_t batch, std::int64_t microbatch) {
    for (const Binding& input : programs_[place_].inputs) {
      for (std::int64_t row = 0; row < rows_; ++row) {
        const std::span<std::int32_t> ids =
            input_row(losses_->executor(), input.name, row, microbatch);
        for (std::int64_t t = 0; t < run_.sequence_length; ++t) {
          ids[static_cast<std::size_t>(t)] = id_of(input.name, batch, data_place_ * rows_ + row, t);
        }
      }
    }
  }

  void read(std::int64_t microbatch, std::vector<float>& losses) {
    if (!asked_.by_row) {
      losses.push_back(losses_->output(step_names::kLoss, microbatch));
      return;
    }
    for (std::int64_t row = 0; row < rows_; ++row) {
      losses.push_back(losses_->output(format("loss.{}", row), microbatch));
    }
  }

  const RankRun& run_;
  const Asked& asked_;
  std::size_t place_;
  std::int64_t data_place_;
  std::int64_t rows_;  // of this rank
  RankBackend backend_;
  std::vector<Program> steps_;  // in whose arenas the others run
  std::vector<Program> programs_;
  std::unique_ptr<LossExecutor> losses_;
};

// The place along the pipeline of the ranks that know what sequences lose: all of them know it of a
// batch.
std::int64_t place_of_rows(const RankRun& run) {
  return is_pipeline(run) ? action_table(run).rank_of_stage.back() : 0;
}

// By data rank; all that read the same say the same.
std::map<std::int64_t, Losses> losses_of(const RankRun& run, const Asked& asked) {
  std::vector<Losses> of_ranks(static_cast<std::size_t>(run.mesh.num_ranks()));
  launch_ranks(run.mesh.num_ranks(), {.world = {.deadline_seconds = 60}}, [&](World& world) {
    of_ranks[static_cast<std::size_t>(world.rank())] = RankLosses(run, asked, world).run();
  });
  std::map<std::int64_t, Losses> losses;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const std::int64_t place = data_place(run.mesh, static_cast<std::int64_t>(rank));
    if (asked.by_row &&
        pipeline_place(run.mesh, static_cast<std::int64_t>(rank)) != place_of_rows(run)) {
      continue;
    }
    EXPECT_EQ(losses.try_emplace(place, of_ranks[rank]).first->second, of_ranks[rank]);
  }
  return losses;
}

TEST(PipelineLosses, AreThoseOfOneRank) {
  const RankRun alone = base_run();
  for (const bool by_row : {false, true}) {
    for (const std::vector<std::int64_t>& layers :
         {std::vector<std::int64_t>{2, 2}, {1, 2, 1}, {2, 1, 1, 0}}) {
      const std::int64_t ranks = std::ssize(layers);
      Asked asked = {.batches = {1, ranks - 1, ranks, 2 * ranks + 1, 4 * ranks}, .by_row = by_row};
      const auto expected = losses_of(alone, asked);
      EXPECT_NE(expected.at(0).back().front(), 0);
      asked.in_flight = 2 * ranks;
      EXPECT_EQ(losses_of(on_pipeline(alone, {}, layers), asked), expected) << ranks;
    }
  }
}

TEST(PipelineLosses, AreThoseOfOneRankOverSeveralStages) {
  const RankRun alone = base_run();
  Asked asked = {.batches = {1, 5, 9}};
  const auto expected = losses_of(alone, asked);
  asked.in_flight = 8;
  for (const std::vector<std::int64_t>& rank_of_stage :
       {std::vector<std::int64_t>{0, 1, 0, 1}, {0, 1, 1, 0}}) {
    EXPECT_EQ(losses_of(on_stages(alone, rank_of_stage, {1, 1, 2, 0}), asked), expected);
  }
}

// No collective along the pipeline, however many sequences there are.
TEST(PipelineLosses, OfSequencesStayWhereTheyAreMade) {
  const RankRun run = on_pipeline(base_run(), {}, {2, 2});
  CompileOptions options = rank_options(run, {});
  options.update.dims = {};
  options.sum_outputs = false;
  const Graph graph =
      evaluation_graph(description(run), run.global_batch, run.sequence_length, run.dtype);
  for (const Program& program : compile_losses(run, graph, options, 4, TransferLaunch::kByStream)) {
    for (const CollectiveCall& call : collective_calls(program).calls) {
      EXPECT_TRUE(call.channel.has_value()) << call.place;
    }
  }
}

// In 8-bit floats, whose scales are those of a microbatch, and with adapters.
TEST(PipelineLosses, AreThoseOfOneRankWhateverIsTrained) {
  RankRun float8 = base_run();
  float8.float8 = Float8Options{.head = true};
  RankRun rowwise = base_run();
  rowwise.float8 = Float8Options{.rowwise = true, .keep_weight_codes = true};
  RankRun adapted = base_run();
  adapted.other = odd_model("llama3", attention_and_feed_forward());
  const Asked once = {.batches = {5}};
  const auto exact = losses_of(base_run(), once);
  for (const RankRun& alone : {float8, rowwise, adapted}) {
    for (const bool by_row : {false, true}) {
      Asked asked = {.batches = {5, 3}, .by_row = by_row};
      const auto expected = losses_of(alone, asked);
      asked.in_flight = 4;
      const std::int64_t layers = description(alone).num_layers;
      EXPECT_EQ(losses_of(on_pipeline(alone, {}, {layers - 1, 1}), asked), expected);
    }
    EXPECT_NE(losses_of(alone, once), exact);
  }
}

// However the ranks of a place share their part of the model.
TEST(PipelineLosses, AreThoseOfDataAndTensorRanks) {
  for (const std::int64_t tensor : {1, 2}) {
    for (const char* const placement : {"ddp", "fsdp"}) {
      for (const bool by_row : {false, true}) {
        RankRun alone = base_run();
        alone.model.kv_heads = 2;
        alone.global_batch = 4;
        alone.mesh = local_mesh({.data = 2, .tensor = tensor});
        alone.placement = preset(placement, alone.mesh).placement;
        alone.sequence_parallel = tensor > 1;
        alone.overlap = placement == std::string("fsdp");
        Asked asked = {.batches = {5, 3}, .by_row = by_row};
        const auto expected = losses_of(alone, asked);
        asked.in_flight = 4;
        EXPECT_EQ(losses_of(on_pipeline(alone, {.data = 2, .tensor = tensor}, {3, 1}), asked),
                  expected)
            << tensor << " " << placement;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
