// Programs of ranks that send tensors to each other: what they compute, and what verify_ranks()
// says of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/local/local_world.h"
#include "tessera/launch/rank_backend.h"
#include "tessera/mesh/cluster.h"
#include "tessera/program/collective_calls.h"
#include "tessera/program/verify_ranks.h"
#include "tessera/runtime/executor.h"
#include "tests/distributed/random_transfers.h"

namespace tessera {
namespace {

constexpr int kSteps = 3;

float input(std::int64_t rank, std::int64_t microbatch) {
  return static_cast<float>(1 + rank) * 0.37F + static_cast<float>(microbatch) * 1.91F;
}

Mesh mesh_of(std::int64_t ranks) {
  return make_mesh(local_cluster(ranks), {.pipeline = ranks});
}

std::vector<std::size_t> each_its_class(std::size_t ranks) {
  std::vector<std::size_t> class_of(ranks);
  std::iota(class_of.begin(), class_of.end(), std::size_t{0});
  return class_of;
}

// What is wrong with the programs of all ranks, or nothing.
std::optional<std::string> fault_of(const std::vector<Program>& programs, bool one_queue) {
  std::vector<CollectiveSequence> classes;
  for (const Program& program : programs) {
    const CollectiveSequence calls = collective_calls(program);
    classes.push_back(one_queue ? in_one_queue(calls) : calls);
  }
  try {
    verify_ranks(mesh_of(std::ssize(programs)), classes, each_its_class(programs.size()));
    return std::nullopt;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return error.what();
  }
}

// "sum" of each rank after a few steps.
std::vector<std::vector<float>> run(const std::vector<Program>& programs) {
  const std::int64_t ranks = std::ssize(programs);
  const Mesh mesh = mesh_of(ranks);
  LocalWorld run(ranks, {.deadline_seconds = 20});
  std::vector<std::vector<float>> sums(programs.size());
  std::vector<std::jthread> threads;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const Program& program = programs[static_cast<std::size_t>(rank)];
      const std::unique_ptr<World> world = run.join(rank);
      const RankBackend backend(*world, mesh, 1);
      Executor executor(program, *backend);
      const auto floats = [&](const Binding& binding, std::int64_t slot) {
        const std::span<std::byte> bytes = executor.bytes(binding, slot);
        return std::span(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float));
      };
      for (std::int64_t m = 0; m < program.num_microbatches; ++m) {
        std::ranges::fill(floats(program.inputs[0], m), input(rank, m));
      }
      for (int step = 0; step < kSteps; ++step) {
        executor.run_step();
      }
      const std::span<float> sum = floats(program.outputs[0], 0);
      sums[static_cast<std::size_t>(rank)].assign(sum.begin(), sum.end());
    });
  }
  threads.clear();
  return sums;
}

void expect_sums(const RandomTransfers& drawn, const std::vector<Program>& programs) {
  const std::vector<std::vector<float>> found = run(programs);
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    float expected = 0.0F;
    for (int step = 0; step < kSteps; ++step) {
      for (const float part : drawn.parts(rank, input)) {
        expected += part;
      }
    }
    EXPECT_THAT(found[rank], ::testing::Each(expected)) << "rank " << rank;
  }
}

TEST(Transfers, OfRandomProgramsComputeWhatTheySend) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    const RandomTransfers drawn = RandomTransfers::draw(seed);
    const std::vector<Program> programs = drawn.programs();
    for (const Program& program : programs) {
      verify(program);
    }
    // All ranks issue their parts of one order: that holds in one queue, too.
    EXPECT_EQ(fault_of(programs, false), std::nullopt);
    EXPECT_EQ(fault_of(programs, true), std::nullopt);
    expect_sums(drawn, programs);
    ASSERT_FALSE(HasFailure());
  }
}

bool are_verified(const std::vector<Program>& programs) {
  try {
    for (const Program& program : programs) {
      verify(program);
    }
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return false;
  }
}

// Two instructions of a rank swapped: what ranks do together comes to an end where it is not
// refused, and with the same sums where nothing else is.
TEST(Transfers, OfProgramsThatAreNotRefusedEnd) {
  int num_refused = 0;
  int num_summed = 0;
  int num_run = 0;
  for (std::uint64_t seed = 1'000; seed < 1'120; ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    const RandomTransfers drawn = RandomTransfers::draw(seed);
    std::vector<Program> programs = drawn.programs();
    std::mt19937_64 random(seed);
    std::vector<Instruction>& work = programs[random() % programs.size()].segments[0].instructions;
    std::vector<std::size_t> moving;
    for (std::size_t i = 0; i < work.size(); ++i) {
      if (work[i].stream != StreamId{0}) {
        moving.push_back(i);
      }
    }
    if (moving.size() < 2) {
      continue;
    }
    const std::size_t first = random() % (moving.size() - 1);
    std::swap(work[moving[first]], work[moving[first + 1]]);
    if (fault_of(programs, false)) {
      ++num_refused;
    } else if (are_verified(programs)) {
      expect_sums(drawn, programs);
      ++num_summed;
    } else {
      run(programs);
      ++num_run;
    }
  }
  EXPECT_GT(num_refused, 5);
  EXPECT_GT(num_summed, 5);
  EXPECT_GT(num_run, 0);
}

}  // namespace
}  // namespace tessera
