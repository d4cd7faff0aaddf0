// What is left of a run in which a rank fails: the last step that ended, as long as its states are
// whole on some rank.

#include "tessera/train/last_save.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/test_fault_backend.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_saver.h"
#include "tessera/checkpoint/save_directory.h"
#include "tessera/state/test_training.h"
#include "tessera/train/test_run.h"
#include "tessera/train/trainer.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kSteps = 4;
constexpr std::int64_t kFailingStep = 3;

// Calls act(item) for each op that rank 1 runs in the failing step, counted from 0.
class RankOne {
 public:
  explicit RankOne(std::function<void(std::int64_t item)> act) : act_(std::move(act)) {}

  TrainHooks hooks() {
    return {.before_step =
                [this](std::int64_t rank, std::int64_t step) {
                  if (rank == 1) {
                    is_on_ = step == kFailingStep;
                  }
                },
            .wrap_backend = [this](std::int64_t rank,
                                   std::unique_ptr<Backend> backend) -> std::unique_ptr<Backend> {
              return std::make_unique<FaultBackend>(std::move(backend), [this, rank](std::int64_t) {
                if (rank == 1 && is_on_) {
                  act_(next_++);
                }
              });
            }};
  }

 private:
  std::function<void(std::int64_t item)> act_;
  std::atomic<bool> is_on_ = false;
  std::atomic<std::int64_t> next_ = 0;
};

class LastSaveTest : public testing::TestWithParam<std::string> {
 protected:
  RunConfig config(const std::string& run) const {
    RunConfig config = runs_.config(run);
    config.train.steps = kSteps;
    config.train.microbatch = 1;
    config.parallel.ranks = GetParam() == "hsdp@pair" ? 4 : 2;
    config.state.preset = GetParam();
    config.cluster.file =
        format("{}/configs/clusters/virtual-{}.toml", TESSERA_SOURCE_DIR, *config.parallel.ranks);
    config.checkpoint.every = 0;
    config.comm.deadline_seconds = 20;
    return config;
  }

  std::filesystem::path checkpoint(const std::string& run, std::int64_t step) const {
    return checkpoint_directory(runs_.run(run) / "checkpoints", step);
  }

  // Of a run that nothing disturbs: how many ops rank 1 runs in the failing step.
  std::int64_t num_items() const {
    std::atomic<std::int64_t> items = 0;
    RankOne counter([&](std::int64_t) { ++items; });
    train(config("whole"), tiny_llama(), counter.hooks());
    return items;
  }

  // Rank 1 throws at this one; what the run says.
  std::string fail_at(const std::string& run, std::int64_t failing) const {
    RankOne failure([failing](std::int64_t item) {
      if (item == failing) {
        fail(ErrorCode::kDeviceError, "the device is gone");
      }
    });
    return error_of(ErrorCode::kDeviceError,
                    [&] { train(config(run), tiny_llama(), failure.hooks()); });
  }

  std::string state_of(const std::string& run) const {
    std::string all;
    const CheckpointReader reader(checkpoint(run, kSteps));
    for (const ManifestTensor& tensor : reader.tensors()) {
      const std::vector<std::byte> bytes = reader.read(tensor.name, tensor.role);
      all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return all;
  }

  // Goes on to the end; the first step that it runs.
  std::int64_t go_on(const std::string& run) const {
    std::mutex mutex;
    std::int64_t first = kSteps + 1;
    train(config(run), tiny_llama(), {.before_step = [&](std::int64_t, std::int64_t step) {
            const std::scoped_lock lock(mutex);
            first = std::min(first, step);
          }});
    return first;
  }

  TestRun runs_;
};

// In forward, backward and update, at the first instruction and at the last.
TEST_P(LastSaveTest, LosesNoStepThatEnded) {
  constexpr std::int64_t kPlaces = 8;
  const std::int64_t items = num_items();
  ASSERT_GT(items, kPlaces);
  const std::string expected = state_of("whole");
  std::int64_t num_whole = 0;
  for (std::int64_t i = 0; i <= kPlaces; ++i) {
    const std::int64_t item = (items - 1) * i / kPlaces;
    SCOPED_TRACE(format("item {} of {}", item, items));
    const std::string run = format("item-{}", item);
    const std::string message = fail_at(run, item);
    const bool was_updating = message.find("the update of step 3 had begun") != std::string::npos;
    const std::int64_t first = go_on(run);
    // Rank 1 may fail before its update, which the others need nothing of it for: they end it.
    const bool ended_by_others = GetParam() != "fsdp" && first > kFailingStep;
    if (!was_updating && !ended_by_others) {
      EXPECT_THAT(message, HasSubstr("all ranks have saved the state after step 2: the same"));
    }
    num_whole += was_updating ? 0 : 1;
    if (GetParam() != "fsdp") {
      // Another rank has the same states: it may have ended the step, and then did so for both.
      EXPECT_GE(first, was_updating ? kFailingStep + 1 : kFailingStep);
    } else {
      EXPECT_EQ(first, was_updating ? 1 : kFailingStep);
    }
    EXPECT_EQ(state_of(run), expected);
  }
  EXPECT_GE(num_whole, kPlaces - 1);
  if (GetParam() != "hsdp@pair") {  // where what moves beside the update may come last
    EXPECT_LE(num_whole, kPlaces) << "the last instruction is the update's";
  }
}

// Of two ranks that have the same states, one that writes the parts of both.
class StandIn : public testing::Test {
 protected:
  LastSave save() const {
    return {.directory = directory_,
            .options = {.rank = 1, .num_ranks = 2, .launch = "launch"},
            .meta = {.step = 3, .model = "{}", .config = ""},
            .metrics_line = R"({"step":3})",
            .tensors_of = [this](std::int64_t rank) { return std::optional(tensors_of(rank)); },
            .has_states_of = [](std::int64_t /*rank*/, std::int64_t /*other*/) { return true; },
            .patience_seconds = 0.05};
  }

  std::vector<CheckpointTensor> tensors_of(std::int64_t rank) const {
    TensorSlice half = whole_slice({4});
    half.begin = 2 * rank;
    half.count = 2;
    return {
        {.name = "w",
         .shape = {4},
         .slice = half,
         .data = std::as_bytes(std::span(values_).subspan(2 * static_cast<std::size_t>(rank), 2))}};
  }

  void expect_whole() const {
    EXPECT_THAT(finish_interrupted_saves(directory_.parent_path()),
                testing::ElementsAre(directory_));
    const CheckpointReader reader(directory_);
    EXPECT_TRUE(std::ranges::equal(reader.read("w", TensorRole::kParameter),
                                   std::as_bytes(std::span(values_))));
  }

  TestDirectory parent_;
  std::filesystem::path directory_ = checkpoint_directory(parent_.path(), 3);
  std::vector<float> values_ = {1, 2, 3, 4};
};

// Rank 0 was killed before it wrote the step's line.
TEST_F(StandIn, WritesThePartAndTheMetricsOfRankZero) {
  EXPECT_THAT(save_last_step(save()), testing::IsEmpty());
  expect_whole();
  EXPECT_EQ(read_file(directory_ / "metrics.jsonl"), R"({"step":3})");
}

// Its own part was written in the background when the other one was killed.
TEST_F(StandIn, EndsASaveThatWasUnderWay) {
  CheckpointSaver saver(save().options);
  saver.write(directory_, save().meta, tensors_of(1));
  LastSave rest = save();
  rest.under_way = true;
  rest.options.first_attempt = saver.attempt(directory_);
  rest.has_states = false;
  EXPECT_THAT(save_last_step(rest), testing::ElementsAre(0)) << "its update had begun";
  rest.has_states = true;
  EXPECT_THAT(save_last_step(rest), testing::IsEmpty());
  expect_whole();
}

// Long enough that a test that waits so long is one that hangs.
constexpr double kForEver = 1e6;

// Of two ranks that have the same states, one whose state is saved already: the other one may have
// ended the next step.
class SavedRank : public StandIn {
 protected:
  LastSave saved(double patience_seconds) const {
    LastSave last = save();
    last.is_saved = true;
    last.patience_seconds = patience_seconds;
    return last;
  }

  // Of rank 0.
  LastSave save_of_rank_zero(std::int64_t step) const {
    LastSave last = save();
    last.directory = checkpoint_directory(parent_.path(), step);
    last.options.rank = 0;
    last.meta.step = step;
    last.patience_seconds = kForEver;
    return last;
  }

  // What ranks have written of the state after `step`, and which have none of it.
  SaveProgress progress(std::int64_t step) const {
    return look_at_save(
        save_directory(checkpoint_directory(parent_.path(), step), save().options.launch, 0), 2);
  }
};

// Its end would be that of all processes: mpirun ends those that are left.
TEST_F(SavedRank, WaitsForTheStepThatItsReplicaHasEnded) {
  SaveProgress when_back;
  std::thread rank_one([&] {
    EXPECT_THAT(save_last_step(saved(kForEver)), testing::IsEmpty());
    when_back = progress(4);
  });
  while (progress(4).without.empty()) {
    std::this_thread::yield();
  }
  EXPECT_THAT(progress(4).without, testing::ElementsAre(1));
  EXPECT_THAT(save_last_step(save_of_rank_zero(4)), testing::IsEmpty());
  rank_one.join();
  EXPECT_THAT(when_back.written, testing::ElementsAre(0, 1));
  directory_ = checkpoint_directory(parent_.path(), 4);
  expect_whole();
}

// Neither has it: nobody is waited for.
TEST_F(SavedRank, WaitsForNobodyWhereNobodyHasEndedTheNextStep) {
  LastSave rank_zero = save_of_rank_zero(3);
  rank_zero.is_saved = true;
  std::thread other([&] { save_last_step(rank_zero); });
  EXPECT_THAT(save_last_step(saved(kForEver)), testing::IsEmpty());
  other.join();
  EXPECT_THAT(progress(4).without, testing::ElementsAre(0, 1));
}

// Without replicas the next step lacks this rank's part, whoever has ended it.
TEST_F(SavedRank, WaitsForNobodyWhoLacksItsStates) {
  LastSave last = saved(kForEver);
  last.has_states_of = [](std::int64_t rank, std::int64_t other) { return rank == other; };
  EXPECT_THAT(save_last_step(last), testing::IsEmpty());
  EXPECT_THAT(progress(4).without, testing::ElementsAre(1)) << "who waits for it is told";
}

// One that was killed says nothing.
TEST_F(SavedRank, DoesNotWaitForEver) {
  EXPECT_THAT(save_last_step(saved(0.05)), testing::IsEmpty());
  EXPECT_THAT(finish_interrupted_saves(parent_.path()), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Presets,
                         LastSaveTest,
                         testing::Values("ddp", "fsdp", "hsdp@pair"),
                         [](const auto& test) { return test.param.substr(0, 4); });

}  // namespace
}  // namespace tessera
