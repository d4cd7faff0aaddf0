#include "tessera/launch/same_collectives.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/local/local_world.h"
#include "tessera/config/run_config.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/models/llama/llama.h"
#include "tessera/plan/compile.h"
#include "tessera/plan/run_layout.h"
#include "tessera/resolve/make_plan.h"
#include "tessera/resolve/resolve_layout.h"

namespace tessera {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

ModelDescription small_model() {
  return describe_llama(
      {.dim = 24, .layers = 2, .heads = 4, .kv_heads = 4, .ffn = 36, .vocab = 64});
}

RunConfig small_config(std::int64_t data, std::int64_t tensor) {
  RunConfig config;
  config.parallel.ranks = data * tensor;
  config.parallel.data = data;
  config.parallel.tensor = tensor;
  config.data.sequence_length = 16;
  config.train.global_batch = 2 * data;
  config.train.microbatch = 1;
  config.comm.overlap = true;
  return config;
}

// What each rank of `programs.size()` says: its error, or nothing.
std::vector<std::string> say(const std::vector<const Program*>& programs,
                             const Mesh& mesh,
                             bool one_queue = false) {
  LocalWorld world(static_cast<std::int64_t>(programs.size()), {.deadline_seconds = 20});
  std::vector<std::string> said(programs.size());
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<World> self = world.join(static_cast<std::int64_t>(rank));
      std::vector<std::int64_t> everybody(programs.size());
      std::iota(everybody.begin(), everybody.end(), std::int64_t{0});
      const std::unique_ptr<Communicator> all = self->group(everybody);
      try {
        require_same_collectives(*all, *programs[rank], mesh, one_queue);
      } catch (const Error& error) {
        said[rank] = error.what();
      }
    });
  }
  threads.clear();
  return said;
}

TEST(SameCollectives, AreRequiredOfAllRanks) {
  for (const auto& [data, tensor] : {std::pair{4, 1}, {2, 2}, {1, 4}}) {
    const RunConfig config = small_config(data, tensor);
    const Plan plan = plan_run(config, small_model()).plan;
    const Program program = compile(plan, cpu_target()).step;
    EXPECT_THAT(say({4, &program}, plan.layout.mesh), Each("")) << data << " x " << tensor;
  }
}

TEST(SameCollectives, AreReportedByAllRanksWhereOneDiffers) {
  Plan plan = plan_run(small_config(2, 2), small_model()).plan;
  const Program program = compile(plan, cpu_target()).step;
  plan.sequence_length = 32;
  const Program other = compile(plan, cpu_target()).step;
  const std::vector<std::string> said =
      say({&program, &program, &other, &program}, plan.layout.mesh);
  EXPECT_THAT(said[0], HasSubstr("collectives of the ranks do not match: found rank "));
  EXPECT_THAT(said[0], HasSubstr("rank 2 on stream "));
  EXPECT_THAT(said, Each(said[0]));
}

// Ranks of two pipeline ranks need not do the same; those of one must.
TEST(SameCollectives, AreThoseOfTheRanksPlaceAlongThePipeline) {
  Plan plan = plan_run(small_config(2, 2), small_model()).plan;
  plan.layout.mesh = make_mesh(test_cluster({2, 2, 2}), {.data = 2, .tensor = 2, .pipeline = 2});
  const Program first = compile(plan, cpu_target()).step;
  plan.sequence_length = 32;
  const Program last = compile(plan, cpu_target()).step;
  const Mesh& mesh = plan.layout.mesh;
  std::vector<const Program*> programs = {
      &first, &first, &first, &first, &last, &last, &last, &last};
  EXPECT_THAT(say(programs, mesh), Each(""));
  programs[6] = &first;
  const std::vector<std::string> said = say(programs, mesh);
  EXPECT_THAT(said[0], HasSubstr("collectives of the ranks do not match: found rank "));
  EXPECT_THAT(said, Each(said[0]));
}

// Receives that are called early block what follows them where there is one queue: programs for
// devices call them late enough.
TEST(SameCollectives, ComeToAnEndInOneQueueOnDevices) {
  RunConfig config = small_config(1, 1);
  config.parallel.ranks = 2;
  config.parallel.pipeline = 2;
  config.pipeline.schedule = "gpipe";
  config.train.global_batch = 4;
  const Plan plan = plan_run(config, small_model()).plan;
  const Mesh& mesh = plan.layout.mesh;
  for (const bool on_device : {false, true}) {
    const RunPrograms programs = compile_run(plan, on_device ? cuda_target() : cpu_target());
    const std::vector<const Program*> steps = {&programs[0].step, &programs[1].step};
    EXPECT_THAT(say(steps, mesh), Each(""));
    const std::vector<std::string> said = say(steps, mesh, true);
    EXPECT_THAT(said, Each(HasSubstr(on_device ? "" : "wait for each other")));
    EXPECT_EQ(said[0].empty(), on_device);
  }
}

}  // namespace
}  // namespace tessera
