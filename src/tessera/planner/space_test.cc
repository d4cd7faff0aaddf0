#include "tessera/planner/space.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/config/config.h"
#include "tessera/planner/test_drawn_run.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/resolve_layout.h"
#include "tessera/resolve/simulated_run.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr AllowedChoices kAll = {.int8 = true, .int4 = true, .float8 = true, .overlap = true};

// Ranks in pairs, on two levels, with what [pipeline], degrees and wires a file may have.
class SpaceTest : public testing::Test {
 protected:
  SpaceTest() : drawn_(first_with_levels()) {
    drawn_.config.optimizer.gradients = DType::kF32;
    own_ = drawn_.config;
    for (const char* const text : {"--parallel.pipeline=2",
                                   "--parallel.data=2",
                                   "--pipeline.schedule=interleaved",
                                   "--pipeline.chunks=2",
                                   "--pipeline.layers=[1, 1, 1, 1]",
                                   "--state.preset=hsdp@node",
                                   "--state.param=node",
                                   "--state.secondary=1",
                                   "--state.secondary_use=backward",
                                   "--state.optimizer=2",
                                   "--memory.recompute=attention",
                                   "--comm.overlap_layers=3"}) {
      apply_override(own_, text);
    }
  }

  static std::uint64_t first_with_levels() {
    std::uint64_t seed = 0;
    while (DrawnRun(seed).cluster.levels.size() < 2) {
      ++seed;
    }
    return seed;
  }

  RunConfig resolved(const RunConfig& config, const PlanChoice& choice) const {
    RunConfig chosen = with_choice(config, choice);
    chosen.run.device = to_string(target_of(drawn_.cluster).kind);
    return resolve(std::move(chosen), ConfigUse::kPlan);
  }

  DrawnRun drawn_;
  RunConfig own_;
};

// Formats as they cross the levels of a mesh up to `degree`.
std::string crossing(const Wire& wire, WireFormat plain, const Mesh& mesh, std::int64_t degree) {
  const std::vector<DataLevel> levels = data_levels(mesh);
  WireFormats formats = formats_of_levels(wire.formats, levels.size());
  formats.resize(levels.size(), plain);
  const auto beyond =
      std::ranges::find_if(levels, [&](const DataLevel& level) { return level.degree > degree; });
  formats.resize(static_cast<std::size_t>(beyond - levels.begin()));
  return to_string(formats);
}

TEST_F(SpaceTest, HasEachPlanOnce) {
  for (const char* const wires : {"", "int8", "bf16 int8"}) {
    RunConfig config = drawn_.config;
    apply_override(config, format("--state.wire_param={}", wires));
    apply_override(config, format("--state.wire_grad={}", wires));
    std::set<std::string> seen;
    std::size_t wide = 0;
    for (const PlanChoice& choice :
         plan_space(filled_in(config, drawn_.cluster, 4), drawn_.cluster, 4, kAll)) {
      if (choice.recompute != Recompute::kNone || choice.float8) {
        continue;  // which have the same states
      }
      if (choice.data > 1 && choice.data < 4 && std::string(wires) == "bf16 int8") {
        continue;  // of one level, which two formats do not name
      }
      const RunLayout layout = resolve_layout(resolved(config, choice)).layout;
      const auto [param, secondary, grad, optimizer] = layout.placement;
      PlanChoice rest = choice;
      rest.state = {};
      const std::string key =
          format("{} v{} ({},{},{},{}) {} | {}",
                 all_words(rest),
                 choice.chunks,
                 param,
                 secondary,
                 grad,
                 optimizer,
                 crossing(layout.wires.param, WireFormat::kBF16, layout.mesh, param),
                 crossing(layout.wires.grad, WireFormat::kF32, layout.mesh, choice.data));
      EXPECT_TRUE(seen.insert(key).second) << all_words(choice) << " is there as another: " << key;
      wide += choice.state.wire_grad == "f32 int8" ? 1U : 0U;
    }
    EXPECT_GT(seen.size(), 50U);
    EXPECT_EQ(wide > 0, std::string(wires).empty());
  }
}

// Nothing of what a plan settles is left of the file, whichever way it is said.
TEST_F(SpaceTest, AChoiceSettlesAllOfItsKeys) {
  RunConfig plain = drawn_.config;
  plain.state.secondary_use = SecondaryUse::kBackward;  // stays where there is a second copy
  RunConfig sliced = own_;
  sliced.pipeline.slices = 2;
  constexpr std::size_t kStep = 101;
  const std::vector<PlanChoice> space = drawn_.space(kAll);
  for (std::size_t i = 0; i < space.size(); i += kStep) {
    const PlanChoice& choice = space[i];
    EXPECT_TRUE(with_choice(own_, choice) == with_choice(plain, choice)) << all_words(choice);
    RunConfig changed = own_;
    for (const std::string& text : choice_overrides(own_, choice)) {
      apply_override(changed, text);
    }
    EXPECT_TRUE(changed == with_choice(plain, choice)) << all_words(choice);
    if (choice.pipeline == 1) {
      EXPECT_NO_THROW(resolved(sliced, choice)) << all_words(choice);
    }
  }
}

// Layers, degrees and all: what a choice makes of a run says the choice again.
TEST_F(SpaceTest, AChoiceIsReadFromItsRun) {
  std::size_t pipelines = 0;
  std::size_t degrees = 0;
  constexpr std::size_t kStep = 17;
  const std::vector<PlanChoice> space = drawn_.space({.overlap = true, .recompute = true});
  for (std::size_t i = 0; i < space.size(); i += kStep) {
    EXPECT_TRUE(choice_of(resolved(own_, space[i]), target_of(drawn_.cluster)) == space[i])
        << all_words(space[i]);
    pipelines += space[i].layers.empty() ? 0U : 1U;
    degrees += space[i].state.degrees ? 1U : 0U;
  }
  EXPECT_GT(pipelines, 10U);
  EXPECT_GT(degrees, 2U);
}

TEST_F(SpaceTest, HasEveryKindOfRecompute) {
  using Kinds = std::set<std::string>;
  const auto kinds = [&](const AllowedChoices& allowed) {
    Kinds found;
    for (const PlanChoice& choice : drawn_.space(allowed)) {
      found.insert(recompute_words(choice));
      EXPECT_TRUE(choice.recompute != Recompute::kFullButLastStage || choice.pipeline > 1);
    }
    return found;
  };
  EXPECT_EQ(kinds({}), (Kinds{"none", "full"}));
  EXPECT_EQ(kinds({.recompute = true}),
            (Kinds{"none",
                   "full",
                   "selective",
                   "full_but_last_stage",
                   "attention",
                   "every_second_product"}));
  apply_override(drawn_.config, "--memory.recompute=attention");
  EXPECT_EQ(kinds({}), (Kinds{"none", "full", "attention"}));
}

// Else as many as the file has.
TEST_F(SpaceTest, HasContextRanksOnRequest) {
  const auto degrees = [&](const AllowedChoices& allowed) {
    std::set<std::int64_t> found;
    for (const PlanChoice& choice : drawn_.space(allowed)) {
      EXPECT_EQ(choice.num_ranks(), 4);
      found.insert(choice.context);
    }
    return found;
  };
  EXPECT_EQ(degrees({}), std::set<std::int64_t>{1});
  EXPECT_EQ(degrees({.context = true}), (std::set<std::int64_t>{1, 2, 4}));
  apply_override(drawn_.config, "--parallel.context=2");
  EXPECT_EQ(degrees({}), std::set<std::int64_t>{2});
}

TEST_F(SpaceTest, SaysWhatItLeavesOut) {
  apply_override(drawn_.config, "--train.global_batch=3");
  const std::vector<std::string> left_out =
      left_out_of_space(filled_in(drawn_.config, drawn_.cluster, 4), drawn_.cluster, 4, {});
  EXPECT_THAT(left_out,
              Contains(HasSubstr("t1 p1 d4: train.global_batch = 3 is not divided by 4 data "
                                 "ranks")));
  EXPECT_THAT(left_out, Contains(HasSubstr("t4 p1 d1: "))) << "of 2 kv_heads";
}

}  // namespace
}  // namespace tessera
