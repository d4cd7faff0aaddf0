// Fine-tuning on conversations, as a user meets it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

// A user's question of so many tokens, and answers of so many: no merge has a Z.
std::string conversation(std::size_t question, std::size_t answer) {
  const auto message = [](const char* role, std::size_t size) {
    return Json{{"role", role}, {"content", std::string(size, 'Z')}};
  };
  return Json{{"messages", {message("user", question), message("assistant", answer)}}}.dump() +
         "\n";
}

// Answers of sequences of one conversation each, and how many labels of each count: the answer's
// and the mark behind it.
constexpr std::array<std::size_t, 4> kAnswers = {1, 3, 5, 9};

class ChatTest : public TrainingTest {
 protected:
  // The tokenizer of the small run with the marks of ChatML behind its entries.
  ChatTest() {
    EXPECT_EQ(
        train("first", {"--train.steps=1", "--schedule.warmup=1", "--schedule.decay_ratio=0"}).code,
        0);
    Json tokenizer = Json::parse(read_file(path("tokenizer.json")));
    Json mark = tokenizer["added_tokens"][0];
    for (const char* content : {"<|im_start|>", "<|im_end|>"}) {
      mark["id"] = 300 + tokenizer["added_tokens"].size() - 2;
      mark["content"] = content;
      tokenizer["added_tokens"].push_back(mark);
    }
    write_test_file(path("chat.json"), tokenizer.dump());
    std::string lines;
    for (const std::size_t answer : kAnswers) {
      lines += conversation(12, answer);
    }
    write_test_file(path("chat.jsonl"), lines);
  }

  Outcome train_chat(const std::string& run, const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> all = {"--data.format=chat",
                                    "--data.files=chat.jsonl",
                                    "--data.shuffle=false",
                                    "--data.sequence_length=48",
                                    "--tokenizer.path=chat.json",
                                    "--tokenizer.train_vocab=302",
                                    "--model.vocab=302"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return train(run, all);
  }

  std::vector<double> losses(const std::string& run) const {
    std::vector<double> result;
    for (const std::string& line : metrics(run)) {
      result.push_back(Json::parse(line).at("loss"));
    }
    return result;
  }
};

// The loss of a batch is the mean over its labels, not over its sequences.
TEST_F(ChatTest, EveryLabelThatCountsWeighsTheSame) {
  const std::vector<std::string> still = {"--optimizer.lr=1e-30", "--train.microbatch=1"};
  std::vector<std::string> one = still;
  one.insert(one.end(), {"--train.global_batch=1", "--train.steps=4"});
  const Outcome outcome = train_chat("one", one);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("chat: 4 conversations in 4 sequences, "));
  EXPECT_THAT(outcome.err, HasSubstr(" % of their places filled; labels that count: 22"));
  std::vector<std::string> four = still;
  four.insert(four.end(), {"--train.steps=1", "--schedule.warmup=1", "--schedule.decay_ratio=0"});
  ASSERT_EQ(train_chat("four", four).code, 0);
  const std::vector<double> alone = losses("one");
  ASSERT_EQ(alone.size(), kAnswers.size());
  double sum = 0;
  double labels = 0;
  for (std::size_t i = 0; i < kAnswers.size(); ++i) {
    const auto count = static_cast<double>(kAnswers[i] + 1);
    sum += alone[i] * count;
    labels += count;
  }
  EXPECT_NEAR(losses("four").at(0), sum / labels, 1e-6 * sum / labels);
}

// Rank 1 reads conversations that are cut before their answers: it adds zeros to everything.
TEST_F(ChatTest, ARankWithoutLabelsChangesNothing) {
  std::string lines;
  for (const std::size_t answer : kAnswers) {
    lines += conversation(12, answer) + conversation(60, answer);
  }
  write_test_file(path("chat.jsonl"), lines);
  const std::vector<std::string> options = {"--train.microbatch=1"};
  const Outcome one = train_chat("one", options);
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(
      one.err,
      HasSubstr("4 of 8 conversations are longer than data.sequence_length = 48 and are cut "
                "at the end; of 4 of them no label that counts is left"));
  for (const std::string state : {"ddp", "zero1", "fsdp"}) {
    std::vector<std::string> two = options;
    two.insert(two.end(), {"--parallel.ranks=2", "--state.preset=" + state});
    const Outcome outcome = train_chat(state, two);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(numbers(state), numbers("one")) << state;
    EXPECT_THAT(differing_tensors(checkpoint(state), checkpoint("one")), testing::IsEmpty());
  }
  // Not a label in the whole step.
  write_test_file(path("chat.jsonl"),
                  conversation(12, 1) + conversation(60, 1) + conversation(60, 2));
  const Outcome none =
      train_chat("none", {"--train.microbatch=1", "--train.global_batch=1", "--train.steps=4"});
  ASSERT_EQ(none.code, 0) << none.err;
  EXPECT_THAT(none.err, HasSubstr("warning: step 2 is not applied: none of its labels counts"));
}

TEST_F(ChatTest, GoesOnWhereItWasStoppedAndReadsCompressedFiles) {
  std::string lines;
  for (std::size_t i = 0; i < 60; ++i) {
    lines += conversation(i % 17, 1 + i % 5);
  }
  write_test_file(path("chat.jsonl"), lines);
  const std::vector<std::string> shuffled = {"--data.shuffle=true"};
  const Outcome whole = train_chat("whole", shuffled);
  ASSERT_EQ(whole.code, 0) << whole.err;
  ASSERT_EQ(shell("gzip -k chat.jsonl").code, 0);
  std::vector<std::string> packed = shuffled;
  packed.insert(packed.end(), {"--data.files=chat.jsonl.gz", "--checkpoint.every=5"});
  ASSERT_EQ(train_chat("parts", packed).code, 0);
  EXPECT_EQ(numbers("parts"), numbers("whole"));
  packed.push_back(format("--checkpoint.resume={}", checkpoint("parts", 5).string()));
  const Outcome resumed = train_chat("parts", packed);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  expect_same_training("parts", "whole");
}

TEST_F(ChatTest, BadInputIsNamed) {
  write_test_file(path("bad.jsonl"),
                  conversation(3, 3) +
                      "\n{\"messages\": [{\"role\": \"bot\", \"content\": \"\"}]}\n" +
                      "{\"messages\": [{\"role\": \"assistant\"");
  const Outcome refused = train_chat("bad", {"--data.files=bad.jsonl"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err,
              HasSubstr("bad.jsonl:3: message 1: found the role \"bot\", expected system, user or "
                        "assistant (with data.skip_broken such lines are left out and counted)"));
  const Outcome skipped = train_chat("bad", {"--data.files=bad.jsonl", "--data.skip_broken=true"});
  EXPECT_EQ(skipped.code, 0) << skipped.err;
  EXPECT_THAT(skipped.err, HasSubstr("skipped 2 broken lines, the first bad.jsonl:3: message 1: "));
  const Outcome plain = train_chat(
      "plain",
      {"--tokenizer.path=tokenizer.json", "--tokenizer.train_vocab=300", "--model.vocab=300"});
  EXPECT_EQ(plain.code, 2);
  EXPECT_THAT(plain.err, HasSubstr("chatml lacks <|im_start|> and <|im_end|>"));
  const Outcome other = train_chat("other", {"--data.chat_template=llama3"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err,
              HasSubstr("data.chat_template = \"llama3\": found a tokenizer without the special "
                        "tokens <|start_header_id|>, <|end_header_id|> and <|eot_id|>"));
  const Outcome none = train_chat("none", {"--tokenizer.path=none.json"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("found conversations to train a tokenizer on (chat.jsonl)"));
  write_test_file(path("long.jsonl"), conversation(60, 1));
  const Outcome cut = train_chat("cut", {"--data.files=long.jsonl"});
  EXPECT_EQ(cut.code, 3);
  EXPECT_THAT(cut.err,
              HasSubstr("no label of the conversations counts: their answers lie behind "
                        "data.sequence_length = 48; set it higher"));
}

// Written by tests/golden/make_chat_goldens.py: PyTorch's loss in f64, of each conversation by
// itself.
TEST_F(ChatTest, FineTuningBeginsAtTheLossThatPyTorchComputes) {
  const std::string golden = std::string(TESSERA_SOURCE_DIR) + "/tests/golden/chat/";
  write_test_file(path("tune.toml"),
                  format("[run]\ndir = \"tune\"\nthreads = 1\n[model]\nweights = \"{0}model\"\n"
                         "[tokenizer]\npath = \"{0}model/tokenizer.json\"\n"
                         "[data]\nfiles = [\"{0}chat.jsonl\"]\nformat = \"chat\"\n"
                         "sequence_length = 128\nshuffle = false\n"
                         "[train]\nsteps = 1\nglobal_batch = 4\nmicrobatch = 2\n"
                         "[schedule]\nwarmup = 1\ndecay_ratio = 0.0\n",
                         golden));
  const Json expected = Json::parse(read_file(golden + "loss.json"));
  for (const std::string ranks : {"1", "2"}) {
    const Outcome outcome =
        tessera({"train", "tune.toml", "--run.dir=tune" + ranks, "--parallel.ranks=" + ranks});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NEAR(
        losses("tune" + ranks).at(0), expected["loss"], 1e-6 * expected["loss"].get<double>());
  }
}

TEST_F(ChatTest, TheExampleNeedsAModelAndNothingElse) {
  const Outcome outcome =
      tessera({"train", std::string(TESSERA_SOURCE_DIR) + "/configs/runs/chat.toml"});
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("models/Llama-3.2-1B-Instruct"));
}

TEST_F(ChatTest, InspectMarksWhatIsTrained) {
  const std::vector<std::string> arguments = {
      "data", "inspect", "chat.jsonl", "--format=chat", "--samples=1"};
  std::vector<std::string> with = arguments;
  with.insert(with.end(), {"--tokenizer=chat.json", "--sample-length=1000"});
  const Outcome shown = tessera(with);
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out,
              AllOf(HasSubstr("; documents: 4\nlengths: from "),
                    HasSubstr("\ntrained: 22 tokens, "),
                    HasSubstr("\nconversation 1, "),
                    HasSubstr("\n  \"<|im_start|>user\\nZZZZZZZZZZZZ<|im_end|>\\n"
                              "<|im_start|>assistant\\n\"\n+ \"Z<|im_end|>\"\n  \"\\n\"\n")));
  const Outcome unknown = tessera(arguments);
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("--tokenizer"));
  with.emplace_back("--chat-template=llama3");
  const Outcome other = tessera(with);
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("data.chat_template = \"llama3\": found a tokenizer without"));
}

// eval scores what training trains: its loss is that of a step over all conversations.
TEST_F(ChatTest, EvaluationScoresTheAnswers) {
  ASSERT_EQ(train_chat("run",
                       {"--optimizer.lr=1e-30",
                        "--train.microbatch=1",
                        "--train.steps=1",
                        "--schedule.warmup=1",
                        "--schedule.decay_ratio=0"})
                .code,
            0);
  const Outcome outcome = tessera({"eval", "run", "--data=chat.jsonl", "--format=chat", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json found = Json::parse(outcome.out);
  EXPECT_NEAR(found.at("loss").get<double>(), losses("run").at(0), 1e-6 * losses("run").at(0));
  EXPECT_EQ(found.at("tokens"), 22);
  // The run's data say what lines of JSON are.
  const Outcome by_run = tessera({"eval", "run", "--data=chat.jsonl", "--json"});
  EXPECT_EQ(by_run.out, outcome.out) << by_run.err;
  EXPECT_EQ(found.at("documents"), kAnswers.size());
  EXPECT_EQ(found.at("bytes"), std::accumulate(kAnswers.begin(), kAnswers.end(), std::size_t{0}));
  EXPECT_EQ(
      tessera({"eval", "run", "--data=chat.jsonl", "--format=chat", "--chat-template=llama3"}).code,
      2);
}

// What was learned from a conversation is what a user gets who asks the same.
TEST_F(ChatTest, AnswersAsItWasTrained) {
  const auto message = [](const char* role, const char* content) {
    return Json{{"role", role}, {"content", content}};
  };
  const std::string line = Json{{"messages",
                                 {message("system", "Be brief."),
                                  message("user", "Which line?"),
                                  message("assistant", "Line 7.")}}}
                               .dump();
  write_test_file(path("chat.jsonl"), line + "\n");
  const Outcome trained = train_chat("asked",
                                     {"--train.global_batch=1",
                                      "--train.microbatch=1",
                                      "--train.steps=60",
                                      "--optimizer.lr=1e-2",
                                      "--data.sequence_length=64"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::vector<std::string> ask = {"generate",
                                        "asked",
                                        "--chat",
                                        "--system=Be brief.",
                                        "--prompt=Which line?",
                                        "--temperature=0"};
  const Outcome answer = tessera(ask);
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.out, "Line 7.\n");

  // Where it goes, others know how to ask it and where its answers end.
  ASSERT_EQ(tessera({"checkpoint", "export", "asked", "out"}).code, 0);
  const Json config = Json::parse(read_file(path("out/config.json")));
  const Json tokenizer = Json::parse(read_file(path("out/tokenizer.json")));
  const Json& ends = config.at("eos_token_id");
  ASSERT_TRUE(ends.is_array() || ends.is_number());
  const int end = ends.is_array() ? ends.back().get<int>() : ends.get<int>();
  bool is_end_of_turn = false;
  for (const Json& token : tokenizer.at("added_tokens")) {
    is_end_of_turn =
        is_end_of_turn || (token.at("id") == end && token.at("content") == "<|im_end|>");
  }
  EXPECT_TRUE(is_end_of_turn) << ends;
  EXPECT_THAT(Json::parse(read_file(path("out/tokenizer_config.json")))
                  .at("chat_template")
                  .get<std::string>(),
              HasSubstr("<|im_start|>assistant"));

  const Outcome refused = tessera({"generate", "first", "--chat", "--prompt=Which line?"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("data.chat_template"));
}

}  // namespace
}  // namespace tessera
