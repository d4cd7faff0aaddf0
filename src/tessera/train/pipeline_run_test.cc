// Runs in which each of two pipeline ranks has a program of its own, made by hand: models side by
// side, "small" and "large", which do not meet. Each must be trained as if it were alone.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/dataset/run_data.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/ops/all_ops.h"
#include "tessera/plan/compile.h"
#include "tessera/program/step_traffic.h"
#include "tessera/report/metrics_table.h"
#include "tessera/runtime/launcher.h"
#include "tessera/train/rank_trainer.h"
#include "tessera/train/run_record.h"
#include "tessera/train/run_report.h"
#include "tessera/train/test_run.h"

namespace tessera {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kVocab = 304;

struct Tower {
  std::string name;
  int num_tables = 1;
};

// The sum of the towers' tables, looked up, and of their heads.
ModelDescription model_of(const std::vector<Tower>& towers) {
  ModelDescription model;
  model.vocab = kVocab;
  model.model = [towers](GraphBuilder& builder, const ModelInputs& inputs) {
    std::optional<Value> hidden;
    std::optional<Value> head;
    const auto join = [](std::optional<Value>& sum, const Value& more) {
      sum = sum ? add(*sum, more) : more;
    };
    const TensorType type = {
        .dtype = builder.compute_dtype(),
        .dims = {{.name = "vocab", .bound = kVocab}, {.name = "embed", .bound = 24}}};
    for (const Tower& tower : towers) {
      for (int i = 0; i < tower.num_tables; ++i) {
        const std::string name = format("{}.table{}", tower.name, i);
        join(hidden, embedding(builder.parameter(name, type, {.std = 0.5}), inputs.tokens));
      }
      join(head, builder.parameter(tower.name + ".head", type, {.std = 0.5}));
    }
    return ModelOutputs{.hidden = *hidden, .head = *head};
  };
  return model;
}

const Tower kSmall = {.name = "small"};
const Tower kLarge = {.name = "large", .num_tables = 2};

// What its code does not read, no host has to write.
Programs without_unread_inputs(Programs programs) {
  for (Program* program : {&programs.step, &programs.validation.value()}) {
    std::erase_if(program->inputs, [](const Binding& input) {
      return input.name == "positions" || input.name == "documents";
    });
  }
  return programs;
}

class PipelineRun {
 public:
  // A tower for each pipeline rank, on two data and two tensor ranks.
  explicit PipelineRun(const std::vector<Tower>& towers) {
    const std::vector<std::int64_t> levels = {2, 2, 2};
    plan_.model = model_of(towers);
    plan_.sequence_length = 16;
    plan_.num_microbatches = 2;
    plan_.validates = true;
    plan_.layout.mesh =
        make_mesh(test_cluster(levels),
                  {.data = 2, .tensor = 2, .pipeline = static_cast<std::int64_t>(towers.size())});
    plan_.layout.placement = preset("zero1", plan_.layout.mesh).placement;
    std::vector<Programs> programs;
    for (const Tower& tower : towers) {
      Plan own = plan_;
      own.model = model_of({tower});
      programs.push_back(without_unread_inputs(compile(own, cpu_target())));
    }
    programs_ = RunPrograms(plan_.layout.mesh, std::move(programs));
  }

  std::int64_t num_ranks() const { return plan_.layout.mesh.num_ranks(); }

  const RunPrograms& programs() const { return programs_; }

  const Plan& plan() const { return plan_; }

  // Trains in run `name` to this step; the checkpoint that it ends with.
  std::filesystem::path train(const TestRun& runs, const std::string& name, std::int64_t steps) {
    RunConfig config = runs.config(name);
    config.parallel.ranks = num_ranks();
    config.parallel.tensor = 2;
    config.train.microbatch = 1;
    config.train.steps = steps;
    config.data.validation_share = 0.2;
    config.validation.every = 2;
    std::filesystem::create_directory(config.run.dir);
    const RunSequences sequences = run_sequences(config, run_tokenizer(config, kVocab), kVocab);
    const std::vector<ParameterInit> parameters = parameter_inits(step_graph(plan_));
    const PlannedRun run = {.plan = plan_, .target = cpu_target(), .saves_in_background = true};
    std::filesystem::path checkpoint;
    launch_ranks(num_ranks(), {}, [&](World& world) {
      const RunSetup setup = {.config = config,
                              .run = run,
                              .programs = programs_,
                              .sequences = sequences,
                              .parameters = parameters,
                              .hooks = {},
                              .takes_signals = false};
      std::optional<std::int64_t> last_step;
      const TrainResult result = train_rank(setup, world, last_step);
      if (world.rank() == 0) {
        checkpoint = result.checkpoint.value();
      }
    });
    return checkpoint;
  }

 private:
  Plan plan_;
  RunPrograms programs_;
};

void expect_tensors_of(const std::filesystem::path& part, const std::filesystem::path& all) {
  const CheckpointReader expected(part);
  const CheckpointReader found(all);
  EXPECT_FALSE(expected.tensors().empty());
  for (const ManifestTensor& tensor : expected.tensors()) {
    EXPECT_EQ(found.read(tensor.name, tensor.role), expected.read(tensor.name, tensor.role))
        << quote(tensor.name, tensor.role);
  }
}

TEST(PipelineRun, TrainsEachProgramAsIfItWereAlone) {
  const TestRun runs;
  const std::filesystem::path both = PipelineRun({kSmall, kLarge}).train(runs, "both", 6);
  const std::filesystem::path small = PipelineRun({kSmall}).train(runs, "small", 6);
  const std::filesystem::path large = PipelineRun({kLarge}).train(runs, "large", 6);
  expect_tensors_of(small, both);
  expect_tensors_of(large, both);
  EXPECT_EQ(CheckpointReader(both).tensors().size(),
            CheckpointReader(small).tensors().size() + CheckpointReader(large).tensors().size());
}

TEST(PipelineRun, GoesOnWhereItWasStopped) {
  const TestRun runs;
  PipelineRun run({kSmall, kLarge});
  const std::filesystem::path whole = run.train(runs, "whole", 6);
  run.train(runs, "stopped", 4);
  expect_tensors_of(whole, run.train(runs, "stopped", 6));
}

TEST(PipelineRun, SaysWhatEachPipelineRankTakesAndSends) {
  const TestRun runs;
  PipelineRun run({kSmall, kLarge});
  run.train(runs, "run", 2);
  const MetricsTable metrics = read_metrics(metrics_file(runs.run("run")));
  const auto sent = [&](std::size_t place) {
    std::int64_t bytes = 0;
    for (const auto& [axis, classes] : step_traffic(run.programs()[place].step)) {
      for (const std::int64_t of_class : classes) {
        bytes += of_class;
      }
    }
    return static_cast<double>(bytes);
  };
  EXPECT_THAT(metrics.column("pipeline_ranks/0/comm_bytes"), ElementsAre(sent(0), sent(0)));
  EXPECT_THAT(metrics.column("pipeline_ranks/1/comm_bytes"), ElementsAre(sent(1), sent(1)));
  // What rank 0 has counted in the step is what its program states.
  double counted = 0;
  for (const MetricsColumn& column : metrics.columns) {
    counted += column.name.starts_with("comm_bytes/") ? column.values.back() : 0;
  }
  EXPECT_EQ(counted, sent(0));
  // The larger one decides, and takes two tables and the states of one more than the other.
  EXPECT_GT(metrics.column("pipeline_ranks/1/memory_bytes")[0],
            metrics.column("pipeline_ranks/0/memory_bytes")[0] + 304 * 24 * 4);
  EXPECT_THAT(metrics.column("memory_bytes"),
              Each(metrics.column("pipeline_ranks/1/memory_bytes")[0]));
  const ReportPage page = describe_run(runs.run("run"), metrics);
  std::vector<std::string> facts;
  for (const FactGroup& group : page.facts) {
    for (const Fact& fact : group.facts) {
      if (group.title == "Pipeline ranks") {
        facts.push_back(format("{}: {}", fact.label, fact.value));
      }
    }
  }
  EXPECT_THAT(facts, ElementsAre(HasSubstr("Pipeline rank 0: "), HasSubstr("Pipeline rank 1: ")));
}

}  // namespace
}  // namespace tessera
