// generate with prompts from everywhere, in batches, and with what ends a continuation.

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/utf8.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

const std::vector<std::string> kPrompts = {
    "Line 7", "Line 12 of the text tells of 3", "L", "of them", "Line 31 of the"};

class GenerateTest : public TrainingTest {
 protected:
  void SetUp() override {
    ASSERT_EQ(train("a", {"--train.steps=100", "--data.sequence_length=64"}).code, 0);
  }

  Outcome generate(std::vector<std::string> options) const {
    options.insert(options.begin(), {"generate", "a"});
    return tessera(std::move(options));
  }

  std::string text(std::vector<std::string> options) const {
    const Outcome outcome = generate(std::move(options));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  }

  // What follows the prompt.
  std::string continuation(const std::string& prompt, std::vector<std::string> options) const {
    options.push_back("--prompt=" + prompt);
    const std::string all = text(std::move(options));
    EXPECT_THAT(all, StartsWith(prompt));
    EXPECT_TRUE(all.ends_with('\n'));
    return all.substr(prompt.size(), all.size() - prompt.size() - 1);
  }

  void write(const std::string& name, std::string_view content) const {
    write_file_atomic(path(name), content);
  }

  // kPrompts as a file of each form.
  void write_prompts() const {
    std::string lines;
    std::string objects;
    for (const std::string& prompt : kPrompts) {
      lines += prompt + "\n";
      objects += json{{"id", 1}, {"prompt", prompt}}.dump() + "\n";
    }
    write("prompts.txt", lines);
    write("prompts.jsonl", objects);
  }
};

std::vector<json> objects_of(const std::string& text) {
  std::vector<json> objects;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = rest.find('\n');
    objects.push_back(json::parse(rest.substr(0, end)));
    rest.remove_prefix(end + 1);
  }
  return objects;
}

TEST_F(GenerateTest, ThePromptComesFromWhereverItIs) {
  const std::string expected = text({"--prompt=Line 7"});
  write("prompt.txt", "Line 7\n");
  EXPECT_EQ(text({"--prompt-file=prompt.txt"}), expected);
  for (const char* option : {"--prompt=-", "--prompt-file=-"}) {
    const Outcome outcome =
        shell(format("printf 'Line 7\\n' | exec \"$tessera\" generate a {}", option));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, expected);
  }
}

TEST_F(GenerateTest, EveryPromptOfAFileGivesWhatItGivesAlone) {
  write_prompts();
  const std::string expected = text({"--prompts=prompts.txt", "--batch=1"});
  const std::vector<json> found = objects_of(expected);
  ASSERT_EQ(found.size(), kPrompts.size());
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    EXPECT_EQ(found[i].at("prompt"), kPrompts[i]);
    EXPECT_EQ(found[i].at("text"), continuation(kPrompts[i], {}));
  }
  EXPECT_EQ(text({"--prompts=prompts.txt", "--batch=2"}), expected);
  EXPECT_EQ(text({"--prompts=prompts.jsonl"}), expected);
  EXPECT_EQ(shell("exec \"$tessera\" generate a --prompts=- < prompts.txt").out, expected);
  EXPECT_THAT(text({"--prompts=prompts.txt", "--output=out.jsonl"}), IsEmpty());
  EXPECT_EQ(read_file(path("out.jsonl")), expected);
}

TEST_F(GenerateTest, AStopStringEndsTheText) {
  const std::string whole = continuation("Line 7", {"--temperature=0"});
  ASSERT_GT(whole.size(), 20U);
  for (const std::size_t begin : {0U, 1U, 9U}) {
    const std::string stop = whole.substr(begin, 6);
    const std::string expected = whole.substr(0, whole.find(stop));
    EXPECT_EQ(continuation("Line 7", {"--temperature=0", "--stop=" + stop, "--stop=ZZ"}), expected);
  }
  write("prompts.txt", "Line 7");
  const json found = objects_of(
      text({"--temperature=0", "--prompts=prompts.txt", "--stop=" + whole.substr(3, 4)}))[0];
  EXPECT_EQ(found.at("finish"), "stop");
}

TEST_F(GenerateTest, SaysWhyItEnded) {
  write("prompts.txt", "Line 7");
  const auto ends = [&](const char* tokens) {
    const Outcome outcome = generate({"--prompts=prompts.txt", tokens});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const json found = objects_of(outcome.out).at(0);
    return std::pair(found.at("finish").get<std::string>(), found.at("tokens").get<int>());
  };
  EXPECT_EQ(ends("--tokens=5"), std::pair(std::string("length"), 5));
  EXPECT_EQ(ends("--tokens=1"), std::pair(std::string("length"), 1));
  EXPECT_EQ(ends("--tokens=1000").first, "context");
  const Outcome full = generate({"--prompt=Line 7", "--tokens=1000"});
  EXPECT_EQ(full.code, 0);
  EXPECT_EQ(full.err,
            "info: the text has the 64 tokens that the model's sequences may have "
            "(data.sequence_length; --context allows more)\n");
  EXPECT_EQ(ends("--context=90").second, 64);
  const Outcome longer = generate({"--prompt=Line 7", "--tokens=1000", "--context=90"});
  EXPECT_EQ(longer.code, 0);
  EXPECT_THAT(longer.err, HasSubstr("the text has the 90 tokens"));
  EXPECT_TRUE(longer.out.starts_with(full.out.substr(0, full.out.size() - 1)));
}

// Nearly random tokens are bytes that seldom make a character.
TEST_F(GenerateTest, WhateverTheTokensTheTextIsUtf8) {
  const std::string wild = text({"--prompt=Line 7", "--temperature=50", "--tokens=60"});
  EXPECT_EQ(valid_utf8_prefix(wild), wild.size());
  EXPECT_THAT(wild, HasSubstr("\xEF\xBF\xBD"));
}

// Greedy tokens of a model that is sure of them are the same in both formats, wherever the weights
// come from.
TEST_F(GenerateTest, RunsInEitherFormat) {
  const std::string in_f32 = text({"--prompt=Line 7", "--temperature=0", "--tokens=6"});
  EXPECT_EQ(text({"--prompt=Line 7", "--temperature=0", "--tokens=6", "--dtype=bf16"}), in_f32);
  ASSERT_EQ(
      train("b", {"--train.steps=100", "--data.sequence_length=64", "--train.dtype=bf16"}).code, 0);
  const auto of_b = [&](std::vector<std::string> options) {
    options.insert(options.begin(),
                   {"generate", "b", "--prompt=Line 7", "--temperature=0", "--tokens=6"});
    const Outcome outcome = tessera(std::move(options));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_EQ(of_b({"--dtype=f32"}), of_b({}));
}

TEST_F(GenerateTest, SpeedIsSaidOnRequest) {
  EXPECT_THAT(generate({"--prompt=Line", "--tokens=3"}).err, IsEmpty());
  const Outcome outcome = generate({"--prompt=Line", "--tokens=3", "--verbose"});
  EXPECT_THAT(outcome.err,
              testing::MatchesRegex("info: prompt: [0-9]+ tokens at [0-9]+ tokens/s; then 2 tokens "
                                    "at [0-9.]+ tokens/s\n"));
}

TEST_F(GenerateTest, FiltersNarrowTheChoice) {
  const std::string greedy = continuation("Line 7", {"--temperature=0"});
  EXPECT_EQ(continuation("Line 7", {"--min-p=1", "--seed=3"}), greedy);
  EXPECT_NE(continuation("Line 7", {"--min-p=0.01", "--temperature=2", "--seed=3"}), greedy);
  EXPECT_EQ(continuation("Line 7", {"--temperature=0", "--repetition-penalty=1"}), greedy);
  EXPECT_NE(continuation("Line 7", {"--temperature=0", "--repetition-penalty=5"}), greedy);
}

TEST_F(GenerateTest, BadInputIsNamed) {
  const auto refused =
      [&](const std::vector<std::string>& options, const std::string& message, int code = 2) {
        const Outcome outcome = generate(options);
        EXPECT_EQ(outcome.code, code);
        EXPECT_EQ(outcome.err, "error: " + message + "\n");
        EXPECT_THAT(outcome.out, IsEmpty());
      };
  write("bad.jsonl", "{\"prompt\": \"a\"}\n{\"text\": \"b\"}\n");
  refused({"--prompts=bad.jsonl"}, "bad.jsonl:2: found no key \"prompt\" in the object", 3);
  const std::string long_line(1000, 'x');
  write("long.txt", "Line 7\n" + long_line + "\n");
  const Outcome outcome = generate({"--prompts=long.txt"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, StartsWith("error: long.txt:2: the prompt has "));
  EXPECT_THAT(outcome.err, HasSubstr("expected less than the 64 of the model's sequences"));
  refused({"--prompt-file=none.txt"}, "cannot open none.txt: No such file or directory", 3);
  refused({"--prompt=\xFF"}, "the prompt's byte 0 begins no UTF-8 character");
  write("prompts.txt", "a");
  refused({"--prompts=prompts.txt", "--prompt=a"},
          "--prompt excludes --prompts (see tessera generate --help)");
}

}  // namespace
}  // namespace tessera
