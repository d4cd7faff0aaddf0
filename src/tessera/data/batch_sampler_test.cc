#include "tessera/data/batch_sampler.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

// The sequences of steps 1 to num_steps, one after the other.
std::vector<std::int64_t> run(const BatchSamplerOptions& options, std::int64_t num_steps) {
  const BatchSampler sampler(options);
  std::vector<std::int64_t> sequences;
  for (std::int64_t step = 1; step <= num_steps; ++step) {
    const std::vector<std::int64_t> batch = sampler.batch(step);
    EXPECT_EQ(static_cast<std::int64_t>(batch.size()), options.global_batch);
    sequences.insert(sequences.end(), batch.begin(), batch.end());
  }
  return sequences;
}

TEST(BatchSampler, WithoutShuffleWrapsInStreamOrder) {
  const BatchSampler sampler({.num_sequences = 5, .global_batch = 3, .shuffle = false});
  EXPECT_THAT(sampler.batch(1), ElementsAre(0, 1, 2));
  EXPECT_THAT(sampler.batch(2), ElementsAre(3, 4, 0));
  EXPECT_THAT(sampler.batch(3), ElementsAre(1, 2, 3));
  EXPECT_THAT(sampler.batch(1'000'000), ElementsAre(2, 3, 4));  // 2,999,997 = 2 mod 5
}

TEST(BatchSampler, EveryEpochVisitsEachSequenceOnce) {
  const std::vector<std::int64_t> sequences =
      run({.seed = 42, .num_sequences = 30, .global_batch = 7}, 30);
  std::vector<std::int64_t> all(30);
  std::iota(all.begin(), all.end(), 0);
  for (auto epoch = sequences.begin(); epoch != sequences.end(); epoch += 30) {
    std::vector<std::int64_t> visited(epoch, epoch + 30);
    EXPECT_NE(visited, all);
    std::sort(visited.begin(), visited.end());
    EXPECT_EQ(visited, all);
  }
}

TEST(BatchSampler, EpochsAndSeedsDrawDifferentOrders) {
  const std::vector<std::int64_t> one =
      run({.seed = 1, .num_sequences = 64, .global_batch = 64}, 2);
  const std::vector<std::int64_t> two =
      run({.seed = 2, .num_sequences = 64, .global_batch = 64}, 2);
  EXPECT_FALSE(std::equal(one.begin(), one.begin() + 64, one.begin() + 64));
  EXPECT_NE(one, two);
}

// The order of the data is one line of sequences that the batch size only cuts.
TEST(BatchSampler, OrderDoesNotDependOnTheBatchSize) {
  const std::vector<std::int64_t> by_one =
      run({.seed = 3, .num_sequences = 10, .global_batch = 1}, 48);
  EXPECT_EQ(by_one, run({.seed = 3, .num_sequences = 10, .global_batch = 4}, 12));
  EXPECT_EQ(by_one, run({.seed = 3, .num_sequences = 10, .global_batch = 24}, 2));
}

TEST(BatchSampler, IsAPureFunctionOfTheStep) {
  const BatchSamplerOptions options{.seed = 7, .num_sequences = 100, .global_batch = 8};
  const BatchSampler sampler(options);
  const std::vector<std::int64_t> late = sampler.batch(1000);
  sampler.batch(1);
  EXPECT_EQ(sampler.batch(1000), late);
  EXPECT_EQ(BatchSampler(options).batch(1000), late);
}

// A resumed run must find the order again with any later build: these values may never change.
TEST(BatchSampler, OrderIsFrozen) {
  const BatchSampler sampler({.seed = 42, .num_sequences = 1000, .global_batch = 4});
  EXPECT_THAT(sampler.batch(1), ElementsAre(334, 261, 910, 611));
  EXPECT_THAT(sampler.batch(251), ElementsAre(594, 756, 155, 907));
}

TEST(BatchSampler, RefusesBadArguments) {
  const auto message = [](const auto& body) -> std::string {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.message();
    }
    return "no error";
  };
  EXPECT_EQ(message([] { BatchSampler({.num_sequences = 0, .global_batch = 4}); }),
            "batches of 4 from 0 sequences: expected at least 1 of both");
  EXPECT_EQ(message([] { BatchSampler({.num_sequences = 1, .global_batch = 1}).batch(0); }),
            "step 0: expected to count from 1");
}

}  // namespace
}  // namespace tessera
