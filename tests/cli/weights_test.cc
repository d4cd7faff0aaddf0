// Weights in Hugging Face's form from outside: every family trains, goes out, comes in as a
// checkpoint and as the start of another run.

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

struct FamilyCase {
  std::string name;
  std::string keys;
};

class WeightsTest : public TrainingTest, public testing::WithParamInterface<FamilyCase> {
 protected:
  void write_run(const std::string& file, const std::string& model) const {
    write_file_atomic(path(file), "[model]\n" + model + R"(
[run]
threads = 1
[tokenizer]
path = "tokenizer.json"
train_vocab = 300
[data]
files = ["corpus.txt"]
sequence_length = 32
[train]
steps = 6
global_batch = 4
microbatch = 2
[optimizer]
lr = 3e-3
[schedule]
warmup = 0
decay_ratio = 0.0
)");
  }

  void train_file(const std::string& file,
                  const std::string& run,
                  std::vector<std::string> overrides = {}) const {
    overrides.insert(overrides.begin(), {"train", file, "--run.dir=" + run});
    const Outcome outcome = tessera(overrides);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }

  double loss(const std::string& run, std::size_t step) const {
    return nlohmann::json::parse(metrics(run).at(step)).at("loss");
  }

  std::map<std::string, std::string> files(const std::string& directory) const {
    std::map<std::string, std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(path(directory))) {
      all[entry.path().filename().string()] = read_file(entry.path());
    }
    return all;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Families,
    WeightsTest,
    testing::Values(
        FamilyCase{"llama3",
                   "dim = 32\nlayers = 2\nheads = 4\nkv_heads = 2\nffn = 64\nvocab = 300"},
        FamilyCase{"gpt2",
                   "dim = 32\nlayers = 2\nheads = 4\nffn = 64\nvocab = 300\npadded_vocab = 304\n"
                   "positions = 40"},
        FamilyCase{"neox",
                   "dim = 32\nlayers = 2\nheads = 4\nffn = 64\nvocab = 300\npadded_vocab = 304"}),
    [](const auto& family) { return family.param.name; });

TEST_P(WeightsTest, GoOutAndComeInAgain) {
  const std::string name = format("name = \"{}\"\n", GetParam().name);
  write_run("family.toml", name + GetParam().keys);
  train_file("family.toml", "a");
  ASSERT_THAT(metrics("a"), SizeIs(6));
  EXPECT_LT(loss("a", 5), loss("a", 0) - 0.2);
  ASSERT_EQ(tessera({"checkpoint", "export", "a", "out"}).code, 0);

  const Outcome imported = tessera({"checkpoint", "import", "out", "-o", "in"});
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_EQ(imported.out, "in: a checkpoint of step 0\n");
  EXPECT_EQ(tessera({"checkpoint", "verify", "in"}).code, 0);
  ASSERT_EQ(tessera({"checkpoint", "export", "in", "again"}).code, 0);
  EXPECT_EQ(files("again"), files("out"));

  // A run that starts from them is where the first one ended, on one rank or two, and takes the
  // sizes from config.json.
  write_run("from.toml", name + "weights = \"out\"");
  train_file("from.toml", "b", {"--train.steps=2"});
  train_file("family.toml", "c", {"--train.steps=1"});
  EXPECT_EQ(loss("c", 0), loss("a", 0));
  EXPECT_LT(loss("b", 0), loss("a", 0) - 0.2);
  train_file(
      "from.toml",
      "two",
      {"--train.steps=2", "--parallel.ranks=2", "--state.preset=fsdp", "--train.microbatch=1"});
  train_file("from.toml", "cut", {"--train.steps=2", "--parallel.ranks=2", "--parallel.tensor=2"});
  for (const char* run : {"two", "cut"}) {
    EXPECT_NEAR(loss(run, 0), loss("b", 0), 1e-6 * loss("b", 0)) << run;
    EXPECT_NEAR(loss(run, 1), loss("b", 1), 1e-4 * loss("b", 1)) << run;
  }

  // A checkpoint needs the directory no more.
  std::filesystem::rename(path("out"), path("gone"));
  const Outcome sample = tessera({"generate", "b", "--prompt", "Line 7", "--tokens=3"});
  EXPECT_EQ(sample.code, 0) << sample.err;
}

// The model's last ids have no token. It may predict them, and does when chance alone chooses.
TEST_P(WeightsTest, TakeATokenizerOfFewerEntries) {
  write_run("family.toml", format("name = \"{}\"\n", GetParam().name) + GetParam().keys);
  std::vector<std::string> more = {"--train.steps=2", "--model.vocab=400"};
  if (GetParam().name != "llama3") {
    more.emplace_back("--model.padded_vocab=416");
  }
  train_file("family.toml", "a", more);
  ASSERT_EQ(tessera({"checkpoint", "export", "a", "out"}).code, 0);
  ASSERT_EQ(tessera({"checkpoint", "import", "out", "-o", "in"}).code, 0);
  ASSERT_EQ(tessera({"checkpoint", "export", "in", "again"}).code, 0);
  EXPECT_EQ(files("again"), files("out"));
  EXPECT_THAT(files("out").at("config.json"), HasSubstr("\"vocab_size\": 400"));
  for (const std::string model : {"a", "in"}) {
    const Outcome sample =
        tessera({"generate", model, "--prompt=L", "--tokens=30", "--temperature=1000"});
    EXPECT_EQ(sample.code, 0) << sample.err;
    const Outcome eval = tessera({"eval", model, "--data", "corpus.txt"});
    EXPECT_EQ(eval.code, 0) << eval.err;
  }
  train_file("family.toml", "b", {"--train.steps=1", "--model.weights=out", more[1], more.back()});
  const Outcome fewer = tessera(
      {"train", "family.toml", "--run.dir=c", "--model.vocab=299", "--tokenizer.train_vocab=0"});
  EXPECT_EQ(fewer.code, 2);
  EXPECT_THAT(fewer.err, HasSubstr("has 300 entries, the model only 299"));
}

TEST_P(WeightsTest, MustBeOfTheModel) {
  const std::string name = format("name = \"{}\"\n", GetParam().name);
  write_run("family.toml", name + GetParam().keys);
  train_file("family.toml", "a", {"--train.steps=1"});
  ASSERT_EQ(tessera({"checkpoint", "export", "a", "out"}).code, 0);
  const Outcome other =
      tessera({"train", "family.toml", "--run.dir=b", "--model.weights=out", "--model.layers=3"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("model.weights = \"out\" is another model: found {\"family\""));
  const std::string wrong = GetParam().name == "gpt2" ? "neox" : "gpt2";
  write_run("wrong.toml", format("name = \"{}\"\nweights = \"out\"", wrong));
  const Outcome family = tessera({"train", "wrong.toml", "--run.dir=c"});
  EXPECT_EQ(family.code, 2);
  EXPECT_THAT(
      family.err,
      HasSubstr(format("model.name: found \"{}\", expected \"{}\"", wrong, GetParam().name)));
  std::filesystem::remove(path("out/model.safetensors"));
  const Outcome missing = tessera({"train", "family.toml", "--run.dir=d", "--model.weights=out"});
  EXPECT_EQ(missing.code, 3);
  EXPECT_THAT(missing.err, HasSubstr("out has neither model.safetensors nor"));
}

}  // namespace
}  // namespace tessera
