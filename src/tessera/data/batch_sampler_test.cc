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
  const BatchSampler sampler(
      {.sources = {{.num_sequences = 5}}, .global_batch = 3, .shuffle = false});
  EXPECT_THAT(sampler.batch(1), ElementsAre(0, 1, 2));
  EXPECT_THAT(sampler.batch(2), ElementsAre(3, 4, 0));
  EXPECT_THAT(sampler.batch(3), ElementsAre(1, 2, 3));
  EXPECT_THAT(sampler.batch(1'000'000), ElementsAre(2, 3, 4));  // 2,999,997 = 2 mod 5
}

TEST(BatchSampler, EveryEpochVisitsEachSequenceOnce) {
  const std::vector<std::int64_t> sequences =
      run({.seed = 42, .sources = {{.num_sequences = 30}}, .global_batch = 7}, 30);
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
      run({.seed = 1, .sources = {{.num_sequences = 64}}, .global_batch = 64}, 2);
  const std::vector<std::int64_t> two =
      run({.seed = 2, .sources = {{.num_sequences = 64}}, .global_batch = 64}, 2);
  EXPECT_FALSE(std::equal(one.begin(), one.begin() + 64, one.begin() + 64));
  EXPECT_NE(one, two);
}

// The order of the data is one line of sequences that the batch size only cuts.
TEST(BatchSampler, OrderDoesNotDependOnTheBatchSize) {
  const std::vector<std::int64_t> by_one =
      run({.seed = 3, .sources = {{.num_sequences = 10}}, .global_batch = 1}, 48);
  EXPECT_EQ(by_one, run({.seed = 3, .sources = {{.num_sequences = 10}}, .global_batch = 4}, 12));
  EXPECT_EQ(by_one, run({.seed = 3, .sources = {{.num_sequences = 10}}, .global_batch = 24}, 2));
}

TEST(BatchSampler, IsAPureFunctionOfTheStep) {
  const BatchSamplerOptions options{
      .seed = 7, .sources = {{.num_sequences = 100}}, .global_batch = 8};
  const BatchSampler sampler(options);
  const std::vector<std::int64_t> late = sampler.batch(1000);
  sampler.batch(1);
  EXPECT_EQ(sampler.batch(1000), late);
  EXPECT_EQ(BatchSampler(options).batch(1000), late);
}

// A resumed run must find the order again with any later build: these values may never change.
TEST(BatchSampler, OrderIsFrozen) {
  const BatchSampler sampler({.seed = 42, .sources = {{.num_sequences = 1000}}, .global_batch = 4});
  EXPECT_THAT(sampler.batch(1), ElementsAre(334, 261, 910, 611));
  EXPECT_THAT(sampler.batch(251), ElementsAre(594, 756, 155, 907));
}

// However a microbatch of 12 is divided, the shares in order are the batch.
TEST(BatchSampler, SharesJoinToTheBatch) {
  const BatchSampler sampler({.seed = 5, .sources = {{.num_sequences = 1000}}, .global_batch = 36});
  for (std::int64_t step = 1; step <= 20; ++step) {
    const std::vector<std::int64_t> batch = sampler.batch(step);
    for (const std::int64_t ranks : {1, 2, 3, 4, 6, 12}) {
      std::vector<std::int64_t> joined;
      for (std::int64_t m = 0; m < 3; ++m) {
        for (std::int64_t place = 0; place < ranks; ++place) {
          const auto share =
              share_of(batch, {.rows = 12 / ranks, .num_data = ranks, .place = place}, m);
          joined.insert(joined.end(), share.begin(), share.end());
        }
      }
      EXPECT_EQ(joined, batch) << ranks << " ranks, step " << step;
    }
  }
}

// Three sources of 7, 100 and 30 sequences, which come in shares of 2, 1 and 1.
BatchSamplerOptions mixture() {
  return {.seed = 5,
          .sources = {{.num_sequences = 7, .weight = 2},
                      {.num_sequences = 100, .weight = 1},
                      {.num_sequences = 30, .weight = 1}},
          .global_batch = 8};
}

TEST(BatchSampler, SourcesTakeTheirSharesEachWithItsOwnEpochs) {
  const std::vector<std::int64_t> sequences = run(mixture(), 100);
  std::vector<std::vector<std::int64_t>> drawn(3);
  for (const std::int64_t sequence : sequences) {
    const std::size_t source = sequence < 7 ? 0 : sequence < 107 ? 1 : 2;
    drawn[source].push_back(sequence);
  }
  EXPECT_NEAR(static_cast<double>(drawn[0].size()), 400, 2);
  EXPECT_NEAR(static_cast<double>(drawn[1].size()), 200, 2);
  EXPECT_NEAR(static_cast<double>(drawn[2].size()), 200, 2);
  const std::vector<std::int64_t> first = {0, 7, 107};
  const std::vector<std::size_t> sizes = {7, 100, 30};
  for (std::size_t source = 0; source < 3; ++source) {
    std::vector<std::int64_t> all(sizes[source]);
    std::iota(all.begin(), all.end(), first[source]);
    std::vector<std::int64_t> last_epoch;
    for (std::size_t at = 0; at + sizes[source] <= drawn[source].size(); at += sizes[source]) {
      const auto begin = drawn[source].begin() + static_cast<std::ptrdiff_t>(at);
      std::vector<std::int64_t> epoch(begin, begin + static_cast<std::ptrdiff_t>(sizes[source]));
      EXPECT_NE(epoch, last_epoch);
      last_epoch = epoch;
      std::sort(epoch.begin(), epoch.end());
      EXPECT_EQ(epoch, all) << "each once an epoch";
    }
  }
}

// Whatever the batch, and however many ranks read a part of it each.
TEST(BatchSampler, AMixtureIsALineThatTheBatchSizeOnlyCuts) {
  BatchSamplerOptions by_one = mixture();
  by_one.global_batch = 1;
  EXPECT_EQ(run(by_one, 800), run(mixture(), 100));
  const BatchSampler sampler(mixture());
  const std::vector<std::int64_t> late = sampler.batch(1'000'000'000);
  EXPECT_EQ(BatchSampler(mixture()).batch(1'000'000'000), late);
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
  EXPECT_EQ(message([] { BatchSampler({.sources = {{.num_sequences = 0}}, .global_batch = 4}); }),
            "batches of 4 from 0 sequences: expected at least 1 of both");
  EXPECT_EQ(message([] {
              BatchSampler({.sources = {{.num_sequences = 1}}, .global_batch = 1}).batch(0);
            }),
            "step 0: expected to count from 1");
  EXPECT_EQ(message([] {
              const std::vector<std::int64_t> batch(8);
              share_of(batch, {.rows = 2, .num_data = 2, .place = 1}, 2);
            }),
            "microbatch 2 of place 1 of 2, 2 rows each: expected to lie in a batch of 8 "
            "sequences");
}

}  // namespace
}  // namespace tessera
