// `tessera eval` against PyTorch on the same weights (tests/golden/make_eval_goldens.py), and
// against the validation of a run.

#include "tests/cli/eval_test.h"

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <numbers>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tests/cli/process.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Relative: f32 kernels against PyTorch's.
constexpr double kTolerance = 2e-6;

TEST_F(EvalTest, LossOfATextIsPyTorchs) {
  import_model();
  const json& expected = golden_.at("text");
  const json found = eval({"model", "--data", eval_golden("text.txt")});
  for (const char* key : {"nats", "loss", "perplexity", "bits_per_byte"}) {
    const double value = expected.at(key);
    // An error of the loss is one of its exponential, loss times as large.
    EXPECT_NEAR(found.at(key).get<double>(), value, 10 * kTolerance * value) << key;
  }
  EXPECT_NEAR(found.at("loss").get<double>(),
              expected.at("loss").get<double>(),
              kTolerance * expected.at("loss").get<double>());
  EXPECT_EQ(found.at("tokens"), expected.at("tokens"));
  EXPECT_EQ(found.at("bytes"), expected.at("bytes"));
  EXPECT_EQ(found.at("documents"), 1);
}

TEST_F(EvalTest, SaysItForPeople) {
  import_model();
  const Outcome outcome = tessera({"eval", "model", "--data", eval_golden("text.txt")});
  EXPECT_EQ(outcome.out,
            "checkpoint: model\nloss: 6.9607 nats a token\nperplexity: 1054.34\n"
            "bits per byte: 10.0547\ntokens: 803; documents: 1; bytes: 802\n");
}

// The same text as a line of JSONL and as a file.
TEST_F(EvalTest, ReadsJsonl) {
  import_model();
  write_test_file(path("a.jsonl"),
                  json({{"body", read_file(eval_golden("text.txt"))}}).dump() + "\n");
  EXPECT_EQ(eval({"model", "--data", "a.jsonl", "--field", "body"}),
            eval({"model", "--data", eval_golden("text.txt")}));
}

// One text, in every form that training takes, plain and compressed.
TEST_F(EvalTest, TakesEveryFormatOfTraining) {
  import_model();
  const json expected = eval({"model", "--data", eval_golden("text.txt")});
  const Outcome made = tessera({"data",
                                "tokenize",
                                eval_golden("text.txt"),
                                "--tokenizer=model/tokenizer.json",
                                "--output=set"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(eval({"model", "--data", "set"}), expected);
  EXPECT_EQ(eval({"model", "--data", "set.bin", "--format=tokens"}), expected);
  EXPECT_EQ(eval({"model", "--data", "set.bin", "--format=tokens", "--token-type=u16"}), expected);
  const std::string line = json({{"text", read_file(eval_golden("text.txt"))}}).dump() + "\n";
  write_test_file(path("a.jsonl"), line);
  ASSERT_EQ(shell("gzip -k a.jsonl").code, 0);
  EXPECT_EQ(eval({"model", "--data", "a.jsonl.gz"}), expected);
  write_test_file(path("b.jsonl"), "{\"text\": 3}\n" + line);
  EXPECT_THAT(error_of({"model", "--data", "b.jsonl"}, 3),
              testing::AllOf(HasSubstr("b.jsonl:1: "), HasSubstr("--skip-broken")));
  EXPECT_EQ(eval({"model", "--data", "b.jsonl", "--skip-broken"}), expected);
  EXPECT_THAT(error_of({"model", "--data", "a.jsonl.gz", "--unpacked-limit=100"}, 3),
              HasSubstr("100"));
  const std::string command = format("$tessera eval model --json --data - < {}", "a.txt");
  write_test_file(path("a.txt"), read_file(eval_golden("text.txt")));
  const Outcome piped = shell(command);
  ASSERT_EQ(piped.code, 0) << piped.err;
  EXPECT_EQ(json::parse(piped.out), expected);
  const Outcome broken =
      shell("echo '{\"text\": 3}' | $tessera eval model --data - --format=jsonl");
  EXPECT_EQ(broken.code, 3);
  EXPECT_THAT(broken.err, HasSubstr("error: stdin:1: "));
  EXPECT_THAT(error_of({"model", "--data", "-", "-"}, 2), HasSubstr("stdin can be read once"));
  // An id that the tokenizer does not have.
  write_test_file(path("bad.bin"), std::string(6, '\xff'));
  EXPECT_THAT(error_of({"model", "--data", "bad.bin", "--format=tokens"}, 3),
              HasSubstr("bad.bin: token 0: found id 65535, expected an id from 0 to "));
}

TEST_F(EvalTest, ScoresOfEndingsArePyTorchs) {
  import_model();
  const json found =
      eval({"model", "--choices", eval_golden("choices.jsonl"), "--output", "scores.jsonl"});
  const json& expected = golden_.at("log_probs");
  EXPECT_EQ(found.at("questions"), expected.size());
  EXPECT_EQ(found.at("labels"), expected.size() - 1);
  EXPECT_DOUBLE_EQ(found.at("acc"), golden_.at("acc"));
  EXPECT_DOUBLE_EQ(found.at("acc_norm"), golden_.at("acc_norm"));
  EXPECT_DOUBLE_EQ(found.at("acc_bytes"), golden_.at("acc_bytes"));
  EXPECT_NE(found.at("acc"), found.at("acc_norm"));
  EXPECT_NE(found.at("acc_bytes"), found.at("acc_norm"));
  const std::vector<json> lines = lines_of("scores.jsonl");
  ASSERT_EQ(lines.size(), expected.size());
  for (std::size_t q = 0; q < lines.size(); ++q) {
    EXPECT_EQ(lines[q].at("line"), q + 1);
    for (std::size_t e = 0; e < 4; ++e) {
      const double value = expected[q][e];
      EXPECT_NEAR(lines[q].at("log_probs")[e].get<double>(), value, -kTolerance * value)
          << "line " << q + 1 << ", ending " << e;
    }
  }
}

// As lm-evaluation-harness has them where it is not told of a BOS.
TEST_F(EvalTest, ScoresWithoutBosArePyTorchs) {
  import_model();
  eval(
      {"model", "--choices", eval_golden("choices.jsonl"), "--output", "scores.jsonl", "--no-bos"});
  const json& expected = golden_.at("log_probs_without_bos");
  const std::vector<json> lines = lines_of("scores.jsonl");
  ASSERT_EQ(lines.size(), expected.size());
  for (std::size_t q = 0; q < lines.size(); ++q) {
    for (std::size_t e = 0; e < 4; ++e) {
      const double value = expected[q][e];
      EXPECT_NEAR(lines[q].at("log_probs")[e].get<double>(), value, -kTolerance * value)
          << "line " << q + 1 << ", ending " << e;
    }
  }
  EXPECT_NE(expected, golden_.at("log_probs"));
}

TEST_F(EvalTest, SaysThatAContextWasCut) {
  import_model();
  const Outcome outcome = tessera({"eval", "model", "--choices", eval_golden("choices.jsonl")});
  EXPECT_THAT(outcome.err,
              HasSubstr("4 of the contexts were too long for the model's sequences of 96 tokens"));
  EXPECT_THAT(outcome.out, HasSubstr("questions: 13; with a label: 12\nacc: 0.3333 (4 of 12)\n"));
}

// A validation reads whole sequences: where the stream has no tail, both read the same.
TEST_F(EvalTest, IsTheValidationOfTheRun) {
  const auto train_on = [&](const std::string& run) {
    const Outcome outcome =
        train(run, {"--data.validation_files=[\"held.txt\"]", "--validation.every=12"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  };
  std::string text = corpus_text().substr(2000, 3000);
  write_test_file(path("held.txt"), text);
  train_on("first");
  const std::int64_t tokens = eval({"first", "--data", "held.txt"}).at("tokens");
  // A token each: it is nowhere in the corpus.
  text.append(static_cast<std::size_t>(32 - tokens % 32), 'Z');
  write_test_file(path("held.txt"), text);
  train_on("second");
  const json found = eval({"second", "--data", "held.txt"});
  ASSERT_EQ(found.at("tokens").get<std::int64_t>() % 32, 0);
  const double loss = json::parse(metrics("second").back()).at("validation_loss");
  EXPECT_NEAR(found.at("loss").get<double>(), loss, 1e-6 * loss);
  EXPECT_EQ(found.at("bytes"), text.size());
  EXPECT_DOUBLE_EQ(
      found.at("bits_per_byte"),
      found.at("nats").get<double>() / std::numbers::ln2 / static_cast<double>(text.size()));
}

// Ranks as threads: data, tensor, context and more of them, weights whole or in slices.
std::vector<std::vector<std::string>> layouts() {
  const std::string cluster =
      format("--cluster.file={}/configs/clusters/virtual-4.toml", TESSERA_SOURCE_DIR);
  return {{"--parallel.ranks=2"},
          {"--parallel.ranks=3", "--state.preset=ddp"},
          {"--parallel.tensor=2"},
          {"--parallel.tensor=4", "--parallel.sequence_parallel=false"},
          {"--parallel.data=2", "--parallel.tensor=2", "--comm.overlap=false"},
          {"--parallel.context=2"},
          {"--parallel.context=2", "--parallel.data=2", "--context.kind=ulysses"},
          {"--parallel.context=2", "--parallel.tensor=2", "--context.kind=ring"},
          {"--parallel.pipeline=2"},
          {"--parallel.data=2", "--parallel.tensor=2", "--parallel.pipeline=2"},
          {"--parallel.ranks=4", "--state.preset=hsdp@pair", cluster},
          {"--parallel.ranks=4", "--state.preset=topo", "--state.wire_param=full", cluster}};
}

TEST_F(EvalTest, LossIsTheSameUnderEveryLayout) {
  import_model();
  const json expected = eval({"model", "--data", eval_golden("text.txt")});
  const double loss = expected.at("loss");
  for (std::vector<std::string> arguments : layouts()) {
    const std::string name = json(arguments).dump();
    arguments.insert(arguments.begin(), {"model", "--data", eval_golden("text.txt")});
    const json found = eval(arguments);
    EXPECT_NEAR(found.at("loss").get<double>(), loss, 1e-6 * loss) << name;
    for (const char* key : {"checkpoint", "tokens", "documents", "bytes"}) {
      EXPECT_EQ(found.at(key), expected.at(key)) << name << ": " << key;
    }
  }
}

TEST_F(EvalTest, ScoresAreTheSameUnderEveryLayout) {
  import_model();
  const std::vector<std::string> choices = {
      "model", "--choices", eval_golden("choices.jsonl"), "--output", "scores.jsonl"};
  const json expected = eval(choices);
  const std::vector<json> expected_lines = lines_of("scores.jsonl");
  for (const std::vector<std::string>& layout : layouts()) {
    std::vector<std::string> arguments = choices;
    arguments.insert(arguments.end(), layout.begin(), layout.end());
    EXPECT_EQ(eval(arguments), expected) << json(layout).dump();
    const std::vector<json> lines = lines_of("scores.jsonl");
    ASSERT_EQ(lines.size(), expected_lines.size());
    for (std::size_t q = 0; q < lines.size(); ++q) {
      for (std::size_t e = 0; e < 4; ++e) {
        const double value = expected_lines[q].at("log_probs")[e];
        EXPECT_NEAR(lines[q].at("log_probs")[e].get<double>(), value, -1e-6 * value)
            << json(layout).dump() << ": line " << q + 1 << ", ending " << e;
      }
    }
  }
}

// A pipeline computes what one rank does, and in the same order; a rank may have no layers.
TEST_F(EvalTest, PipelinesSayBitwiseTheSame) {
  ASSERT_EQ(train("run").code, 0);
  const std::vector<std::string> alone = {"run", "--data", "corpus.txt", "--run.threads=1"};
  const json expected = eval(alone);
  // Of a table it takes the ranks of the stages, here in a V, whatever else the table does.
  write_test_file(path("v.csv"), "0F0,2F0,2B0,0B0\n1F0,1B0\n");
  for (const std::vector<std::string>& layout :
       {std::vector<std::string>{"--parallel.pipeline=2"},
        {"--parallel.pipeline=2", "--pipeline.schedule=v.csv"},
        {"--parallel.pipeline=3", "--pipeline.layers=[1, 1, 0]"}}) {
    std::vector<std::string> arguments = alone;
    arguments.insert(arguments.end(), layout.begin(), layout.end());
    EXPECT_EQ(eval(arguments), expected) << json(layout).dump();
  }
}

// On what ranks a model was trained is nothing to its evaluation.
TEST_F(EvalTest, TakesAModelOfAnyLayout) {
  const Outcome outcome = train("run", {"--parallel.ranks=4", "--parallel.tensor=2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json one = eval({"run", "--data", "corpus.txt"});
  const json two = eval({"run", "--data", "corpus.txt", "--parallel.ranks=2"});
  EXPECT_NEAR(two.at("nats").get<double>(),
              one.at("nats").get<double>(),
              1e-6 * one.at("nats").get<double>());
}

TEST_F(EvalTest, RefusesLayoutsThatDoNotFit) {
  import_model();
  const auto error = [&](const std::string& override) {
    return error_of({"model", "--data", eval_golden("text.txt"), override}, 2);
  };
  EXPECT_THAT(error("--parallel.tensor=3"),
              HasSubstr("--parallel.tensor=3: parallel.tensor: found 3, expected a divisor of "
                        "model.heads = 4"));
  EXPECT_THAT(error("--parallel.context=7"),
              HasSubstr("--parallel.context=7: found 7, and the model's sequences of "));
  EXPECT_THAT(error("--train.steps=3"),
              HasSubstr("--train.steps=3: expected a key that says on what ranks the evaluation "
                        "runs"));
  EXPECT_THAT(error("--parallel.rnks=3"), HasSubstr("did you mean \"ranks\"?"));
  EXPECT_THAT(error("--jsn"), HasSubstr("--jsn: expected --section.key=value"));
  EXPECT_THAT(error("--cluster.file=none.toml"), HasSubstr("none.toml"));
}

TEST_F(EvalTest, SaysWhatIsWrong) {
  import_model();
  EXPECT_THAT(error_of({"model"}, 2), HasSubstr("--data"));
  EXPECT_THAT(error_of({"missing", "--data", "corpus.txt"}, 2),
              HasSubstr("missing does not exist"));
  EXPECT_THAT(error_of({"model", "--data", "nothing.txt"}, 3), HasSubstr("nothing.txt"));
  write_test_file(path("bad.jsonl"),
                  "{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"]}\n\n{\"ctx\": 3}\n");
  EXPECT_THAT(error_of({"model", "--choices", "bad.jsonl"}, 3),
              HasSubstr("bad.jsonl:3: found no string as \"ctx\""));
  write_test_file(path("long.jsonl"),
                  json({{"ctx", "a"}, {"endings", {"b", std::string(96, 'x')}}}).dump() + "\n");
  EXPECT_THAT(error_of({"model", "--choices", "long.jsonl"}, 3),
              HasSubstr("long.jsonl:1: endings[1]: found 97 tokens behind 2, expected 1 to 96 (the "
                        "model's sequence length) behind one at least"));
}

}  // namespace
}  // namespace tessera
