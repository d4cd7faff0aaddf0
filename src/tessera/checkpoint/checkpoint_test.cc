#include "tessera/checkpoint/checkpoint.h"

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/testing/faults.h"
#include "tessera/checkpoint/directory_remover.h"
#include "tessera/checkpoint/file_size_limit.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/require_model.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/ir/dtype.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The state of a model of two parameters in bf16 with f32 master weights.
class State {
 public:
  explicit State(std::uint8_t fill) : bytes_(4096) {
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] = static_cast<std::byte>(i * 7 + fill);
    }
    add("embed", {10, 4});
    add("layers.0.norm", {4});
  }

  std::vector<CheckpointTensor>& tensors() { return tensors_; }

 private:
  void add(const std::string& name, const std::vector<std::int64_t>& shape) {
    const auto count = static_cast<std::size_t>(shape.size() == 1 ? shape[0] : shape[0] * shape[1]);
    const std::span<const std::byte> bytes(bytes_);
    const std::size_t offset = tensors_.size() * 16;
    tensors_.push_back({.name = name,
                        .role = TensorRole::kParameter,
                        .dtype = DType::kBF16,
                        .shape = shape,
                        .data = bytes.subspan(offset, count * 2)});
    for (const TensorRole role :
         {TensorRole::kMoment1, TensorRole::kMoment2, TensorRole::kMaster}) {
      const std::size_t begin = offset + 100 * static_cast<std::size_t>(role);
      tensors_.push_back({.name = name,
                          .role = role,
                          .dtype = DType::kF32,
                          .shape = shape,
                          .data = bytes.subspan(begin, count * 4)});
    }
  }

  std::vector<std::byte> bytes_;
  std::vector<CheckpointTensor> tensors_;
};

constexpr std::string_view kModel = R"({"name":"llama3","dim":4,"vocab":10})";

CheckpointMeta meta_of(std::int64_t step) {
  return {.step = step,
          .applied_steps = step - 1,
          .tokens_seen = step * 2048,
          .seed = 42,
          .model = std::string(kModel),
          .config = "[run]\nseed = 42\n"};
}

Error caught(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kInternal, "no error"};
}

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

void expect_state(const CheckpointReader& reader, State& state) {
  ASSERT_EQ(reader.tensors().size(), state.tensors().size());
  for (const CheckpointTensor& tensor : state.tensors()) {
    const std::vector<std::byte> found = reader.read(tensor.name, tensor.role);
    ASSERT_EQ(found.size(), tensor.data.size());
    EXPECT_TRUE(std::equal(found.begin(), found.end(), tensor.data.begin()))
        << tensor.name << " " << to_string(tensor.role);
  }
  require_model(reader, kModel, state.tensors());
}

void prune(const fs::path& parent, int keep, const fs::path& written = {}) {
  DirectoryRemover remover;
  prune_checkpoints(parent, keep, written, remover);
}

void remove_left(const fs::path& parent) {
  DirectoryRemover remover;
  remove_interrupted_saves(parent, remover);
}

class CheckpointTest : public ::testing::Test {
 protected:
  fs::path save(std::int64_t step, std::uint8_t fill) const {
    State state(fill);
    const fs::path directory = checkpoint_directory(parent_, step);
    save_checkpoint(directory, meta_of(step), state.tensors());
    return directory;
  }

  [[noreturn]] void save_until_killed() const {
    try {
      for (std::int64_t step = 1;; step = step % 5 + 1) {
        save(step, static_cast<std::uint8_t>(step));
        prune(parent_, 2);
      }
    } catch (const std::exception& error) {
      std::cerr << "the saving child: " << error.what() << '\n';
      ::_exit(1);
    }
  }

  TestDirectory root_;
  fs::path parent_ = root_.path() / "run" / "checkpoints";
};

TEST_F(CheckpointTest, WhatIsSavedReadsBack) {
  const fs::path directory = save(400, 1);
  EXPECT_EQ(directory.filename(), "step-00000400");
  EXPECT_THAT(names_in(parent_), ElementsAre("step-00000400"));
  EXPECT_THAT(names_in(directory),
              ElementsAre("manifest.json",
                          "model-00001-of-00001.safetensors",
                          "optimizer-00001-of-00001.safetensors"));
  const CheckpointReader reader(directory);
  EXPECT_EQ(reader.meta(), meta_of(400));
  State state(1);
  expect_state(reader, state);
  reader.verify();
}

// Weights are a file that any reader of the format takes, under the model's own names.
TEST_F(CheckpointTest, WeightsAreAPlainSafetensorsFile) {
  const SafetensorsFile file(save(1, 1) / "model-00001-of-00001.safetensors");
  ASSERT_EQ(file.tensors().size(), 2U);
  ASSERT_NE(file.find("layers.0.norm"), nullptr);
  EXPECT_EQ(file.find("layers.0.norm")->dtype, DType::kBF16);
  EXPECT_THAT(file.find("embed")->shape, ElementsAre(10, 4));
}

TEST_F(CheckpointTest, ManifestDescribesGlobalTensors) {
  const fs::path path = save(1, 1) / "manifest.json";
  const Manifest manifest = parse_manifest(read_file(path), path);
  ASSERT_EQ(manifest.tensors.size(), 8U);
  const ManifestTensor expected{.name = "embed",
                                .role = TensorRole::kMoment1,
                                .dtype = DType::kF32,
                                .shape = {10, 4},
                                .slices = {{.file = "optimizer-00001-of-00001.safetensors",
                                            .key = "moment1/embed",
                                            .part = whole_slice({10, 4})}}};
  EXPECT_THAT(manifest.tensors, ::testing::Contains(expected));
}

TEST_F(CheckpointTest, SplitsIntoFilesOfBoundedSize) {
  State state(3);
  const fs::path directory = checkpoint_directory(parent_, 7);
  // Moments and masters: 160 + 160 | 160 + 16 + 16 + 16.
  save_checkpoint(directory, meta_of(7), state.tensors(), {.max_file_bytes = 320});
  EXPECT_THAT(names_in(directory),
              ElementsAre("manifest.json",
                          "model-00001-of-00001.safetensors",
                          "optimizer-00001-of-00002.safetensors",
                          "optimizer-00002-of-00002.safetensors"));
  expect_state(CheckpointReader(directory), state);
  // A tensor larger than the bound still has a file.
  save_checkpoint(directory, meta_of(7), state.tensors(), {.max_file_bytes = 1});
  EXPECT_EQ(names_in(directory).size(), 9U);
  expect_state(CheckpointReader(directory), state);
}

TEST_F(CheckpointTest, SavingTheSameStepAgainReplacesIt) {
  save(5, 1);
  const fs::path directory = save(5, 2);
  EXPECT_THAT(names_in(parent_), ElementsAre("step-00000005"));
  State state(2);
  expect_state(CheckpointReader(directory), state);
}

// As an import does that converts weights: here the second file comes when the first is written. In
// a process of its own, since a process shows such a line once in ten seconds.
TEST_F(CheckpointTest, ASlowDiskIsToldOf) {
  const std::vector<float> values(std::size_t{1} << 18U, 1.5F);
  std::vector<CheckpointTensor> tensors(2);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i] = {.name = format("w{}", i),
                  .shape = {std::ssize(values)},
                  .data = std::as_bytes(std::span(values))};
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Faults faults({{.call = FaultCall::kWrite, .path = "model-", .delay_seconds = 2.1}});
        save_checkpoint(
            checkpoint_directory(parent_, 1), meta_of(1), tensors, {.max_file_bytes = 1 << 20});
        std::exit(faults.hits() == 1 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0),
      "writing: 2.00 MiB of 2.00 MiB");
}

TEST_F(CheckpointTest, RefusesRepeatedOrMisshapenTensors) {
  State state(1);
  const fs::path directory = checkpoint_directory(parent_, 1);
  state.tensors().push_back(state.tensors()[1]);
  const Error twice = caught([&] { save_checkpoint(directory, meta_of(1), state.tensors()); });
  EXPECT_EQ(twice.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(twice.message(), "moment1 'embed' is in the checkpoint twice");
  state.tensors().pop_back();
  state.tensors()[1].shape = {10, 5};
  const Error shape = caught([&] { save_checkpoint(directory, meta_of(1), state.tensors()); });
  EXPECT_EQ(shape.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(shape.message(), "tensor 'moment1/embed': F32 (10, 5) given 160 bytes of data");
  EXPECT_FALSE(fs::exists(parent_)) << "refused before anything is written";
}

TEST_F(CheckpointTest, NewestIsTheHighestCompleteStep) {
  EXPECT_EQ(find_newest_checkpoint(parent_), std::nullopt);
  const fs::path newest = save(12, 1);
  save(9, 1);
  save(100, 1);
  fs::remove(checkpoint_directory(parent_, 100) / "manifest.json");
  fs::create_directories(parent_ / ".tmp-step-00000200-77");
  fs::create_directories(parent_ / "step-x");
  fs::create_directories(parent_ / "step-99x");
  std::ofstream(parent_ / ".tmp-step-00000200-77" / "manifest.json") << "{}";
  std::ofstream(parent_ / "step-99x" / "manifest.json") << "{}";
  EXPECT_EQ(find_newest_checkpoint(parent_), newest);
}

TEST_F(CheckpointTest, DamageIsNotSkippedInSilence) {
  save(1, 1);
  const fs::path newest = save(2, 1);
  fs::resize_file(newest / "manifest.json", 100);
  EXPECT_EQ(find_newest_checkpoint(parent_), newest);
  const Error error = caught([&] { CheckpointReader reader(newest); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
  EXPECT_THAT(error.message(), HasSubstr((newest / "manifest.json").string()));
}

TEST_F(CheckpointTest, PruneKeepsTheNewest) {
  for (const std::int64_t step : {3, 1, 10, 2}) {
    save(step, 1);
  }
  fs::create_directories(parent_ / "mine");
  prune(parent_, 0);
  EXPECT_THAT(
      names_in(parent_),
      ElementsAre("mine", "step-00000001", "step-00000002", "step-00000003", "step-00000010"));
  prune(parent_, 2);
  EXPECT_THAT(names_in(parent_), ElementsAre("mine", "step-00000003", "step-00000010"));
  prune(root_.path() / "missing", 2);
}

// What it has left may still be going.
TEST_F(CheckpointTest, PruneLeavesWhatAKilledOneLeft) {
  save(1, 1);
  save(2, 2);
  const fs::path left = parent_ / ".tmp-removed-step-00000001";
  fs::create_directory(left);
  std::ofstream(left / "manifest.json") << "a part of what was there";
  prune(parent_, 1);
  EXPECT_THAT(names_in(parent_), ElementsAre(left.filename(), "step-00000002"));
  remove_left(parent_);
  EXPECT_THAT(names_in(parent_), ElementsAre("step-00000002"));
}

// Another rank may have begun the next save.
TEST_F(CheckpointTest, PruneLeavesTemporariesAlone) {
  for (const std::int64_t step : {1, 2}) {
    save(step, 1);
  }
  fs::create_directories(parent_ / ".tmp-step-00000003" / "x");
  fs::create_directories(parent_ / ".tmp-removed-step-00000000" / "x");
  prune(parent_, 1);
  EXPECT_THAT(names_in(parent_),
              ElementsAre(".tmp-removed-step-00000000", ".tmp-step-00000003", "step-00000002"));
  remove_left(parent_);
  EXPECT_THAT(names_in(parent_), ElementsAre("step-00000002"));
  remove_left(root_.path() / "missing");
}

TEST_F(CheckpointTest, PruneNeverTakesTheOneJustWritten) {
  for (const std::int64_t step : {7, 8, 10}) {
    save(step, 1);
  }
  prune(parent_, 1, checkpoint_directory(parent_, 7));
  EXPECT_THAT(names_in(parent_), ElementsAre("step-00000007", "step-00000010"));
}

TEST_F(CheckpointTest, BestIsLinkedAndNotPruned) {
  for (const std::int64_t step : {2, 4, 6, 8}) {
    save(step, 1);
  }
  const auto best = [&] { return fs::read_symlink(parent_ / "best").string(); };
  link_best_checkpoint(parent_, {{8, std::numeric_limits<double>::quiet_NaN()}, {3, 0.1}});
  EXPECT_FALSE(fs::is_symlink(parent_ / "best")) << "no checkpoint has a loss";
  fs::create_directory_symlink("x", parent_ / ".tmp-best");  // as a kill leaves it
  link_best_checkpoint(parent_, {{2, 3.5}, {4, 3.25}, {6, 3.25}, {8, 3.75}, {10, 1.0}});
  EXPECT_EQ(best(), "step-00000004");
  EXPECT_EQ(find_checkpoint(parent_ / "best"), parent_ / "best");
  prune(parent_, 1);
  EXPECT_THAT(names_in(parent_), ElementsAre("best", "step-00000004", "step-00000008"));
  link_best_checkpoint(parent_, {});
  EXPECT_EQ(best(), "step-00000004") << "nothing is known of any other";
  link_best_checkpoint(parent_, {{4, 3.25}, {8, 3.0}});
  EXPECT_EQ(best(), "step-00000008");
  set_aside_checkpoints(parent_, 6);
  link_best_checkpoint(parent_, {});
  EXPECT_FALSE(fs::is_symlink(parent_ / "best")) << "what it named is gone";
}

TEST_F(CheckpointTest, SetAsideAreNeitherFoundNorPruned) {
  EXPECT_THAT(set_aside_checkpoints(parent_, 0), IsEmpty()) << "no such directory";
  for (const std::int64_t step : {6, 8, 10}) {
    save(step, 1);
  }
  EXPECT_THAT(
      set_aside_checkpoints(parent_, 6),
      ElementsAre(parent_ / "abandoned-step-00000010", parent_ / "abandoned-step-00000008"));
  EXPECT_EQ(find_newest_checkpoint(parent_), checkpoint_directory(parent_, 6));
  save(8, 2);
  EXPECT_THAT(set_aside_checkpoints(parent_, 6),
              ElementsAre(parent_ / "abandoned-step-00000008.2"));
  prune(parent_, 1);
  EXPECT_THAT(names_in(parent_),
              ElementsAre("abandoned-step-00000008",
                          "abandoned-step-00000008.2",
                          "abandoned-step-00000010",
                          "step-00000006"));
  State first(1);
  expect_state(CheckpointReader(parent_ / "abandoned-step-00000008"), first);
}

TEST_F(CheckpointTest, FindsWhatAUserNames) {
  EXPECT_EQ(find_checkpoint(root_.path() / "run"), std::nullopt);
  save(3, 1);
  const fs::path newest = save(4, 1);
  EXPECT_EQ(find_checkpoint(root_.path() / "run"), newest);
  EXPECT_EQ(find_checkpoint(newest), newest);
  EXPECT_EQ(find_checkpoint(parent_), newest);
}

// As a directory that may not be searched, which root may: here the system refuses the name.
TEST_F(CheckpointTest, NamesWhyACheckpointCannotBeLookedAt) {
  const fs::path path = root_.path() / std::string(300, 'x');
  const std::string reason =
      format("cannot open {}: File name too long", (path / "manifest.json").string());
  const Error looked = caught([&] { find_checkpoint(path); });
  EXPECT_EQ(looked.code(), ErrorCode::kInvalidData);
  EXPECT_EQ(looked.message(), reason);
  EXPECT_EQ(caught([&] { CheckpointReader reader(path); }).message(), reason);
}

TEST_F(CheckpointTest, NamesTheFirstDifferenceOfAnotherModel) {
  State state(1);
  const fs::path directory = save(1, 1);
  const CheckpointReader reader(directory);
  const auto refusal = [&](std::string_view model,
                           const std::vector<CheckpointTensor>& expected) -> std::string {
    const Error error = caught([&] { require_model(reader, model, expected); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    const std::string prefix =
        format("checkpoint {} belongs to another model: ", directory.string());
    EXPECT_TRUE(error.message().starts_with(prefix)) << error.message();
    constexpr std::string_view kAdvice =
        "; go on with the [model] that its run has, or choose another run.dir";
    EXPECT_TRUE(error.message().ends_with(kAdvice)) << error.message();
    return error.message().substr(prefix.size(),
                                  error.message().size() - prefix.size() - kAdvice.size());
  };
  std::vector<CheckpointTensor> expected = state.tensors();
  expected[4].shape = {8};
  EXPECT_EQ(refusal(kModel, expected), "tensor 'layers.0.norm': found bf16 (4), expected bf16 (8)");
  expected = state.tensors();
  expected.back().dtype = DType::kBF16;
  EXPECT_EQ(refusal(kModel, expected),
            "tensor 'layers.0.norm' (master): found f32 (4), expected bf16 (4)");
  expected = state.tensors();
  expected[4].name = "layers.1.norm";
  EXPECT_EQ(refusal(kModel, expected), "tensor 'layers.1.norm': found none, expected bf16 (4)");
  expected = state.tensors();
  expected.pop_back();
  EXPECT_EQ(refusal(kModel, expected),
            "tensor 'layers.0.norm' (master): found f32 (4), expected none");
  EXPECT_EQ(refusal(R"({"name":"llama3","dim":4,"vocab":12})", state.tensors()),
            "model/vocab: found 10, expected 12");
  EXPECT_EQ(
      refusal(R"({"name":"llama3","dim":4,"vocab":10,"rope":{"theta":5e5}})", state.tensors()),
      "model/rope: found none, expected {\"theta\":500000.0}");
  // The order of keys and white space are no difference.
  require_model(reader, R"({ "dim": 4, "vocab": 10, "name": "llama3" })", state.tensors());
}

// A buffer is a tensor of the model: it lies among the weights, and a checkpoint that lacks one, or
// has one more, is another model's.
TEST_F(CheckpointTest, BuffersAreOfTheModel) {
  State state(1);
  const std::vector<CheckpointTensor> without = state.tensors();
  const std::vector<std::byte> bytes(12, std::byte{7});
  std::vector<CheckpointTensor> with = without;
  with.push_back({.name = "mean",
                  .role = TensorRole::kBuffer,
                  .dtype = DType::kF32,
                  .shape = {3},
                  .data = bytes});
  const fs::path directory = root_.path() / "with";
  save_checkpoint(directory, meta_of(1), with);
  const SafetensorsFile file(directory / "model-00001-of-00001.safetensors");
  EXPECT_NE(file.find("mean"), nullptr);
  const CheckpointReader reader(directory);
  EXPECT_EQ(reader.read("mean", TensorRole::kBuffer), bytes);
  require_model(reader, kModel, with);

  const CheckpointReader lacks(save(1, 1));
  for (const auto scope : {ModelScope::kAll, ModelScope::kWeights}) {
    EXPECT_THAT(caught([&] { require_model(lacks, kModel, with, scope); }).message(),
                HasSubstr("tensor 'mean' (buffer): found none, expected f32 (3)"));
    EXPECT_THAT(caught([&] { require_model(reader, kModel, without, scope); }).message(),
                HasSubstr("tensor 'mean' (buffer): found f32 (3), expected none"));
  }
  with.back().dtype = DType::kBF16;
  EXPECT_THAT(caught([&] { require_model(reader, kModel, with); }).message(),
              HasSubstr("tensor 'mean' (buffer): found f32 (3), expected bf16 (3)"));
}

TEST_F(CheckpointTest, NamesAMissingTensor) {
  const fs::path directory = save(1, 1);
  const Error error =
      caught([&] { CheckpointReader(directory).read("head", TensorRole::kMaster); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
  EXPECT_EQ(error.message(), format("checkpoint {} has no master 'head'", directory.string()));
}

// Rewrites a checkpoint's manifest, with a right checksum.
void edit_manifest(const fs::path& directory, const std::function<void(Manifest&)>& edit) {
  const fs::path path = directory / "manifest.json";
  Manifest manifest = parse_manifest(read_file(path), path);
  edit(manifest);
  write_file_atomic(path, print_manifest(manifest));
}

TEST_F(CheckpointTest, RefusesManifestsThatDoNotMatchTheFiles) {
  const auto refusal = [&](const std::function<void(Manifest&)>& edit) {
    const fs::path directory = save(1, 1);
    edit_manifest(directory, edit);
    const Error error = caught([&] { CheckpointReader reader(directory); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    return error.message();
  };
  EXPECT_EQ(refusal([](Manifest& m) { m.tensors[0].slices.push_back(m.tensors[0].slices[0]); }),
            "tensor 'embed', slice 'embed' of model-00001-of-00001.safetensors: begins at element "
            "0 of its box, expected 40: slices overlap");
  EXPECT_EQ(refusal([](Manifest& m) { m.tensors[0].slices[0].file = "other"; }),
            "tensor 'embed' lies in other, which the manifest does not list");
  EXPECT_EQ(
      refusal([](Manifest& m) { m.tensors[0].slices[0].key = "other"; }),
      "tensor 'other' of model-00001-of-00001.safetensors: found none, expected bf16 (10, 4)");
  EXPECT_EQ(refusal([](Manifest& m) {
              m.tensors[0].shape = {4, 10};
              m.tensors[0].slices[0].part = whole_slice({4, 10});
            }),
            "tensor 'embed' of model-00001-of-00001.safetensors: found bf16 (10, 4), expected "
            "bf16 (4, 10)");
}

TEST_F(CheckpointTest, AFailedSaveLeavesEarlierCheckpointsAlone) {
  const fs::path earlier = save(1, 1);
  // Fails in the weights, in the optimizer's state, and in the manifest.
  for (const rlim_t limit : {0, 300, 1000}) {
    const Error error = caught([&] {
      const FileSizeLimit full(limit);
      save(2, 2);
    });
    EXPECT_EQ(error.code(), ErrorCode::kDeviceError) << "limit " << limit;
    EXPECT_THAT(error.message(), HasSubstr("cannot write " + parent_.string()));
    EXPECT_THAT(error.message(), HasSubstr("File too large"));
    EXPECT_THAT(error.what(), HasSubstr("earlier checkpoints are intact"));
    EXPECT_THAT(names_in(parent_), ElementsAre("step-00000001"));
  }
  State state(1);
  expect_state(CheckpointReader(earlier), state);
  // So does a save over the same step.
  EXPECT_EQ(caught([&] {
              const FileSizeLimit full(1000);
              save(1, 2);
            }).code(),
            ErrorCode::kDeviceError);
  expect_state(CheckpointReader(earlier), state);
}

// Wherever a kill falls, the newest checkpoint is whole, and what is left behind goes when the next
// run starts.
TEST_F(CheckpointTest, AKilledSaveLeavesAWholeCheckpoint) {
  save(1, 1);
  for (int round = 0; round < 10; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      save_until_killed();
    }
    ::usleep(2000 * static_cast<useconds_t>(round + 1));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed by itself";
    const std::optional<fs::path> newest = find_newest_checkpoint(parent_);
    if (!newest) {
      FAIL() << "no checkpoint is left";
    }
    const CheckpointReader reader(*newest);
    State state(static_cast<std::uint8_t>(reader.meta().step));
    expect_state(reader, state);
  }
  remove_left(parent_);
  prune(parent_, 1);
  EXPECT_EQ(names_in(parent_).size(), 1U);
}

TEST_F(CheckpointTest, NamesADirectoryThatCannotBeMade) {
  std::ofstream(root_.path() / "run") << "a file";
  const Error error = caught([&] { save(1, 1); });
  EXPECT_EQ(error.code(), ErrorCode::kDeviceError);
  EXPECT_EQ(error.message(),
            format("cannot create directory {}: File exists", (root_.path() / "run").string()));
}

}  // namespace
}  // namespace tessera
