#include <cstddef>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/actions/schedules.h"
#include "tessera/base/test_error.h"
#include "tessera/plan/compile.h"
#include "tessera/state/test_training.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

RunLayout layout_of(const std::string& placement, const MeshDegrees& degrees) {
  const Cluster cluster = {.name = "two levels",
                           .device = {},
                           .levels = {{.name = "pair", .size = 2}, {.name = "node", .size = 4}}};
  RunLayout layout = {.mesh = make_mesh(cluster, degrees), .sequence_parallel = true};
  const PlacementPreset found = preset(placement, layout.mesh);
  layout.placement = found.placement;
  layout.wires = found.wires;
  return layout;
}

std::vector<Plan> plans() {
  const Plan plain = {.model = tiny_llama(), .sequence_length = 16};
  Plan cut = plain;
  cut.layout = layout_of("topo", {.data = 4, .tensor = 2});
  cut.microbatch = 2;
  cut.num_microbatches = 3;
  cut.validates = true;
  cut.dtype = cut.logits = DType::kBF16;
  cut.passes = {
      .recompute = {{.end = 1, .kept = RecomputeKept::kAllButCheap, .keep = {"add.0"}},
                    {.first = 1, .again = {"matmul.2", "rms_norm"}, .store = {"matmul.0"}}},
      .fuse = false,
      .overlap_layers = 2,
      .any_order = true,
      .attention = AttentionKernels::kUnfused,
      .joins_accumulation = false,
      .scatter_hops = true,
      .gathers_ahead = true,
      .tensor_beside = true,
      .optimizer = Space::kFile,
      .parameters = Space::kHost,
      .activations = Space::kFile,
      .all_activations = false,
      .moved_states = {{.optimizer = 4096, .parameters = 0}},
      .dropout = 0.1};
  cut.optimizer = {.beta1 = 0.1 + 0.2, .eps = 1e-11, .decays_all = false, .moments = DType::kBF16};
  Plan codes = plain;
  codes.model = tiny_gpt2();
  codes.float8 = Float8Options{.rowwise = true, .gradients = DType::kF8E4M3, .skip_first = 1};
  codes.layout = layout_of("zeropp", {.data = 8});
  codes.layout.secondary_use = SecondaryUse::kBackward;
  Plan rounded = plain;
  rounded.model = tiny_neox();
  rounded.optimizer.gradients = DType::kBF16;
  Plan stages = plain;
  stages.layout = layout_of("zero1", {.data = 2, .tensor = 2, .pipeline = 2});
  stages.num_microbatches = 3;
  stages.validates = true;
  stages.pipeline = PipelinePlan{
      .table = make_table({.schedule = PipelineSchedule::kZbH1, .ranks = 2, .microbatches = 3}),
      .layers = {2, 0}};
  Plan slices = stages;
  slices.pipeline = PipelinePlan{.table = make_table({.ranks = 2, .microbatches = 3, .slices = 3}),
                                 .layers = {1, 1},
                                 .slice_lengths = {10, 4, 2}};
  return {plain, cut, codes, rounded, stages, slices};
}

// Equal text says that nothing of a plan is lost that the text has; equal programs, that nothing
// of a plan is missing in the text.
TEST(PlanText, CompilesToTheSamePrograms) {
  for (const Plan& plan : plans()) {
    const std::string text = to_string(plan);
    SCOPED_TRACE(text);
    const Plan read = parse_plan(text, "plan");
    EXPECT_EQ(to_string(read), text);
    EXPECT_EQ(read.layout.mesh, plan.layout.mesh);
    for (const char* name : {"cpu", "cuda", "h200"}) {
      const Target target = find_target(name);
      const RunPrograms expected = compile_run(plan, target);
      const RunPrograms found = compile_run(read, parse_target(to_string(target), "target"));
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t place = 0; place < expected.size(); ++place) {
        EXPECT_EQ(to_string(found[place].step), to_string(expected[place].step));
        ASSERT_EQ(found[place].validation.has_value(), expected[place].validation.has_value());
        if (expected[place].validation) {
          EXPECT_EQ(to_string(*found[place].validation), to_string(*expected[place].validation));
        }
      }
    }
  }
}

// What is said of the text of a plan with `to` in place of `from`.
std::string error_of_changed(std::string text, const std::string& from, const std::string& to) {
  const std::size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  text.replace(place, from.size(), to);
  return error_of(ErrorCode::kInvalidConfig, [&] { parse_plan(text, "p.toml"); });
}

// Every key matters to the programs: a change of each is a change of some program's text, or is
// refused. (The wires' block and threads only matter with formats of blocks and on a CPU.)
TEST(PlanText, RefusesWhatDoesNotFit) {
  const std::string good = to_string(plans()[1]);
  const auto message = [&](const std::string& from, const std::string& to) {
    return error_of_changed(good, from, to);
  };
  EXPECT_THAT(message("microbatch = 2", "microbatch = 0"),
              HasSubstr("p.toml:8:14: step.microbatch: found integer 0, expected integer from 1"));
  EXPECT_THAT(message("microbatch = 2\n", ""), HasSubstr("step.microbatch is missing"));
  EXPECT_THAT(message("microbatches", "microbatchs"), HasSubstr("microbatches is missing"));
  EXPECT_THAT(message("threads = 1", "threads = 1\nteeth = 32"),
              HasSubstr("unknown key \"step.teeth\""));
  EXPECT_THAT(message("dtype = \"bf16\"", "dtype = \"f16\""),
              HasSubstr("model.dtype: found \"f16\", expected one of \"f32\", \"bf16\""));
  EXPECT_THAT(message("\\\"family\\\":\\\"llama\\\"", "\\\"family\\\":\\\"lama\\\""),
              HasSubstr("\"lama\", expected one of"));
  EXPECT_THAT(message("size = 2", "size = 1"), HasSubstr("mesh.axes.size: found integer 1"));
  EXPECT_THAT(message("group = \"tensor\"", "group = \"rows\""), HasSubstr("found \"rows\""));
  EXPECT_THAT(message("level = \"pair\"", "level = \"rack\""),
              HasSubstr("on the level \"rack\", expected one of mesh.levels"));
  EXPECT_THAT(message("optimizer = 4", "optimizer = 3"), HasSubstr(": state: "));
  EXPECT_THAT(message("wire_block = 256", "wire_block = 200"), HasSubstr(": state: "));
  EXPECT_THAT(message("wire_grad = \"", "wire_grad = \"int3 "), HasSubstr("state.wire_grad: "));
  EXPECT_THAT(message("beta1 = 0.30000000000000004", "beta1 = nan"),
              HasSubstr("optimizer.beta1: found number nan, expected a number"));
  EXPECT_THAT(message("gradients = \"f32\"", "gradients = \"bf16\""),
              HasSubstr("with 3 microbatches on 4 data and context ranks"));
  EXPECT_THAT(message("activations = \"file\"", "activations = \"device\""),
              HasSubstr(": passes: found ops to store of the layers from 1, expected none"));
  EXPECT_THAT(message("[[passes.moved_states]]",
                      "[[passes.moved_states]]\noptimizer = 0\nparameters = 0\n\n"
                      "[[passes.moved_states]]"),
              HasSubstr(": passes: found 2 tables of moved_states, expected none or one for each "
                        "of 1 pipeline ranks"));
  EXPECT_THAT(message("[passes]", "passes = 3\n[passages]"), HasSubstr("p.toml:"));
}

TEST(PlanText, RefusesAPipelineThatDoesNotFit) {
  const std::string good = to_string(plans()[4]);
  const auto message = [&](const std::string& from, const std::string& to) {
    return error_of_changed(good, from, to);
  };
  EXPECT_THAT(message("layers = [2, 0]", "layers = [2, 1]"),
              HasSubstr(": pipeline: found 3 layers in all, the model has 2"));
  EXPECT_THAT(message("layers = [2, 0]", "layers = [2]"),
              HasSubstr("found 1 number, expected 2: one per stage"));
  EXPECT_THAT(message("layers = [2, 0]", "layers = [2, -1]"),
              HasSubstr("expected an array of whole numbers, at least 0"));
  EXPECT_THAT(message("microbatches = 3", "microbatches = 4"), HasSubstr(": pipeline: "));
  EXPECT_THAT(message("0F0,", "0X0,"), HasSubstr("pipeline.table: "));
  EXPECT_THAT(message("group = \"pipeline\"", "group = \"tensor\""),
              HasSubstr("found a table, with 1 pipeline rank on the mesh"));
  EXPECT_THAT(message("slices = []", "slices = [4, 4]"),
              HasSubstr(": pipeline: found lengths of 2 slices, expected those of 0"));
  const std::string sliced = to_string(plans()[5]);
  EXPECT_THAT(error_of_changed(sliced, "10, 4, 2]", "10, 6]"),
              HasSubstr("found lengths of 2 slices, expected those of 3"));
  EXPECT_THAT(error_of_changed(sliced, "10, 4, 2]", "10, 6, 0]"), HasSubstr("and none empty"));
  EXPECT_THAT(error_of_changed(sliced, "10, 4, 2]", "10, 4, 4]"),
              HasSubstr("found slices of 18 tokens in all, expected those of a sequence, 16"));
}

// A model of one's own has no text; its plan has, up to there.
TEST(PlanText, OfACustomModelIsRefused) {
  Plan plan = plans()[0];
  plan.model.json = R"({"mine":true})";
  const std::string text = to_string(plan);
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { parse_plan(text, "p.toml"); }),
              HasSubstr("a model of one's own is none of them"));
}

}  // namespace
}  // namespace tessera
