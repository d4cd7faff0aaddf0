// Steps whose loss or gradient is not finite: not applied, reported, and after three the end.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/tokenizer/tokenizer.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// Saves the checkpoint again with a NaN in element `index` of a parameter.
void poison(const std::filesystem::path& checkpoint, const std::string& name, std::int64_t index) {
  const CheckpointReader reader(checkpoint);
  std::vector<CheckpointTensor> tensors;
  std::deque<std::vector<std::byte>> bytes;  // does not move what it holds
  bool found = false;
  for (const ManifestTensor& tensor : reader.tensors()) {
    bytes.push_back(reader.read(tensor.name, tensor.role));
    if (tensor.name == name && tensor.role == TensorRole::kParameter) {
      const float nan = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(bytes.back().data() + index * std::int64_t{sizeof nan}, &nan, sizeof nan);
      found = true;
    }
    tensors.push_back({.name = tensor.name,
                       .role = tensor.role,
                       .dtype = tensor.dtype,
                       .shape = tensor.shape,
                       .data = bytes.back()});
  }
  ASSERT_TRUE(found) << name;
  save_checkpoint(checkpoint, reader.meta(), tensors);
}

constexpr std::int64_t kEmbed = 32;

class NotFiniteTest : public TrainingTest {
 protected:
  std::int32_t token_of_z() const {
    const std::vector<std::int32_t> z = Tokenizer::load(path("tokenizer.json")).encode("Z");
    EXPECT_THAT(z, SizeIs(1));
    return z.at(0);
  }

  // The steps of a run in order that see a 'Z' of `text`.
  std::vector<std::int64_t> steps_with_z(const std::string& text) const {
    const Tokenizer tokenizer = Tokenizer::load(path("tokenizer.json"));
    const std::vector<std::int32_t> tokens = tokenizer.encode(text);
    const std::int32_t z = token_of_z();
    std::vector<std::int64_t> steps;
    auto place = static_cast<std::int64_t>(tokenizer.marks().before.size());
    for (const std::int32_t token : tokens) {
      if (token == z) {
        steps.push_back(place / kTokensPerStep + 1);
      }
      ++place;
    }
    return steps;
  }

  bool is_finite(const std::string& run, std::int64_t step) const {
    const json line = json::parse(metrics(run).at(static_cast<std::size_t>(step) - 1));
    EXPECT_EQ(line["step"], step);
    return line["loss"].is_number() && line["grad_norm"].is_number();
  }
};

// The embedding of 'Z' is a NaN, and 'Z' stands in the text of three steps that do not follow each
// other.
TEST_F(NotFiniteTest, StepsAreSkipped) {
  std::string text = corpus_text();
  for (const std::size_t place : {2500, 3300, 4100}) {
    text.insert(place, "Z");
  }
  write_test_file(path("corpus.txt"), text);
  ASSERT_EQ(train("a", {"--data.shuffle=false", "--train.steps=4"}).code, 0);
  const std::vector<std::int64_t> bad = steps_with_z(text);
  ASSERT_THAT(bad, SizeIs(3));
  ASSERT_TRUE(4 < bad[0] && bad[0] + 1 < bad[1] && bad[1] + 1 < bad[2] && bad[2] < 20);

  poison(checkpoint("a"), "tok_embeddings.weight", std::int64_t{token_of_z()} * kEmbed);
  const Outcome outcome = train(
      "a",
      {"--data.shuffle=false", "--train.steps=20", "--checkpoint.every=1", "--checkpoint.keep=0"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (std::int64_t step = 1; step <= 20; ++step) {
    EXPECT_EQ(is_finite("a", step), !std::ranges::count(bad, step)) << step;
  }
  for (const std::int64_t step : bad) {
    EXPECT_THAT(
        outcome.err,
        ContainsRegex(format("warning: step {} is not applied: loss -?nan, gradient norm", step)));
    EXPECT_FALSE(std::filesystem::exists(path("a/checkpoints/" + format("step-{:08}", step))));
    EXPECT_THAT(differing_tensors(checkpoint("a", step + 1), checkpoint("a", step - 1)),
                Not(IsEmpty()));
  }
  EXPECT_EQ(CheckpointReader(checkpoint("a", 20)).meta().applied_steps, 17);
}

TEST_F(NotFiniteTest, ThreeInARowStopTheRun) {
  ASSERT_EQ(train("a", {"--train.steps=4"}).code, 0);
  poison(checkpoint("a"), "norm.weight", 0);
  const Outcome outcome = train("a");
  EXPECT_EQ(outcome.code, 1);
  for (const int step : {5, 6, 7}) {
    EXPECT_THAT(outcome.err, HasSubstr(format("warning: step {} is not applied", step)));
    EXPECT_FALSE(is_finite("a", step)) << step;
  }
  EXPECT_THAT(metrics("a"), SizeIs(7));
  EXPECT_THAT(outcome.err,
              HasSubstr("error: steps 5 to 7 were not finite: training has diverged. Try a lower "
                        "optimizer.lr"));
  EXPECT_THAT(
      outcome.err,
      HasSubstr("They began with a/checkpoints/step-00000004, which may be ruined; there is "
                "no checkpoint before it\n"));
  EXPECT_EQ(checkpoint("a"), checkpoint("a", 4));
}

// Real divergence: with a wild rate one update makes every later step overflow. The state after it
// is kept, and so is what was saved before.
TEST_F(NotFiniteTest, WildLearningRate) {
  ASSERT_EQ(train("a", {"--train.steps=4"}).code, 0);
  ASSERT_EQ(train("b", {"--train.steps=4"}).code, 0);
  const Outcome outcome = train("a", {"--optimizer.lr=1e10", "--checkpoint.keep=1"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("error: steps 6 to 8 were not finite"));
  EXPECT_THAT(outcome.err,
              HasSubstr("They began with a/checkpoints/step-00000005, which may be ruined; "
                        "--checkpoint.resume=a/checkpoints/step-00000004 goes on from the "
                        "checkpoint before it\n"));
  const CheckpointMeta meta = CheckpointReader(checkpoint("a", 5)).meta();
  EXPECT_EQ(meta.step, 5);
  EXPECT_EQ(meta.applied_steps, 5);
  EXPECT_EQ(meta.tokens_seen, 5 * kTokensPerStep);
  EXPECT_THAT(differing_tensors(checkpoint("a", 4), checkpoint("b")), IsEmpty());
  // The run goes on from the one before it with a better rate.
  ASSERT_EQ(train("a", {"--checkpoint.resume=a/checkpoints/step-00000004"}).code, 0);
  ASSERT_EQ(train("b").code, 0);
  expect_same_training("a", "b");
}

TEST_F(NotFiniteTest, WithoutACheckpointTheLastAppliedStepIsSaved) {
  const Outcome outcome = train("a", {"--optimizer.lr=1e10"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("error: steps 2 to 4 were not finite"));
  EXPECT_THAT(
      outcome.err,
      HasSubstr("They began with a/checkpoints/step-00000001, which may be ruined; there is "
                "no checkpoint before it\n"));
  const Outcome saved = train("b", {"--optimizer.lr=1e10", "--checkpoint.every=1"});
  EXPECT_THAT(saved.err, HasSubstr("They began with b/checkpoints/step-00000001, which may be"));
  EXPECT_THAT(differing_tensors(checkpoint("a"), checkpoint("b", 1)), IsEmpty());
  EXPECT_EQ(checkpoint("b"), checkpoint("b", 1)) << "steps that changed nothing are not saved";
}

// Checkpoints go when what came after the newest shows it to be good: of a step that has ruined the
// weights the run keeps the one before, however many saves are due meanwhile and with any `keep`.
TEST_F(NotFiniteTest, GoodCheckpointsOutliveARuinedOne) {
  ASSERT_EQ(train("a", {"--train.steps=4"}).code, 0);
  const std::vector<std::string> wild = {
      "--optimizer.lr=1e10", "--checkpoint.keep=1", "--checkpoint.every=1"};
  const Outcome first = train("a", wild);
  EXPECT_EQ(first.code, 1);
  EXPECT_THAT(first.err, HasSubstr("resume=a/checkpoints/step-00000004 goes on from"));
  EXPECT_EQ(CheckpointReader(checkpoint("a", 4)).meta().step, 4);
  // The ruined one is the newest, and no rate mends it: what to do is said again.
  const Outcome again = train("a", {"--checkpoint.keep=1"});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.err, HasSubstr("They began with a/checkpoints/step-00000005, which may be"));
  EXPECT_THAT(again.err, HasSubstr("resume=a/checkpoints/step-00000004 goes on from"));
  ASSERT_EQ(
      train("a", {"--checkpoint.resume=a/checkpoints/step-00000004", "--checkpoint.keep=1"}).code,
      0);
  EXPECT_FALSE(std::filesystem::exists(path("a/checkpoints/step-00000004")));
}

// Norms hide what overflows: the loss stays that of a model that knows nothing, and a validation
// sees no more. What is left of it is a gradient that is not finite, or none.
TEST_F(NotFiniteTest, NormsDoNotHideARuinedStateAtTheEnd) {
  for (const std::string rate : {"1e20", "1e4"}) {
    SCOPED_TRACE(rate);
    std::filesystem::remove_all(path("a"));
    ASSERT_EQ(train("a", {"--train.steps=4"}).code, 0);
    const Outcome end = train("a",
                              {"--optimizer.lr=" + rate,
                               "--checkpoint.keep=1",
                               "--train.steps=5",
                               "--validation.every=5",
                               "--data.validation_share=0.1"});
    EXPECT_EQ(end.code, 0) << end.err;
    EXPECT_THAT(end.err, HasSubstr("warning: the last step has ruined the weights: after step 5 "));
    EXPECT_THAT(end.err, HasSubstr("resume=a/checkpoints/step-00000004 goes on from the one"));
    EXPECT_EQ(CheckpointReader(checkpoint("a", 4)).meta().step, 4);
    // Nor do steps from there on take the good one.
    const Outcome more = train("a", {"--checkpoint.keep=1", "--train.steps=7"});
    EXPECT_EQ(more.code, 0) << more.err;
    EXPECT_EQ(CheckpointReader(checkpoint("a", 4)).meta().step, 4);
  }
}

// A run that ends among such steps is saved as of the step before them, not as another one.
TEST_F(NotFiniteTest, TheEndSavesTheLastAppliedStep) {
  ASSERT_EQ(train("a", {"--train.steps=4"}).code, 0);
  const Outcome outcome =
      train("a", {"--optimizer.lr=1e10", "--checkpoint.keep=0", "--train.steps=7"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("warning: step 7 is not applied"));
  EXPECT_THAT(outcome.out,
              HasSubstr("(step 5: the steps after it, up to 7, were not finite and changed "
                        "nothing)\n"));
  EXPECT_EQ(checkpoint("a"), checkpoint("a", 5));
  EXPECT_EQ(CheckpointReader(checkpoint("a", 4)).meta().step, 4);
}

// One sequence of one token a step: where a document ends, no label counts.
TEST_F(NotFiniteTest, AStepWithoutLabelsIsNotOneOfThem) {
  std::string text;
  for (int i = 0; i < 10; ++i) {
    text += "a|";
  }
  write_test_file(path("documents.txt"), text);
  ASSERT_EQ(train("a", {"--train.steps=4"}).code, 0);
  poison(checkpoint("a"), "norm.weight", 0);
  // Tokens 3 n: begin of text, 3 n + 1: "a", 3 n + 2: end of text; step n starts at token n - 1.
  const Outcome outcome = train("a",
                                {"--data.files=documents.txt",
                                 "--data.document_separator=|",
                                 "--data.mask_boundary=true",
                                 "--data.shuffle=false",
                                 "--data.sequence_length=1",
                                 "--train.global_batch=1",
                                 "--train.microbatch=1"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err,
              HasSubstr("warning: step 6 is not applied: none of its labels counts "
                        "(data.mask_boundary)\n"));
  for (const int step : {5, 7, 8}) {
    EXPECT_THAT(outcome.err, HasSubstr(format("warning: step {} is not applied: loss", step)));
  }
  EXPECT_THAT(outcome.err, HasSubstr("error: steps 5 to 8 were not finite"));
}

}  // namespace
}  // namespace tessera
