#include "tessera/train/validator.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/run_config.h"
#include "tessera/models/llama/llama.h"
#include "tessera/passes/memory/share_states.h"
#include "tessera/plan/compile.h"
#include "tessera/resolve/make_plan.h"
#include "tessera/resolve/run_memory.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EvenlySpread, TakesAllOrSomeFromEverywhere) {
  EXPECT_THAT(evenly_spread(3, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(evenly_spread(3, 8), ElementsAre(0, 1, 2));
  EXPECT_THAT(evenly_spread(7, 3), ElementsAre(0, 2, 4));
  EXPECT_THAT(evenly_spread(1000, 4), ElementsAre(0, 250, 500, 750));
  EXPECT_EQ(evenly_spread(std::int64_t{1} << 62, 3).back(), (std::int64_t{1} << 62) / 3 * 2);
}

ModelDescription small_model() {
  return describe_llama(
      {.dim = 24, .layers = 2, .heads = 4, .kv_heads = 4, .ffn = 36, .vocab = 64});
}

// On data x tensor ranks.
RunConfig small_config(std::int64_t data, std::int64_t tensor, const std::string& preset) {
  RunConfig config;
  config.parallel.ranks = data * tensor;
  config.parallel.data = data;
  config.parallel.tensor = tensor;
  config.state.preset = preset;
  config.data.sequence_length = 16;
  config.train.global_batch = 2 * data;
  config.validation.every = 1;
  return config;
}

// By name, where a program's states begin in the arena.
std::vector<std::pair<std::string, std::int64_t>> places(const Program& program) {
  std::vector<std::pair<std::string, std::int64_t>> all;
  for (const Binding& state : program.states) {
    all.emplace_back(state.name, program[state.tensor.buffer].offsets.at(0) + state.tensor.offset);
  }
  return all;
}

// In any of their slots.
bool overlap(const Buffer& a, const Buffer& b) {
  return std::ranges::any_of(a.offsets, [&](std::int64_t at) {
    return std::ranges::any_of(b.offsets, [&](std::int64_t other) {
      return at < other + b.padded_bytes() && other < at + a.padded_bytes();
    });
  });
}

// The validation program reads the step's parameters where they are, and writes to no byte of any
// state; what it takes beside them is memory that the step has anyway.
TEST(Programs, ShareTheArena) {
  for (const auto& [data, tensor] : {std::pair{1, 1}, {4, 1}, {2, 2}, {1, 4}}) {
    for (const char* preset : {"ddp", "fsdp"}) {
      SCOPED_TRACE(std::to_string(data) + " x " + std::to_string(tensor) + " " + preset);
      const RunConfig config = small_config(data, tensor, preset);
      const PlannedRun run = plan_run(config, small_model());
      const Programs programs = compile(run.plan, run.target);
      const Program& validation = programs.validation.value();
      EXPECT_THAT(places(programs.step), ::testing::IsSupersetOf(places(validation)));
      for (const Binding& state : programs.step.states) {
        for (const Buffer& buffer : validation.buffers) {
          const Buffer& kept = programs.step[state.tensor.buffer];
          const bool is_state = buffer.persistent && buffer.offsets == kept.offsets;
          EXPECT_TRUE(is_state || !overlap(buffer, kept)) << buffer.name << ", " << state.name;
        }
      }
      EXPECT_EQ(programs.arena_bytes(), programs.step.arena_bytes);
      EXPECT_EQ(run_memory(run, programs).arena, programs.arena_bytes());
    }
  }
}

TEST(Programs, ValidateOnlyWhereAsked) {
  RunConfig config = small_config(1, 1, "ddp");
  config.validation.every = 0;
  EXPECT_FALSE(compile(plan_run(config, small_model()).plan, cpu_target()).validation.has_value());
}

TEST(ShareStates, RefusesAProgramOfAnotherModel) {
  const RunConfig config = small_config(1, 1, "ddp");
  const Program step = compile(plan_run(config, small_model()).plan, cpu_target()).step;
  const ModelDescription wider =
      describe_llama({.dim = 24, .layers = 2, .heads = 4, .kv_heads = 4, .ffn = 40, .vocab = 64});
  try {
    share_states(compile(plan_run(config, wider).plan, cpu_target()).step, step);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.what(), HasSubstr("and in program train as"));
  }
}

}  // namespace
}  // namespace tessera
