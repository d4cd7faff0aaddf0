// Runs that start from the weights of a checkpoint, and vocabularies that grow when they do.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/safetensors.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

constexpr std::size_t kVocab = 300;

struct StartCase {
  std::string name;
  std::string keys;
  std::string embedding;
  std::string head;
};

class StartWeightsTest : public TrainingTest, public testing::WithParamInterface<StartCase> {
 protected:
  StartWeightsTest() {
    write_run("base.toml", GetParam().keys);
    run("base.toml", "base", {"--train.steps=6"});
  }

  void write_run(const std::string& file, const std::string& keys) const {
    write_test_file(path(file), format("[model]\nname = \"{}\"\n{}", GetParam().name, keys) + R"(
[run]
threads = 1
[tokenizer]
path = "tokenizer.json"
train_vocab = 300
[data]
files = ["corpus.txt"]
sequence_length = 32
[train]
steps = 2
global_batch = 4
microbatch = 2
[optimizer]
lr = 3e-3
[schedule]
warmup = 0
decay_ratio = 0.0
)");
  }

  Outcome start(const std::string& file,
                const std::string& dir,
                std::vector<std::string> overrides = {}) const {
    overrides.insert(overrides.begin(), {"train", file, "--run.dir=" + dir});
    return tessera(overrides);
  }

  void run(const std::string& file,
           const std::string& dir,
           std::vector<std::string> overrides = {}) const {
    const Outcome outcome = start(file, dir, std::move(overrides));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }

  // As tokenizer.json, with two more tokens.
  void write_chat_tokenizer() const {
    Json tokenizer = Json::parse(read_file(path("tokenizer.json")));
    Json mark = tokenizer["added_tokens"][0];
    for (const char* content : {"<|im_start|>", "<|im_end|>"}) {
      mark["id"] = kVocab + tokenizer["added_tokens"].size() - 2;
      mark["content"] = content;
      tokenizer["added_tokens"].push_back(mark);
    }
    write_test_file(path("chat.json"), tokenizer.dump());
  }

  // A tensor of what the run's newest checkpoint exports.
  std::vector<float> exported(const std::string& dir, const std::string& tensor) const {
    const std::string out = dir + "-out";
    if (!std::filesystem::exists(path(out))) {
      EXPECT_EQ(tessera({"checkpoint", "export", dir, out}).code, 0);
    }
    const SafetensorsFile file(path(out) / "model.safetensors");
    const SafetensorsTensor* const found = file.find(tensor);
    EXPECT_NE(found, nullptr) << tensor;
    std::vector<float> values(found->data.size() / sizeof(float));
    std::memcpy(values.data(), found->data.data(), found->data.size());
    return values;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Families,
    StartWeightsTest,
    testing::Values(
        StartCase{"llama3",
                  "dim = 32\nlayers = 2\nheads = 4\nkv_heads = 2\nffn = 64\nvocab = 300",
                  "model.embed_tokens.weight",
                  "lm_head.weight"},
        StartCase{"gpt2",
                  "dim = 32\nlayers = 2\nheads = 4\nffn = 64\nvocab = 300\npadded_vocab = 304\n"
                  "positions = 40",
                  "transformer.wte.weight",
                  "transformer.wte.weight"},
        StartCase{"neox",
                  "dim = 32\nlayers = 2\nheads = 4\nffn = 64\nvocab = 300\npadded_vocab = 304",
                  "gpt_neox.embed_in.weight",
                  "embed_out.weight"}),
    [](const auto& family) { return family.param.name; });

// A checkpoint, its run, and its export are one start; on any layout and in any dtype.
TEST_P(StartWeightsTest, AreThoseOfACheckpoint) {
  ASSERT_EQ(tessera({"checkpoint", "export", "base", "out"}).code, 0);
  const std::vector<std::vector<std::string>> layouts = {
      {},
      {"--train.dtype=bf16"},
      {"--parallel.ranks=2", "--state.preset=fsdp", "--train.microbatch=1"},
      {"--parallel.ranks=2", "--parallel.tensor=2", "--train.dtype=bf16"},
      {"--lora.rank=2"}};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    // A directory does not say how its vocabulary was padded, which sums depend on.
    const bool is_padded = GetParam().name != "llama3";
    write_run("from.toml", format("weights = \"out\"{}", is_padded ? "\npadded_vocab = 304" : ""));
    run("from.toml", format("expected-{}", i), layouts[i]);
    write_run("from.toml", "weights = \"base\"");
    run("from.toml", format("found-{}", i), layouts[i]);
    EXPECT_EQ(numbers(format("found-{}", i)), numbers(format("expected-{}", i)));
  }
  for (const char* const weights : {"base/checkpoints", "base/checkpoints/step-00000006"}) {
    write_run("from.toml", format("weights = \"{}\"", weights));
    run("from.toml", "again");
    EXPECT_EQ(numbers("again"), numbers("expected-0")) << weights;
    std::filesystem::remove_all(path("again"));
  }
  // What a run in bf16 knows more exactly: its f32 masters.
  write_run("from.toml", "weights = \"found-1\"");
  run("from.toml", "wide", {"--train.steps=1"});
  write_run("from.toml", "weights = \"wide\"");
  run("from.toml", "resumed", {"--train.steps=1"});
  std::filesystem::rename(path("wide"), path("moved"));
  const Outcome resumed = start("from.toml", "resumed", {"--train.steps=2"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("model.weights = \"wide\" is not there any more"));

  write_run("from.toml", "weights = \"found-4\"");
  const Outcome adapted = start("from.toml", "x");
  EXPECT_EQ(adapted.code, 3);
  EXPECT_THAT(adapted.err, HasSubstr("has low-rank adapters beside its weights"));
  write_run("from.toml", "weights = \"base\"\ndim = 64");
  const Outcome other = start("from.toml", "x");
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("model.weights = \"base\" is another model"));
  write_run("from.toml", "weights = \"nowhere\"");
  EXPECT_THAT(start("from.toml", "x").err, HasSubstr("\"nowhere\" does not exist"));
  std::filesystem::create_directory(path("empty"));
  write_run("from.toml", "weights = \"empty\"");
  EXPECT_THAT(start("from.toml", "x").err, HasSubstr("has neither config.json nor a checkpoint"));
}

// One flipped bit.
TEST_P(StartWeightsTest, OfACheckpointAreChecked) {
  std::filesystem::path damaged;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint("base"))) {
    if (entry.path().extension() == ".safetensors") {
      damaged = entry.path();
    }
  }
  std::string bytes = read_file(damaged);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
  write_test_file(damaged, bytes);
  write_run("from.toml", "weights = \"base\"");
  const Outcome refused = start("from.toml", "x");
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, HasSubstr(damaged.filename().string()));
}

TEST_P(StartWeightsTest, GetRowsForMoreTokens) {
  write_chat_tokenizer();
  ASSERT_EQ(tessera({"checkpoint", "export", "base", "base-out"}).code, 0);
  write_run("small.toml", "weights = \"base\"\nvocab = 302");
  const Outcome small = start("small.toml", "x", {"--tokenizer.path=chat.json"});
  EXPECT_EQ(small.code, 2);
  EXPECT_THAT(small.err, HasSubstr("model.grow_vocab = true adds the ids"));
  for (const std::string weights : {"base", "base-out"}) {
    write_run("grow.toml", format("weights = \"{}\"\ngrow_vocab = true", weights));
    const std::vector<std::vector<std::string>> layouts = {
        {},
        {"--parallel.ranks=2", "--state.preset=fsdp", "--train.microbatch=1"},
        {"--parallel.ranks=2", "--parallel.tensor=2"}};
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      std::vector<std::string> with = {"--tokenizer.path=chat.json",
                                       "--train.steps=1",
                                       "--optimizer.lr=1e-30",
                                       "--optimizer.weight_decay=0"};
      with.insert(with.end(), layouts[i].begin(), layouts[i].end());
      const std::string grown = format("grown-{}-{}", weights, i);
      run("grow.toml", grown, with);
      for (const std::string& table : {GetParam().embedding, GetParam().head}) {
        const auto before = exported("base", table);
        const auto after = exported(grown, table);
        const std::size_t width = before.size() / kVocab;
        ASSERT_EQ(after.size(), (kVocab + 2) * width);
        EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin())) << grown;
        for (std::size_t column = 0; column < width; ++column) {
          double mean = 0;
          for (std::size_t row = 0; row < kVocab; ++row) {
            mean += before[row * width + column] / static_cast<double>(kVocab);
          }
          for (const std::size_t row : {kVocab, kVocab + 1}) {
            ASSERT_NEAR(after[row * width + column], mean, 1e-7 + 1e-6 * std::abs(mean)) << grown;
          }
        }
      }
    }
  }
}

// Pretrained without the tokens of a chat, then taught them.
TEST_P(StartWeightsTest, LearnToChatWithNewTokens) {
  write_chat_tokenizer();
  std::string lines;
  for (int i = 0; i < 12; ++i) {
    lines += Json{{"messages",
                   {{{"role", "user"}, {"content", "Line?"}},
                    {{"role", "assistant"}, {"content", "ZZ"}}}}}
                 .dump() +
             "\n";
  }
  write_test_file(path("chat.jsonl"), lines);
  write_run("chat.toml", "weights = \"base\"\ngrow_vocab = true");
  const std::vector<std::string> with = {"--tokenizer.path=chat.json",
                                         "--data.files=chat.jsonl",
                                         "--data.format=chat",
                                         "--data.sequence_length=40",
                                         "--train.steps=40",
                                         "--optimizer.lr=1e-2"};
  run("chat.toml", "chat", with);
  // It goes on as the model that it has become.
  std::vector<std::string> more = with;
  more[4] = "--train.steps=42";
  run("chat.toml", "chat", more);
  const Outcome answer =
      tessera({"generate", "chat", "--chat", "--prompt=Line?", "--tokens=8", "--temperature=0"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("ZZ"));
  ASSERT_EQ(tessera({"checkpoint", "export", "chat", "out"}).code, 0);
  EXPECT_EQ(Json::parse(read_file(path("out/config.json"))).at("vocab_size"), kVocab + 2);
  ASSERT_EQ(tessera({"checkpoint", "import", "out", "-o", "in"}).code, 0);
  ASSERT_EQ(tessera({"checkpoint", "export", "in", "again"}).code, 0);
  EXPECT_EQ(read_file(path("again/model.safetensors")), read_file(path("out/model.safetensors")));
}

}  // namespace
}  // namespace tessera
