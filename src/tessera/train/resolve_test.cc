#include "tessera/train/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr const char* kTrainedOnGpus = R"(
[run]
dir = "runs/gpus"
device = "cuda"
threads = 3
[model]
name = "llama3"
flavor = "debug"
vocab = 300
[tokenizer]
path = "tokenizer.json"
[data]
files = ["corpus.txt"]
[train]
global_batch = 8
microbatch = 1
[parallel]
ranks = 4
[comm]
reduction = "native"
deadline_seconds = 5
)";

// A checkpoint of GPUs can be sampled and exported where there are none.
TEST(ResolveStored, NeedsNothingOfTheMachineThatTrained) {
  const RunConfig config = resolve_stored(kTrainedOnGpus);
  EXPECT_EQ(config.run.device, "cpu");
  EXPECT_EQ(config.comm.reduction, Reduction::kOrdered);
  EXPECT_EQ(config.parallel.ranks, 4);
  EXPECT_EQ(config.model.vocab, 300);
}

TEST(ResolveStored, NamesWhereABrokenConfigIs) {
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [] { resolve_stored("[model"); }),
              HasSubstr("the checkpoint's config:1:"));
}

}  // namespace
}  // namespace tessera
