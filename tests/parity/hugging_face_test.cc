// Weights that are exported for Hugging Face's transformers, from a checkpoint of many slices: bit
// by bit what an independent script makes of the same weights, and the logits that it computes with
// them in transformers' formulation are ours. The golden comes from
// tests/golden/make_hugging_face_goldens.py.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_saver.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/config/config.h"
#include "tessera/models/llama/llama.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/resolve/resolve.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/training_state.h"
#include "tessera/weights/export_weights.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

const fs::path kGoldens = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/llama";
constexpr std::int64_t kRanks = 3;

RunConfig golden_config() {
  const auto sizes = nlohmann::json::parse(read_file(kGoldens / "golden.json")).at("config");
  RunConfig config;
  config.model.dim = sizes.at("dim");
  config.model.layers = sizes.at("layers");
  config.model.heads = sizes.at("heads");
  config.model.kv_heads = sizes.at("kv_heads");
  config.model.ffn = sizes.at("ffn");
  config.model.vocab = sizes.at("vocab");
  config.data.files = {"none"};
  config.data.sequence_length = 24;
  config.run.dir = "none";
  config.tokenizer.path = "none";
  return resolve(config);
}

// What rank `rank` has of the tensors: of each dim 0 cut over the ranks where it divides, else a
// flat third.
TensorSlice slice_of(const std::vector<std::int64_t>& shape, std::int64_t rank) {
  TensorSlice slice = whole_slice(shape);
  if (shape[0] % kRanks == 0) {
    slice.extent[0] /= kRanks;
    slice.offset[0] = slice.extent[0] * rank;
    slice.count /= kRanks;
    return slice;
  }
  const std::int64_t each = (slice.count + kRanks - 1) / kRanks;
  slice.begin = rank * each;
  slice.count = std::min(each, slice.count - slice.begin);
  return slice;
}

class HuggingFaceExport : public testing::Test {
 protected:
  void save(const SafetensorsFile& weights) const {
    std::vector<std::unique_ptr<CheckpointSaver>> savers;
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      std::vector<CheckpointTensor> tensors;
      for (const SafetensorsTensor& weight : weights.tensors()) {
        for (const TensorRole role :
             {TensorRole::kParameter, TensorRole::kMoment1, TensorRole::kMoment2}) {
          const TensorSlice slice = slice_of(weight.shape, rank);
          const std::int64_t row = slice.extent[0] == 0 ? 0 : slice.count / slice.extent[0];
          const std::int64_t first = slice.begin + slice.offset[0] * (is_box(slice) ? row : 0);
          tensors.push_back(
              {.name = weight.name,
               .role = role,
               .shape = weight.shape,
               .slice = slice,
               .data = weight.data.subspan(static_cast<std::size_t>(first) * 4,
                                           static_cast<std::size_t>(slice.count) * 4)});
        }
      }
      savers.push_back(std::make_unique<CheckpointSaver>(
          SaverOptions{.rank = rank, .num_ranks = kRanks, .launch = "launch"}));
      savers.back()->write(
          checkpoint_,
          {.step = 1, .model = resolve_model(config_).json, .config = to_toml(config_)},
          tensors);
      ASSERT_EQ(savers.back()->status(), SaveStatus::kWritten) << savers.back()->error().what();
    }
    for (const auto& saver : savers) {
      saver->finish();
    }
  }

  // Ours, of each position.
  std::vector<float> logits(std::span<const std::int32_t> tokens) const {
    const auto backend = make_cpu_backend(2);
    const Graph graph =
        generation_graph(resolve_model(config_), config_.data.sequence_length, config_.train.dtype);
    const Program program = compile_forward(graph, {.workspace_bytes = workspace_of(*backend)});
    Executor executor(program, *backend);
    load_state(executor, parameter_inits(graph), CheckpointReader(checkpoint_));
    const auto input = [&](const char* name) {
      return reinterpret_cast<std::int32_t*>(
          executor.bytes(find_binding(program.inputs, name)).data());
    };
    std::vector<float> all;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::ranges::copy(tokens, input("tokens"));
      std::iota(
          input("positions"), input("positions") + config_.data.sequence_length, std::int32_t{0});
      input("last")[0] = static_cast<std::int32_t>(i);
      executor.run_step();
      const auto bytes = executor.bytes(find_binding(program.outputs, "logits"));
      const auto* first = reinterpret_cast<const float*>(bytes.data());
      all.insert(all.end(), first, first + bytes.size() / sizeof(float));
    }
    return all;
  }

  TestDirectory directory_;
  fs::path checkpoint_ = checkpoint_directory(directory_.path() / "checkpoints", 1);
  RunConfig config_ = golden_config();
};

TEST_F(HuggingFaceExport, IsWhatTheScriptMakesOfTheSameWeights) {
  save(SafetensorsFile(kGoldens / "weights.safetensors"));
  const SafetensorsFile golden(kGoldens / "hugging_face.safetensors");
  for (const std::int64_t max_file_bytes : {std::int64_t{1} << 30U, std::int64_t{50'000}}) {
    const fs::path output = directory_.path() / format("out-{}", max_file_bytes);
    export_weights({.checkpoint = checkpoint_, .output = output, .max_file_bytes = max_file_bytes});
    std::set<std::string> found;
    const auto compare = [&](const fs::path& path) {
      const SafetensorsFile file(path);
      for (const SafetensorsTensor& tensor : file.tensors()) {
        const SafetensorsTensor* expected = golden.find(tensor.name);
        ASSERT_NE(expected, nullptr) << tensor.name;
        EXPECT_EQ(tensor.shape, expected->shape) << tensor.name;
        EXPECT_TRUE(std::ranges::equal(tensor.data, expected->data)) << tensor.name;
        EXPECT_TRUE(found.insert(tensor.name).second);
      }
    };
    if (fs::exists(output / "model.safetensors")) {
      EXPECT_FALSE(fs::exists(output / "model.safetensors.index.json"));
      compare(output / "model.safetensors");
    } else {
      const auto index = nlohmann::json::parse(read_file(output / "model.safetensors.index.json"));
      std::set<std::string> files;
      for (const auto& [name, file] : index.at("weight_map").items()) {
        files.insert(file.get<std::string>());
        EXPECT_NE(SafetensorsFile(output / file.get<std::string>()).find(name), nullptr);
      }
      EXPECT_GT(files.size(), 3U);
      for (const std::string& file : files) {
        compare(output / file);
      }
    }
    // And the golden's tokens and logits.
    EXPECT_EQ(found.size() + 2, golden.tensors().size());
    EXPECT_EQ(nlohmann::json::parse(read_file(output / "config.json")).at("hidden_size"), 48);
  }
}

TEST_F(HuggingFaceExport, OfDamagedWeightsIsNothing) {
  save(SafetensorsFile(kGoldens / "weights.safetensors"));
  const fs::path output = directory_.path() / "out";
  const auto damage = [&](const char* file) {
    std::string bytes = read_file(checkpoint_ / file);
    bytes.back() = static_cast<char>(bytes.back() + 1);
    write_test_file(checkpoint_ / file, bytes);
  };
  // No weight is in it.
  damage("rank-00001-optimizer-00001-of-00001.safetensors");
  export_weights({.checkpoint = checkpoint_, .output = output});
  EXPECT_TRUE(fs::exists(output / "config.json"));
  fs::remove_all(output);
  const char* weights = "rank-00001-model-00001-of-00001.safetensors";
  damage(weights);
  EXPECT_THAT(error_of(ErrorCode::kInvalidData,
                       [&] { export_weights({.checkpoint = checkpoint_, .output = output}); }),
              testing::HasSubstr((checkpoint_ / weights).string() + ": found checksum "));
  EXPECT_FALSE(fs::exists(output));
}

TEST_F(HuggingFaceExport, ItsLogitsAreOurs) {
  save(SafetensorsFile(kGoldens / "weights.safetensors"));
  const SafetensorsFile golden(kGoldens / "hugging_face.safetensors");
  const auto values = [&]<class T>(const char* name, T /*like*/) {
    const std::span<const std::byte> data = golden.find(name)->data;
    std::vector<T> result(data.size() / sizeof(T));
    std::memcpy(result.data(), data.data(), data.size());
    return result;
  };
  const std::vector<float> found = logits(values("tokens", std::int32_t{}));
  const std::vector<float> expected = values("logits", float{});
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], 2e-5F) << "logit " << i;
  }
}

}  // namespace
}  // namespace tessera
