// Weights in Hugging Face's form from outside: every family trains, goes out, comes in as a
// checkpoint and as the start of another run.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/half.h"
#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/safetensors.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::Not;
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

  // The weights of `directory` are those of `wide` in f32, each rounded once.
  void expect_rounded(const std::string& directory, const std::string& wide) const {
    const SafetensorsFile narrow(path(directory) / "model.safetensors");
    const SafetensorsFile full(path(wide) / "model.safetensors");
    ASSERT_THAT(narrow.tensors(), SizeIs(full.tensors().size()));
    const auto config = nlohmann::json::parse(read_file(path(directory) / "config.json"));
    const DType dtype = directory == "f16" ? DType::kF16 : DType::kBF16;
    EXPECT_EQ(config.at("torch_dtype"), dtype == DType::kF16 ? "float16" : "bfloat16");
    for (const SafetensorsTensor& tensor : narrow.tensors()) {
      ASSERT_EQ(tensor.dtype, dtype);
      const SafetensorsTensor* const source = full.find(tensor.name);
      ASSERT_NE(source, nullptr) << tensor.name;
      ASSERT_EQ(tensor.shape, source->shape) << tensor.name;
      ASSERT_EQ(source->data.size(), 2 * tensor.data.size());
      for (std::size_t i = 0; i < tensor.data.size() / 2; ++i) {
        std::uint16_t found = 0;
        float value = 0;
        std::memcpy(&found, tensor.data.data() + 2 * i, sizeof found);
        std::memcpy(&value, source->data.data() + 4 * i, sizeof value);
        const std::uint16_t expected =
            dtype == DType::kF16 ? to_float16(value).bits : to_bfloat16(value).bits;
        ASSERT_EQ(found, expected) << tensor.name << ", element " << i;
      }
    }
  }

  // Puts a tokenizer's files in the place of those of a Hugging Face directory.
  void exchange_tokenizer(const std::string& directory, const std::string& from) const {
    for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
      std::filesystem::remove(path(directory) / name);
    }
    std::filesystem::copy(path(from), path(directory));
  }

  static std::vector<double> floats(const SafetensorsFile& file, const std::string& name) {
    const SafetensorsTensor* const tensor = file.find(name);
    std::vector<float> values(tensor->data.size() / sizeof(float));
    std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
    return {values.begin(), values.end()};
  }

  // By the names that transformers give: no bias, no norm, no table that is looked up alone.
  static bool is_matrix(const std::string& name) {
    return !name.ends_with(".bias") && name.find("norm") == std::string::npos &&
           name.find(".ln_") == std::string::npos && !name.ends_with(".wpe.weight") &&
           !name.ends_with(".embed_tokens.weight") && !name.ends_with(".embed_in.weight");
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
  EXPECT_EQ(imported.out, "in: a checkpoint of step 0, tokenizer.json\n");
  EXPECT_EQ(tessera({"checkpoint", "verify", "in"}).code, 0);
  ASSERT_EQ(tessera({"checkpoint", "export", "in", "again"}).code, 0);
  EXPECT_EQ(files("again"), files("out"));

  // In other types, which come back as what they were.
  for (const char* dtype : {"f16", "bf16"}) {
    const std::string narrow = dtype;
    ASSERT_EQ(tessera({"checkpoint", "export", "a", narrow, "--dtype=" + narrow}).code, 0);
    expect_rounded(narrow, "out");
    ASSERT_EQ(tessera({"checkpoint", "import", narrow, "-o", "of-" + narrow}).code, 0);
    ASSERT_EQ(
        tessera({"checkpoint", "export", "of-" + narrow, "again-" + narrow, "--dtype", narrow})
            .code,
        0);
    EXPECT_EQ(files("again-" + narrow), files(narrow));
  }
  ASSERT_EQ(tessera({"checkpoint", "export", "of-f16", "wide"}).code, 0);
  EXPECT_EQ(SafetensorsFile(path("wide/model.safetensors")).tensors().front().dtype, DType::kF32);
  ASSERT_EQ(tessera({"checkpoint", "export", "of-bf16", "widened", "--dtype=f32"}).code, 0);
  EXPECT_EQ(SafetensorsFile(path("widened/model.safetensors")).tensors().front().dtype,
            DType::kF32);

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

struct TokenizerForm {
  const char* directory;
  int bos;
  int eos;
  const char* bos_token;
  const char* eos_token;
  const char* tokenizer_class;
};

// Whatever files a tokenizer comes in, the directory is the same when it goes out again.
TEST_P(WeightsTest, BringTheirTokenizerInAnyForm) {
  const auto golden = std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/tokenizer";
  write_run("family.toml", format("name = \"{}\"\n", GetParam().name) + GetParam().keys);
  train_file("family.toml", "a", {"--train.steps=1"});
  for (const char* directory : {"sentencepiece", "tiktoken", "pair"}) {
    std::filesystem::create_directory(path(directory));
  }
  std::filesystem::copy(golden / "sentencepiece.model", path("sentencepiece/tokenizer.model"));
  write_test_file(path("tiktoken/tokenizer.model"),
                  "# tiktoken llama3\n" + read_file(golden / "llama3.tiktoken"));
  write_gpt2_files("pair/vocab.json", "pair/merges.txt");

  std::vector<std::string> options = {
      "--train.steps=1", "--tokenizer.train_vocab=0", "--model.vocab=960"};
  if (GetParam().name != "llama3") {
    options.emplace_back("--model.padded_vocab=960");
  }
  options.emplace_back();
  for (const TokenizerForm& form :
       {TokenizerForm{"sentencepiece", 1, 2, "<s>", "</s>", "LlamaTokenizer"},
        TokenizerForm{"tiktoken",
                      698,
                      699,
                      "<|begin_of_text|>",
                      "<|end_of_text|>",
                      "PreTrainedTokenizerFast"},
        TokenizerForm{
            "pair", 299, 299, "<|endoftext|>", "<|endoftext|>", "PreTrainedTokenizerFast"}}) {
    const std::string name = form.directory;
    SCOPED_TRACE(name);
    options.back() = "--tokenizer.path=" + name;
    train_file("family.toml", "run-" + name, options);
    ASSERT_EQ(tessera({"checkpoint", "export", "run-" + name, "out-" + name}).code, 0);
    const auto expected = files("out-" + name);
    const auto config = nlohmann::json::parse(expected.at("config.json"));
    EXPECT_EQ(config.at("bos_token_id"), form.bos);
    EXPECT_EQ(config.at("eos_token_id"), form.eos);
    const auto tokenizer = nlohmann::json::parse(expected.at("tokenizer_config.json"));
    EXPECT_EQ(tokenizer.at("bos_token"), form.bos_token);
    EXPECT_EQ(tokenizer.at("eos_token"), form.eos_token);
    EXPECT_EQ(tokenizer.at("tokenizer_class"), form.tokenizer_class);

    exchange_tokenizer("out-" + name, name);
    const Outcome imported = tessera({"checkpoint", "import", "out-" + name, "-o", "in-" + name});
    ASSERT_EQ(imported.code, 0) << imported.err;
    EXPECT_THAT(imported.err, Not(HasSubstr("without a tokenizer")));
    ASSERT_EQ(tessera({"checkpoint", "export", "in-" + name, "again-" + name}).code, 0);
    EXPECT_EQ(files("again-" + name), expected);
    std::filesystem::remove_all(path("out-" + name));
    const Outcome sample = tessera({"generate", "in-" + name, "--prompt=Line 7", "--tokens=3"});
    EXPECT_EQ(sample.code, 0) << sample.err;
  }
}

// What a directory says beside weights and tokenizer stays with them: into a checkpoint, and into a
// run that begins with them.
TEST_P(WeightsTest, KeepWhatTheirUsersGoBy) {
  write_run("family.toml", format("name = \"{}\"\n", GetParam().name) + GetParam().keys);
  train_file("family.toml", "a", {"--train.steps=1"});
  ASSERT_EQ(tessera({"checkpoint", "export", "a", "out"}).code, 0);
  auto config = nlohmann::ordered_json::parse(read_file(path("out/config.json")));
  config["eos_token_id"] = {config.at("eos_token_id").get<int>(), 7, 9};
  write_test_file(path("out/config.json"), config.dump(2) + "\n");
  write_test_file(path("out/generation_config.json"), R"({"eos_token_id": [1, 7, 9]})");
  write_test_file(path("out/tokenizer_config.json"), R"({"chat_template": "{{ x }}", "y": 1})");
  write_test_file(path("out/special_tokens_map.json"), "{}");
  write_test_file(path("out/chat_template.jinja"), "{{ z }}");
  const auto given = files("out");

  ASSERT_EQ(tessera({"checkpoint", "import", "out", "-o", "in"}).code, 0);
  ASSERT_EQ(tessera({"checkpoint", "export", "in", "again"}).code, 0);
  auto found = files("again");
  EXPECT_EQ(nlohmann::json::parse(found.at("config.json")), nlohmann::json(config));
  for (const auto& [name, text] : given) {
    if (name != "config.json") {
      EXPECT_EQ(found[name], text) << name;
    }
  }
  EXPECT_EQ(tessera({"checkpoint", "verify", "in"}).code, 0);

  // Of shorter sequences, and with the directory gone.
  const bool is_bounded = GetParam().name == "gpt2";  // by its positions
  train_file("family.toml",
             "b",
             {"--train.steps=1",
              "--model.weights=out",
              "--tokenizer.path=out/tokenizer.json",
              is_bounded ? "--data.sequence_length=32" : "--data.sequence_length=16"});
  std::filesystem::remove_all(path("out"));
  ASSERT_EQ(tessera({"checkpoint", "export", "b", "tuned"}).code, 0);
  found = files("tuned");
  EXPECT_EQ(nlohmann::json::parse(found.at("config.json")), nlohmann::json(config));
  EXPECT_EQ(found.at("tokenizer_config.json"), given.at("tokenizer_config.json"));
  EXPECT_EQ(found.at("chat_template.jinja"), given.at("chat_template.jinja"));
}

// Tokens that the model has no row for are refused where a text has them, and not before.
TEST_P(WeightsTest, MustFitTheirTokenizer) {
  write_run("family.toml", format("name = \"{}\"\n", GetParam().name) + GetParam().keys);
  train_file("family.toml", "a", {"--train.steps=1"});
  ASSERT_EQ(tessera({"checkpoint", "export", "a", "out"}).code, 0);
  const auto expect_refused = [&](const std::string& message) {
    const Outcome refused = tessera({"checkpoint", "import", "out", "-o", "in"});
    EXPECT_EQ(refused.code, 3);
    EXPECT_THAT(refused.err, HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(path("in")));
  };
  const std::string whole = read_file(path("out/tokenizer.json"));
  auto tokenizer = nlohmann::json::parse(whole);
  tokenizer["model"]["vocab"]["!"] = 5000;
  write_test_file(path("out/tokenizer.json"), tokenizer.dump());
  const Outcome larger = tessera({"checkpoint", "import", "out", "-o", "larger-in"});
  EXPECT_EQ(larger.code, 0) << larger.err;
  EXPECT_THAT(larger.err, HasSubstr("has ids up to 5000, the model only 300"));
  write_test_file(path("plain.txt"), corpus_text());
  write_test_file(path("other.txt"), corpus_text() + "Line!\n");
  const std::string unknown =
      "the text has the token \"!\", id 5000, which the model has no row for: its ids are 0 to 299";
  EXPECT_EQ(tessera({"eval", "larger-in", "--data", "plain.txt"}).code, 0);
  const Outcome eval = tessera({"eval", "larger-in", "--data", "other.txt"});
  EXPECT_EQ(eval.code, 3);
  EXPECT_THAT(eval.err, testing::AllOf(HasSubstr(unknown), HasSubstr("other.txt")));
  EXPECT_EQ(tessera({"generate", "larger-in", "--prompt=Line", "--tokens=9"}).code, 0);
  EXPECT_THAT(tessera({"generate", "larger-in", "--prompt=Line!"}).err, HasSubstr(unknown));
  write_run("from.toml", format("name = \"{}\"\nweights = \"out\"", GetParam().name));
  const std::vector<std::string> with = {
      "--tokenizer.path=out/tokenizer.json", "--tokenizer.train_vocab=0", "--train.steps=1"};
  train_file("from.toml", "plain", with);
  std::vector<std::string> on = {"train", "from.toml", "--run.dir=x", "--data.files=other.txt"};
  on.insert(on.end(), with.begin(), with.end());
  const Outcome trained = tessera(on);
  EXPECT_EQ(trained.code, 3);
  EXPECT_THAT(trained.err, testing::AllOf(HasSubstr(unknown), HasSubstr("other.txt")));

  auto config = nlohmann::json::parse(read_file(path("out/config.json")));
  write_test_file(path("out/tokenizer.json"), whole);
  config["eos_token_id"] = 300;
  write_test_file(path("out/config.json"), config.dump());
  expect_refused("out/config.json: eos_token_id is 300, and the model has 300 ids");
  config["eos_token_id"] = 5;
  write_test_file(path("out/config.json"), config.dump());
  const Outcome warned = tessera({"checkpoint", "import", "out", "-o", "in"});
  EXPECT_EQ(warned.code, 0) << warned.err;
  EXPECT_THAT(warned.err,
              HasSubstr("eos_token_id of out/config.json is &: documents end with the first, and "
                        "either ends what is generated"));
  std::filesystem::remove_all(path("in"));

  std::filesystem::create_directory(path("larger"));
  std::filesystem::copy(
      std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/tokenizer/sentencepiece.model",
      path("larger/tokenizer.model"));
  exchange_tokenizer("out", "larger");
  EXPECT_THAT(tessera({"checkpoint", "import", "out", "-o", "in"}).err,
              HasSubstr("the tokenizer out/tokenizer.model has 500 entries, the model only 300"));
  std::filesystem::remove_all(path("in"));

  std::filesystem::remove(path("out/tokenizer.model"));
  const Outcome without = tessera({"checkpoint", "import", "out", "-o", "in"});
  EXPECT_EQ(without.code, 0);
  EXPECT_THAT(
      without.err,
      HasSubstr("the weights come without a tokenizer: out has none of tokenizer.json, "
                "tokenizer.model, encoder.json and vocab.bpe, or vocab.json and merges.txt"));
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
  write_run("one.toml", name + "weights = \"out\"\ndim = 96\n");
  const Outcome one = tessera({"train", "one.toml", "--run.dir=b"});
  EXPECT_EQ(one.code, 2);
  EXPECT_THAT(one.err, HasSubstr("is another model")) << "the sizes that are not set are theirs";
  const std::string wrong = GetParam().name == "gpt2" ? "neox" : "gpt2";
  write_run("wrong.toml", format("name = \"{}\"\nweights = \"out\"", wrong));
  const Outcome family = tessera({"train", "wrong.toml", "--run.dir=c"});
  EXPECT_EQ(family.code, 2);
  EXPECT_THAT(
      family.err,
      HasSubstr(format("model.name: found \"{}\", expected \"{}\"", wrong, GetParam().name)));
  write_file_atomic(path("out/generation_config.json"),
                    R"({"temperature": 0.6, "top_k": null, "stop_strings": ["x"]})");
  write_file_atomic(path("out/adapter_config.json"), "{}");
  const Outcome imported = tessera({"checkpoint", "import", "out", "-o", "in"});
  EXPECT_EQ(imported.code, 0);
  EXPECT_THAT(
      imported.err,
      AllOf(HasSubstr("out/generation_config.json: temperature, stop_strings: how texts are "
                      "continued is said by the options"),
            HasSubstr("out/adapter_config.json: the adapter that this file tells of is not "
                      "applied")));
  std::filesystem::remove(path("out/model.safetensors"));
  const Outcome missing = tessera({"train", "family.toml", "--run.dir=d", "--model.weights=out"});
  EXPECT_EQ(missing.code, 3);
  EXPECT_THAT(missing.err, HasSubstr("out has neither model.safetensors nor"));
}

// Decoupled decay, of a step at this rate: w = (w of the run without it) - rate * decay * (w before
// it), in matrices alone; whatever layout the state has.
TEST_P(WeightsTest, DecayWhereTheyAreMatrices) {
  const std::string name = format("name = \"{}\"\n", GetParam().name);
  write_run("family.toml", name + GetParam().keys);
  train_file("family.toml", "start", {"--train.steps=1"});
  ASSERT_EQ(tessera({"checkpoint", "export", "start", "before"}).code, 0);
  write_run("from.toml", name + "weights = \"before\"");
  constexpr double kRate = 0.01;
  constexpr double kDecay = 0.5;
  const auto step = [&](const std::string& run, std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"--train.steps=1", format("--optimizer.lr={}", kRate)});
    train_file("from.toml", run, overrides);
    ASSERT_EQ(tessera({"checkpoint", "export", run, run + "-out"}).code, 0);
  };
  const std::string decay = format("--optimizer.weight_decay={}", kDecay);
  const std::string matrices = "--optimizer.decay=matrices";
  const SafetensorsFile before(path("before/model.safetensors"));
  const std::vector<std::vector<std::string>> layouts = {
      {},
      {"--parallel.ranks=2", "--state.preset=fsdp", "--train.microbatch=1"},
      {"--parallel.ranks=2", "--parallel.tensor=2", "--memory.recompute=full"}};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.end(), layouts[i].begin(), layouts[i].end());
      return more;
    };
    const std::string without = format("without-{}", i);
    step(without, with({"--optimizer.weight_decay=0"}));
    const SafetensorsFile plain(path(without + "-out/model.safetensors"));
    for (const bool all : {false, true}) {
      const std::string run = format("with-{}-{}", i, all);
      step(run, with(all ? std::vector{decay} : std::vector{decay, matrices}));
      const SafetensorsFile decayed(path(run + "-out/model.safetensors"));
      for (const SafetensorsTensor& tensor : decayed.tensors()) {
        const bool decays = all || is_matrix(tensor.name);
        const auto w0 = floats(before, tensor.name);
        const auto w = floats(plain, tensor.name);
        const auto found = floats(decayed, tensor.name);
        for (std::size_t at = 0; at < found.size(); ++at) {
          const double expected = w[at] - (decays ? kRate * kDecay * w0[at] : 0.0);
          ASSERT_NEAR(found[at], expected, decays ? 1e-6 : 0.0) << run << " " << tensor.name;
        }
      }
    }
  }
}

// What f16 cannot hold is refused, by its tensor, before any file appears.
TEST_P(WeightsTest, RefusesWeightsThatF16CannotHold) {
  write_run("family.toml", format("name = \"{}\"\n", GetParam().name) + GetParam().keys);
  train_file("family.toml", "a", {"--train.steps=1"});
  ASSERT_EQ(tessera({"checkpoint", "export", "a", "out"}).code, 0);
  const SafetensorsFile file(path("out/model.safetensors"));
  std::vector<SafetensorsTensor> tensors(file.tensors().begin(), file.tensors().end());
  std::vector<std::byte> large(tensors.front().data.begin(), tensors.front().data.end());
  const float value = -70000;
  std::memcpy(large.data() + 8, &value, sizeof value);
  tensors.front().data = large;
  std::filesystem::create_directory(path("large"));
  write_safetensors(path("large/model.safetensors"), tensors);
  std::filesystem::copy(path("out/config.json"), path("large/config.json"));
  ASSERT_EQ(tessera({"checkpoint", "import", "large", "-o", "in"}).code, 0);
  const Outcome refused = tessera({"checkpoint", "export", "in", "half", "--dtype=f16"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr(format("tensor '{}': found -70000, and f16 holds up to 65504: choose bf16 "
                               "or f32",
                               tensors.front().name)));
  EXPECT_FALSE(std::filesystem::exists(path("half")));
  EXPECT_EQ(tessera({"checkpoint", "export", "in", "half", "--dtype=bf16"}).code, 0);
  EXPECT_EQ(tessera({"checkpoint", "export", "in", "other", "--dtype=f64"}).code, 2);
}

}  // namespace
}  // namespace tessera
