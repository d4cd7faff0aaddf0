// generate, tokenizer train, explain, report and checkpoints, as a user meets them.

#include <cstdint>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/tokenizer/tokenizer.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class CommandsTest : public TrainingTest {
 protected:
  std::string generate(std::vector<std::string> options) {
    options.insert(options.begin(), {"generate", "a", "--prompt", "Line 7"});
    const Outcome outcome = tessera(std::move(options));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  }
};

TEST_F(CommandsTest, GenerateIsAFunctionOfItsSeed) {
  ASSERT_EQ(train("a", {"--train.steps=100"}).code, 0);
  const std::string text = generate({});
  EXPECT_THAT(text, StartsWith("Line 7"));
  EXPECT_GT(text.size(), std::string("Line 7\n").size());
  EXPECT_EQ(generate({}), text);
  EXPECT_EQ(generate({"--seed=42"}), text) << "the default seed";
  EXPECT_NE(generate({"--seed=43"}), text);
  // Greedy: no seed matters; nor does one among the single likeliest token.
  const std::string greedy = generate({"--temperature=0"});
  EXPECT_EQ(generate({"--temperature=0", "--seed=7"}), greedy);
  EXPECT_EQ(generate({"--top-k=1", "--seed=7"}), greedy);
  EXPECT_EQ(generate({"--top-p=0", "--seed=7"}), greedy);
}

TEST_F(CommandsTest, GenerateTakesACheckpointAndBoundsItsLength) {
  ASSERT_EQ(train("a", {"--checkpoint.every=4"}).code, 0);
  const std::string newest = generate({});
  const Outcome named = tessera({"generate", checkpoint("a", 12), "--prompt", "Line 7"});
  EXPECT_EQ(named.out, newest);
  EXPECT_NE(tessera({"generate", checkpoint("a", 4), "--prompt", "Line 7"}).out, newest);
  // One token is at most a few letters more.
  const std::string one = generate({"--tokens=1"});
  EXPECT_LT(one.size(), newest.size());
}

TEST_F(CommandsTest, GenerateErrors) {
  const Outcome missing = tessera({"generate", "nothing", "--prompt", "x"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.err,
            "error: nothing does not exist, expected a run directory or a checkpoint\n");
  std::filesystem::create_directory(path("empty"));
  const Outcome empty = tessera({"generate", "empty"});
  EXPECT_EQ(empty.code, 2);
  EXPECT_EQ(empty.err, "error: empty has no checkpoint: train first, or name one\n");

  ASSERT_EQ(train("a").code, 0);
  const Outcome long_prompt = tessera({"generate", "a", "--prompt", corpus_text()});
  EXPECT_EQ(long_prompt.code, 2);
  EXPECT_THAT(long_prompt.err, HasSubstr("expected less than the 32 of the model's sequences"));
  EXPECT_THAT(long_prompt.out, IsEmpty());
}

// The run directory is all that generate needs, wherever it is called from and moved to.
TEST_F(CommandsTest, GenerateTakesTheTokenizerOfTheRun) {
  ASSERT_EQ(train("a").code, 0);
  EXPECT_EQ(read_file(path("a/tokenizer.json")), read_file(path("tokenizer.json")));
  const std::string text = generate({});
  std::filesystem::remove(path("tokenizer.json"));
  EXPECT_EQ(generate({}), text);
  std::filesystem::create_directory(path("other"));
  std::filesystem::rename(path("a"), path("moved"));
  for (const char* place : {"../moved", "../moved/checkpoints/step-00000012/"}) {
    const Outcome outcome =
        shell(format("cd other && exec \"$tessera\" generate {} --prompt 'Line 7'", place));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, text);
  }
  // Nor a checkpoint the run.
  std::filesystem::rename(path("moved/checkpoints/step-00000012"), path("other/alone"));
  std::filesystem::remove_all(path("moved"));
  const Outcome alone = shell("cd other && exec \"$tessera\" generate alone --prompt 'Line 7'");
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(alone.out, text);
}

TEST_F(CommandsTest, GenerateRefusesAnotherTokenizer) {
  ASSERT_EQ(train("a").code, 0);
  ASSERT_EQ(tessera({"tokenizer", "train", "run.toml", "--vocab=262", "--output=other.json"}).code,
            0);
  std::filesystem::copy_file(path("other.json"),
                             checkpoint("a", 12) / "tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  const Outcome outcome = tessera({"generate", "a", "--prompt=x"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err,
              HasSubstr("a/checkpoints/step-00000012/tokenizer.json is not the tokenizer that "
                        "a/checkpoints/step-00000012 was trained with: found checksum "));
  EXPECT_THAT(outcome.out, IsEmpty());
}

TEST_F(CommandsTest, TokenizerOfItsOwnTrainsTheSameRun) {
  std::filesystem::create_directory(path("own"));
  const Outcome trained =
      tessera({"tokenizer", "train", "corpus.txt", "--vocab", "300", "--output", "own/own.json"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out, StartsWith("own/own.json: 300 entries, trained in "));
  const Tokenizer tokenizer = Tokenizer::load(path("own/own.json"));
  EXPECT_EQ(tokenizer.vocab_size(), 300);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(corpus_text())), corpus_text());

  ASSERT_EQ(train("a").code, 0);
  EXPECT_EQ(read_file(path("tokenizer.json")), read_file(path("own/own.json")));
  ASSERT_EQ(train("b", {"--tokenizer.path=own/own.json", "--tokenizer.train_vocab=0"}).code, 0);
  expect_same_training("b", "a");
}

TEST_F(CommandsTest, KeysOfTheCommandLineAreARunFile) {
  ASSERT_EQ(train("file").code, 0);
  std::vector<std::string> keys = {"train"};
  // The resolved config of a run says all of it, here but for where things lie.
  std::istringstream config(read_file(path("file/config.toml")));
  std::string section;
  for (std::string line; std::getline(config, line);) {
    if (line.starts_with('[')) {
      section = line.substr(1, line.size() - 2);
    } else if (!line.empty() && !line.starts_with('#')) {
      const std::size_t equals = line.find(" = ");
      keys.push_back(
          format("--{}.{}={}", section, line.substr(0, equals), line.substr(equals + 3)));
    }
  }
  std::erase_if(keys, [](const std::string& key) {
    return key.starts_with("--run.dir=") || key.starts_with("--tokenizer.");
  });
  keys.insert(keys.end(), {"--run.dir=keys", "--tokenizer.train_vocab=300"});
  const Outcome outcome = tessera(keys);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(read_file(path("keys/tokenizer.json")), read_file(path("file/tokenizer.json")))
      << "a tokenizer without a place is the run's own";
  expect_same_training("keys", "file");
  keys.emplace_back("--train.steps=14");
  EXPECT_EQ(tessera(keys).code, 0) << "which it goes on with";
}

// What a tokenizer learns from is the text, however the file holds it.
TEST_F(CommandsTest, TokenizersAreTrainedOnTheTextsOfFiles) {
  const auto trained_on = [&](const std::string& file) {
    const Outcome trained =
        tessera({"tokenizer", "train", file, "--vocab=300", "--output=" + file + ".json"});
    EXPECT_EQ(trained.code, 0) << trained.err;
    return read_file(path(file + ".json"));
  };
  const std::string expected = trained_on("corpus.txt");
  write_file_atomic(path("lines.jsonl"), nlohmann::json{{"text", corpus_text()}}.dump() + "\n");
  EXPECT_EQ(trained_on("lines.jsonl"), expected);
  ASSERT_EQ(shell("gzip --keep lines.jsonl corpus.txt").code, 0);
  EXPECT_EQ(trained_on("lines.jsonl.gz"), expected);
  EXPECT_EQ(trained_on("corpus.txt.gz"), expected);
  const Outcome tokens = tessera({"tokenizer", "train", "data.bin", "--vocab=300", "--force"});
  EXPECT_EQ(tokens.code, 3);
  EXPECT_THAT(tokens.err, HasSubstr("data.bin is no text: expected text or JSONL"));
}

TEST_F(CommandsTest, ExplainKnowsTheMemoryBeforeTheRun) {
  for (const char* recompute : {"none", "full"}) {
    const std::string option = format("--memory.recompute={}", recompute);
    const Outcome explained = tessera({"explain", "run.toml", option});
    ASSERT_EQ(explained.code, 0) << explained.err;
    EXPECT_FALSE(std::filesystem::exists(path("run"))) << "explain writes nothing";
    ASSERT_EQ(train(recompute, {option}).code, 0);
    const std::int64_t used = nlohmann::json::parse(metrics(recompute).back())["memory_bytes"];
    EXPECT_THAT(explained.out, HasSubstr(format("({} bytes; ", format_grouped(used))));
  }
}

// A save in the background is written from a copy: parameters and moments of each rank's slices.
TEST_F(CommandsTest, ExplainKnowsTheCopyOfACheckpoint) {
  for (const std::string ranks : {"1", "2"}) {
    const std::vector<std::string> options = {
        "--parallel.ranks=" + ranks, "--train.microbatch=1", "--checkpoint.every=4"};
    std::vector<std::string> command = {"explain", "run.toml"};
    command.insert(command.end(), options.begin(), options.end());
    const Outcome explained = tessera(command);
    ASSERT_EQ(explained.code, 0) << explained.err;
    const auto bytes_of = [&](const std::string& row) {
      const std::regex line("\n  " + row + " .*\\(([0-9,]+) bytes");
      std::smatch match;
      EXPECT_TRUE(std::regex_search(explained.out, match, line)) << row;
      std::string digits = match[1];
      std::erase(digits, ',');
      return digits.empty() ? std::uintmax_t{0} : std::stoull(digits);
    };
    ASSERT_EQ(train(ranks, options).code, 0);
    const std::uintmax_t used = nlohmann::json::parse(metrics(ranks).back())["memory_bytes"];
    EXPECT_EQ(bytes_of("arena") + bytes_of("checkpoint"), used);
    std::uintmax_t written = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(path(ranks + "/checkpoints/step-00000012"))) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".safetensors") && (ranks == "1" || name.starts_with("rank-00000-"))) {
        written += entry.file_size();
      }
    }
    // Files have small headers besides; memory comes in pages of up to 2 MiB.
    EXPECT_LT(bytes_of("checkpoint"), written + (2U << 20U));
    EXPECT_GT(bytes_of("checkpoint") + (16U << 10U), written);
  }
}

// Parameters by hand: embedding and head 300x32 each; a layer 2 (32x32) + 2 (16x32) attention,
// 3 (64x32) feed-forward, 2 norms of 32; the last norm. Buffers take multiples of 256 bytes, those
// of the five norms 128 more than they hold.
TEST_F(CommandsTest, ExplainPrintsMemoryAndWork) {
  const Outcome explained = tessera({"explain", "run.toml"});
  ASSERT_EQ(explained.code, 0);
  const Outcome ops = tessera({"explain", "run.toml", "--ops"});
  const std::int64_t layer = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32 + 2 * 32;
  const std::int64_t parameters = 2 * std::int64_t{300} * 32 + 2 * layer + 32;
  constexpr std::int64_t kPadding = std::int64_t{5} * 128;
  EXPECT_THAT(
      explained.out,
      AllOf(StartsWith(format("model: llama3; {} parameters\n", format_grouped(parameters))),
            HasSubstr("\nstep: 4 sequences of 32 tokens, 128 tokens; in f32\n"),
            HasSubstr(format("\n  parameter    {:>12}\n", format_bytes(4 * parameters + kPadding))),
            HasSubstr(
                format("\n  optimizer    {:>12}\n", format_bytes(8 * parameters + 2 * kPadding))),
            HasSubstr("\nwork of a step: ")));
  EXPECT_THAT(ops.out,
              AllOf(StartsWith("work of a step, by op"),
                    HasSubstr("\nmatmul "),
                    HasSubstr("\nattention_backward ")));
}

TEST_F(CommandsTest, CheckpointsAreVerifiedAndInspected) {
  ASSERT_EQ(train("a", {"--checkpoint.every=4"}).code, 0);
  const Outcome good = tessera({"checkpoint", "verify", "a"});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_THAT(good.out,
              AllOf(StartsWith("a/checkpoints/step-00000012: "),
                    HasSubstr("2 files, "),
                    HasSubstr(": every byte is as it was written\n")));
  const Outcome inspected = tessera({"checkpoint", "inspect", checkpoint("a", 4)});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_THAT(inspected.out,
              AllOf(HasSubstr("step 4 (4 applied), 512 tokens, seed "),
                    HasSubstr("\nmodel {\"family\":\"llama\""),
                    HasSubstr("\n  model-00001-of-00001.safetensors  "),
                    HasSubstr("\n  moment1 layers.0.attention.wq.weight  f32 ("),
                    HasSubstr("  optimizer-00001-of-00001.safetensors  moment2/norm.weight\n")));
  // The copy of the tokenizer, which other commands would take for the run's.
  const std::filesystem::path tokenizer = checkpoint("a", 12) / "tokenizer.json";
  const std::string own = read_file(tokenizer);
  write_test_file(tokenizer, own + " ");
  const Outcome changed = tessera({"checkpoint", "verify", "a"});
  EXPECT_EQ(changed.code, 3);
  EXPECT_THAT(changed.err, HasSubstr("step-00000012/tokenizer.json: found checksum "));
  write_test_file(tokenizer, own);
  // The last byte of the weights.
  const std::filesystem::path weights = checkpoint("a", 12) / "model-00001-of-00001.safetensors";
  std::string bytes = read_file(weights);
  bytes.back() = static_cast<char>(bytes.back() + 1);
  write_test_file(weights, bytes);
  const Outcome bad = tessera({"checkpoint", "verify", "a"});
  EXPECT_EQ(bad.code, 3);
  EXPECT_THAT(bad.err, HasSubstr("model-00001-of-00001.safetensors: found checksum "));
  EXPECT_THAT(bad.out, IsEmpty());
  EXPECT_EQ(tessera({"checkpoint", "verify", checkpoint("a", 4)}).code, 0);
  EXPECT_EQ(tessera({"checkpoint", "verify", "nothing"}).code, 2);
}

TEST_F(CommandsTest, WeightsAreExported) {
  ASSERT_EQ(train("a").code, 0);
  const Outcome exported = tessera({"checkpoint", "export", "a", "weights"});
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(exported.out, "weights: config.json, weights, tokenizer.json\n");
  EXPECT_EQ(read_file(path("weights/tokenizer.json")), read_file(path("tokenizer.json")));
  const auto config = nlohmann::json::parse(read_file(path("weights/config.json")));
  const Tokenizer tokenizer = Tokenizer::load(path("tokenizer.json"));
  EXPECT_EQ(config.at("bos_token_id"), tokenizer.bos().value_or(-1));
  EXPECT_EQ(config.at("eos_token_id"), tokenizer.eos().value_or(-1));
  EXPECT_EQ(config.at("max_position_embeddings"), 32);
  EXPECT_TRUE(std::filesystem::exists(path("weights/model.safetensors")));
  const Outcome again = tessera({"checkpoint", "export", "a", "weights"});
  EXPECT_EQ(again.code, 2);
  EXPECT_EQ(again.err, "error: weights is not empty: choose another directory for the weights\n");
}

TEST_F(CommandsTest, HuggingFaceWeightsAreNoCheckpoint) {
  std::filesystem::create_directory(path("weights"));
  write_test_file(path("weights/config.json"), "{}");
  EXPECT_THAT(tessera({"generate", "weights"}).err, HasSubstr("weights has no checkpoint: train"));
  write_test_file(path("weights/model-00001-of-00001.safetensors"), "");
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"checkpoint", "verify", "weights"},
                                             {"checkpoint", "inspect", "weights"},
                                             {"checkpoint", "export", "weights", "out"},
                                             {"generate", "weights", "--prompt=x"},
                                             {"eval", "weights", "--data=corpus.txt"}}) {
    const Outcome outcome = tessera(command);
    EXPECT_EQ(outcome.code, 2) << command[0];
    EXPECT_EQ(outcome.err,
              "error: weights holds Hugging Face weights, no checkpoint: make one of them first, "
              "with `tessera checkpoint import weights -o CHECKPOINT`\n");
  }
}

// Bad data, as what else is wrong with such a file.
TEST_F(CommandsTest, AMegatronIndexOfUnknownTokensIsRefused) {
  const std::filesystem::path goldens =
      std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/megatron";
  std::string index = read_file(goldens / "u16.idx");
  index[17] = 6;
  write_test_file(path("data.idx"), index);
  write_test_file(path("data.bin"), read_file(goldens / "u16.bin"));
  ASSERT_EQ(train("a", {"--train.steps=4"}).code, 0);
  const Outcome outcome =
      train("b", {"--data.files=data", "--data.format=megatron", "--tokenizer.train_vocab=0"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("data.idx: byte 17: found type 6 of tokens, expected 1 (u8)"));
}

TEST_F(CommandsTest, ReportIsWrittenFromTheRunDirectory) {
  ASSERT_EQ(train("a", {"--checkpoint.every=4"}).code, 0);
  const Outcome outcome = tessera({"report", "a", "-o", "a.html"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "a.html: 12 steps of a\n");
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_THAT(read_file(path("a.html")),
              AllOf(StartsWith("<!doctype html>"),
                    HasSubstr("<title>a · Tessera</title>"),
                    HasSubstr(">Finished after step 12<"),
                    HasSubstr("<dt>step-00000012</dt>"),
                    HasSubstr("<dt>Parameters</dt><dd>37,792 (37.8 k)</dd>")));
}

TEST_F(CommandsTest, ReportNamesABrokenLine) {
  ASSERT_EQ(train("a").code, 0);
  std::vector<std::string> lines = metrics("a");
  lines[4] = "notes";
  std::string text;
  for (const std::string& line : lines) {
    text += line + "\n";
  }
  write_test_file(path("a/metrics.jsonl"), text);
  const Outcome refused = tessera({"report", "a"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, StartsWith("error: a/metrics.jsonl:5: found 'notes', expected a JSON"));
  EXPECT_FALSE(std::filesystem::exists(path("report.html")));
  const Outcome skipped = tessera({"report", "a", "--skip-broken"});
  EXPECT_EQ(skipped.code, 0) << skipped.err;
  EXPECT_THAT(skipped.err, StartsWith("warning: left out a/metrics.jsonl:5: found 'notes'"));
  EXPECT_THAT(read_file(path("report.html")),
              AllOf(HasSubstr("1 broken line of metrics.jsonl left out:"),
                    HasSubstr("metrics.jsonl has no lines of steps 5.")));
  EXPECT_EQ(tessera({"report", "nothing"}).code, 2);
}

}  // namespace
}  // namespace tessera
