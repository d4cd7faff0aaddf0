// data tokenize and inspect, and training on what they make, as a user meets them.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <regex>
#include <string>
#include <thread>
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
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class DataTest : public TrainingTest {
 protected:
  // Writes corpus.txt's lines as JSONL, times over.
  void write_jsonl(const std::string& name, int times, std::string_view extra = "") const {
    std::string lines;
    for (int i = 0; i < times; ++i) {
      std::string_view rest = corpus;
      while (!rest.empty()) {
        const std::size_t end = rest.find('\n');
        lines += format("{{\"n\": {}, \"body\": \"{}\"}}\n", i, rest.substr(0, end));
        rest.remove_prefix(end + 1);
      }
    }
    write_test_file(path(name), lines + std::string(extra));
  }

  Outcome tokenize(const std::string& input,
                   const std::string& output,
                   const std::vector<std::string>& options = {}) const {
    std::vector<std::string> arguments = {"data", "tokenize", input, "--output=" + output};
    const bool named = std::ranges::any_of(
        options, [](const std::string& option) { return option.starts_with("--tokenizer="); });
    if (!named) {
      arguments.emplace_back("--tokenizer=tokenizer.json");
    }
    arguments.insert(arguments.end(), options.begin(), options.end());
    return tessera(arguments);
  }

  const std::string corpus = corpus_text();
};

TEST_F(DataTest, TrainingOnTokensIsTrainingOnTheirText) {
  ASSERT_EQ(train("text").code, 0);
  std::filesystem::create_directory(path("sets"));
  const Outcome made = tokenize("corpus.txt", "sets/corpus");
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, StartsWith("sets/corpus.bin: "));
  for (const std::string file : {"sets/corpus", "sets/corpus.idx", "sets/corpus.bin"}) {
    ASSERT_EQ(train("tokens", {"--data.format=megatron", "--data.files=" + file}).code, 0);
    EXPECT_EQ(numbers("tokens"), numbers("text"));
    std::filesystem::remove_all(path("tokens"));
  }
  // The .bin by itself is a file of bare ids.
  std::filesystem::copy(path("sets/corpus.bin"), path("ids"));
  ASSERT_EQ(train("bare", {"--data.format=tokens", "--data.files=ids"}).code, 0);
  EXPECT_EQ(numbers("bare"), numbers("text"));
}

// GPT-2's tokenizer is a directory with two files.
TEST_F(DataTest, APairOfTokenizerFilesEncodesAsOne) {
  ASSERT_EQ(train("text").code, 0);
  std::filesystem::create_directory(path("pair"));
  write_gpt2_files("pair/encoder.json", "pair/vocab.bpe");
  const Outcome made = tokenize("corpus.txt", "ids", {"--tokenizer=pair"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, StartsWith("ids.bin: "));
  EXPECT_GT(std::filesystem::file_size(path("ids.bin")), 0U);
}

TEST_F(DataTest, TextByAnotherFormatsNameIsTold) {
  write_jsonl("a.jsonl", 1);
  const Outcome outcome =
      train("raw", {"--data.files=a.jsonl", "--data.format=text", "--tokenizer.path=t.json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("warning: a.jsonl is read as plain text, its syntax included: data.format "
                        "= \"jsonl\" reads what is in it\n"));
}

TEST_F(DataTest, TrainsOnCompressedJsonlAndKeepsDataForValidation) {
  write_jsonl("a.jsonl", 1);
  ASSERT_EQ(shell("gzip -k a.jsonl").code, 0);
  const std::vector<std::string> options = {"--data.format=jsonl",
                                            "--data.field=body",
                                            "--data.validation_share=0.25",
                                            "--tokenizer.path=t.json"};
  std::vector<std::string> plain = options;
  plain.push_back("--data.files=a.jsonl");
  std::vector<std::string> packed = options;
  packed.push_back("--data.files=a.jsonl.gz");
  const Outcome outcome = train("plain", plain);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::smatch match;
  ASSERT_TRUE(std::regex_search(
      outcome.err,
      match,
      std::regex("data: ([0-9,]+) tokens; documents: [0-9]+; for validation: ([0-9,]+) tokens")))
      << outcome.err;
  const auto number = [&](std::size_t group) {
    std::string digits = match[group];
    std::erase(digits, ',');
    return std::stod(digits);
  };
  // To the document, of which each is a four-hundredth.
  EXPECT_NEAR(number(2) / (number(1) + number(2)), 0.25, 0.005);
  ASSERT_EQ(train("packed", packed).code, 0);
  EXPECT_EQ(numbers("packed"), numbers("plain"));
}

TEST_F(DataTest, SourcesAreReadByAnyNumberOfRanksAlike) {
  write_jsonl("a.jsonl", 1);
  const std::vector<std::string> options = {
      "--data.files=[]",
      "--data.sources=[{files = [\"corpus.txt\"], weight = 3}, {files = [\"a.jsonl\"], format = "
      "\"jsonl\", field = \"body\"}]",
      "--train.microbatch=1"};
  ASSERT_EQ(train("one").code, 0);  // makes the tokenizer
  const Outcome one = train("a", options);
  ASSERT_EQ(one.code, 0) << one.err;
  std::vector<std::string> ranks = options;
  ranks.insert(ranks.end(), {"--parallel.ranks=2", "--state.preset=ddp"});
  const Outcome two = train("b", ranks);
  ASSERT_EQ(two.code, 0) << two.err;
  // The same tokens in another order of sums: the same losses, but for rounding.
  const std::vector<std::string> a = metrics("a");
  const std::vector<std::string> b = metrics("b");
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(a.front().substr(0, 22), b.front().substr(0, 22));
}

TEST_F(DataTest, ABrokenLineIsNamedSkippedAndCounted) {
  ASSERT_EQ(train("a").code, 0);
  write_jsonl("a.jsonl", 1, "{\"body\": 7}\r\n{\"body\": \"last\"}\n{\"body\": \"cut");
  const Outcome refused = tokenize("a.jsonl", "out", {"--field=body"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(
      refused.err,
      HasSubstr("error: a.jsonl:401: found a number under \"body\", expected a string (with "
                "--skip-broken such lines are left out and counted)"));
  const Outcome skipped = tokenize("a.jsonl", "out", {"--field=body", "--skip-broken"});
  ASSERT_EQ(skipped.code, 0) << skipped.err;
  EXPECT_THAT(skipped.out, HasSubstr("documents: 401;"));
  EXPECT_THAT(skipped.err, HasSubstr("skipped 2 broken lines, the first a.jsonl:401: "));
  const Outcome again = tokenize("a.jsonl", "out", {"--field=body", "--skip-broken"});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("out.bin exists: choose another --output, or replace it"));
}

// The format of the first file is not that of the others.
TEST_F(DataTest, EachFileIsOfTheFormatThatItsNameSays) {
  ASSERT_EQ(train("a").code, 0);
  write_jsonl("b.jsonl", 1);
  ASSERT_EQ(shell("gzip b.jsonl && mkdir -p some/below some/.hidden && cp corpus.txt some/a.txt && "
                  "cp b.jsonl.gz some/below/b.jsonl.gz && echo no > some/.hidden/c.txt")
                .code,
            0);
  const std::vector<std::string> field = {"--field=body"};
  ASSERT_EQ(tokenize("corpus.txt", "first", field).code, 0);
  ASSERT_EQ(tokenize("b.jsonl.gz", "second", field).code, 0);
  const std::string apart = read_file(path("first.bin")) + read_file(path("second.bin"));
  const Outcome both = shell(
      "\"$tessera\" data tokenize corpus.txt b.jsonl.gz --field body --tokenizer tokenizer.json "
      "-o both");
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_EQ(read_file(path("both.bin")), apart);
  const Outcome folder = tokenize("some", "folder", field);
  ASSERT_EQ(folder.code, 0) << folder.err;
  EXPECT_THAT(folder.err, HasSubstr("info: some: 2 files (1 text, 1 jsonl)\n"));
  EXPECT_EQ(read_file(path("folder.bin")), apart);
  const Outcome pattern = tokenize("some/**/[ab].*", "pattern", field);
  ASSERT_EQ(pattern.code, 0) << pattern.err;
  EXPECT_EQ(read_file(path("pattern.bin")), apart);

  // Training reads them alike, and so does a tokenizer's.
  ASSERT_EQ(train("sets", {"--data.files=[\"first\", \"second\"]"}).code, 0);
  const Outcome trained = train("folder", {"--data.files=some", "--data.field=body"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(numbers("folder"), numbers("sets"));
  const Outcome none = train("none", {"--data.files=some/*.json"});
  EXPECT_EQ(none.code, 3);
  EXPECT_THAT(none.err,
              HasSubstr("some/*.json matches no file, expected one at least (data.files"));
  ASSERT_EQ(tessera({"tokenizer", "train", "corpus.txt", "--vocab=300", "-o", "one.json"}).code, 0);
  const Outcome mixed = tessera({"tokenizer",
                                 "train",
                                 "b.jsonl.gz",
                                 "some/a.txt",
                                 "--field=body",
                                 "--vocab=300",
                                 "-o",
                                 "two.json"});
  ASSERT_EQ(mixed.code, 0) << mixed.err;
  EXPECT_THAT(read_file(path("two.json")), testing::Not(HasSubstr("body")));
  const Outcome shown = tessera({"data", "inspect", "some", "--field=body", "--samples=0"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("; documents: 401\n"));
}

// One is needed where text is read or written; ids are checked against the model's.
TEST_F(DataTest, TokensTrainWithoutATokenizer) {
  ASSERT_EQ(train("with").code, 0);
  ASSERT_EQ(tokenize("corpus.txt", "set").code, 0);
  const std::vector<std::string> bare = {
      "--data.files=set", "--tokenizer.path=", "--tokenizer.train_vocab=0"};
  const Outcome outcome = train("without", bare);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("info: no tokenizer: the data are ids below model.vocab"));
  EXPECT_EQ(numbers("without"), numbers("with"));
  EXPECT_FALSE(std::filesystem::exists(path("without/tokenizer.json")));
  std::vector<std::string> more = bare;
  more.emplace_back("--train.steps=14");
  EXPECT_EQ(train("without", more).code, 0);

  const Outcome spoken = tessera({"generate", "without", "--prompt=a"});
  EXPECT_EQ(spoken.code, 2);
  EXPECT_THAT(spoken.err, HasSubstr("was trained on tokens without a tokenizer"));
  const Outcome text = tessera({"eval", "without", "--data=corpus.txt"});
  EXPECT_EQ(text.code, 2);
  const Outcome scored = tessera({"eval", "without", "--data=set", "--json"});
  ASSERT_EQ(scored.code, 0) << scored.err;
  EXPECT_THAT(scored.out, HasSubstr("\"bits_per_byte\":null"));
  const Outcome exported = tessera({"checkpoint", "export", "without", "out"});
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.err, HasSubstr("the weights go without a tokenizer: their run had none"));

  std::vector<std::string> small = bare;
  small.emplace_back("--model.vocab=100");
  const Outcome beyond = train("small", small);
  EXPECT_EQ(beyond.code, 3);
  EXPECT_THAT(beyond.err, HasSubstr("set.bin: token "));
  const Outcome read = train("read", {"--tokenizer.path=", "--tokenizer.train_vocab=0"});
  EXPECT_EQ(read.code, 2);
  EXPECT_THAT(read.err, HasSubstr("tokenizer.path: found no tokenizer, and corpus.txt is text"));
}

// Arrays of NumPy say what their ids are, whatever data.token_type says.
TEST_F(DataTest, ArraysOfNumpyAreTokens) {
  ASSERT_EQ(train("with").code, 0);
  ASSERT_EQ(tokenize("corpus.txt", "set").code, 0);
  const std::string ids = read_file(path("set.bin"));
  const std::string header =
      format("{{'descr': '<u2', 'fortran_order': False, 'shape': ({},), }}", ids.size() / 2);
  std::string front = "\x93NUMPY\x01";
  front += '\0';
  front += static_cast<char>(118);
  front += '\0';
  write_test_file(path("ids.npy"),
                  front + header + std::string(117 - header.size(), ' ') + "\n" + ids);
  const Outcome outcome = train("array", {"--data.files=ids.npy", "--data.token_type=u32"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(numbers("array"), numbers("with"));
  const Outcome text = train("text", {"--data.files=ids.npy", "--data.format=text"});
  EXPECT_EQ(text.code, 3);
  EXPECT_THAT(text.err, HasSubstr("ids.npy is a NumPy array (.npy), expected text: format tokens"));
}

TEST_F(DataTest, AnIndexOfAnotherBinIsRefused) {
  ASSERT_EQ(train("a").code, 0);
  ASSERT_EQ(tokenize("corpus.txt", "out").code, 0);
  std::filesystem::resize_file(path("out.bin"), 1000);
  const Outcome outcome = train("b", {"--data.format=megatron", "--data.files=out"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("out.bin: found 1000 bytes, expected "),
                    HasSubstr("the two files do not belong together, or one is cut off"),
                    HasSubstr("(data.files: out)")));
}

TEST_F(DataTest, ARefusedRunLeavesNothing) {
  ASSERT_EQ(train("text").code, 0);
  write_test_file(path("empty.txt"), "");
  std::filesystem::create_directory(path("made"));
  for (const char* input : {"none.txt", "empty.txt"}) {
    EXPECT_EQ(tokenize(input, "made/out").code, 3);
    EXPECT_TRUE(std::filesystem::is_empty(path("made")));
  }
}

// Killed at any time, started again: the same bytes.
TEST_F(DataTest, AKilledRunGoesOn) {
  ASSERT_EQ(train("a").code, 0);
  write_jsonl("a.jsonl", 1500);
  const std::vector<std::string> options = {"--field=body", "--threads=2"};
  ASSERT_EQ(tokenize("a.jsonl", "whole", options).code, 0);
  bool resumed = false;
  for (int attempt = 0; attempt < 8 && !std::filesystem::exists(path("out.idx")); ++attempt) {
    Process process({built_program("tessera"),
                     "data",
                     "tokenize",
                     "a.jsonl",
                     "--tokenizer=tokenizer.json",
                     "--output=out",
                     "--field=body",
                     "--threads=2"},
                    path(""));
    // Until it has made something durable, or is done.
    while (attempt < 7 && !std::filesystem::exists(path("out.journal")) &&
           !std::filesystem::exists(path("out.idx"))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (attempt < 2) {
      process.send(SIGKILL);
    }
    resumed = resumed || process.finish().err.find("went on behind the first") != std::string::npos;
  }
  EXPECT_TRUE(resumed);
  EXPECT_TRUE(read_file(path("out.bin")) == read_file(path("whole.bin")));
  EXPECT_TRUE(read_file(path("out.idx")) == read_file(path("whole.idx")));
}

TEST_F(DataTest, InspectCountsAndShows) {
  ASSERT_EQ(train("a").code, 0);
  write_jsonl("a.jsonl", 1);
  const Outcome text =
      tessera({"data", "inspect", "a.jsonl", "--field=body", "--tokenizer=tokenizer.json"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out,
              AllOf(StartsWith("bytes of text: "),
                    HasSubstr("; documents: 400\nlengths: from "),
                    HasSubstr("\ntokens: "),
                    HasSubstr("\ndocument 1, "),
                    HasSubstr("\"Line 0 of the text tells of 0 ships")));
  ASSERT_EQ(tokenize("a.jsonl", "out", {"--field=body"}).code, 0);
  const Outcome tokens = tessera({"data", "inspect", "out.idx", "--tokenizer=tokenizer.json"});
  ASSERT_EQ(tokens.code, 0) << tokens.err;
  EXPECT_THAT(tokens.out,
              AllOf(HasSubstr("; documents: 400\nlengths: from "),
                    HasSubstr("out.bin: token 0, "),
                    HasSubstr("\"<|begin_of_text|>Line 0 of the text")));
  const std::vector<std::uint16_t> bare = {1, 2, 3, 60000, 5, 60001};
  write_test_file(path("bare.u16"), {reinterpret_cast<const char*>(bare.data()), 2 * bare.size()});
  const Outcome foreign =
      tessera({"data", "inspect", "bare.u16", "--format=tokens", "--tokenizer=tokenizer.json"});
  EXPECT_EQ(foreign.code, 3);
  EXPECT_THAT(foreign.err,
              HasSubstr("2 of 6 tokens are none of the tokenizer's, expected ids from 0 to "));
  EXPECT_THAT(foreign.err, HasSubstr("the first is bare.u16: token 3: id 60000"));
  const std::vector<std::uint32_t> wide = {1, 4000000000, 3};
  write_test_file(path("wide.u32"), {reinterpret_cast<const char*>(wide.data()), 4 * wide.size()});
  const std::vector<std::string> inspect = {
      "data", "inspect", "wide.u32", "--format=tokens", "--token-type=u32"};
  EXPECT_THAT(tessera(inspect).out, HasSubstr("\n1 none 3\n"));
  const Outcome ids = tessera({"data", "inspect", "out", "--format=megatron", "--samples=1"});
  EXPECT_THAT(ids.out, AllOf(HasSubstr("out.bin: token 0, "), EndsWith("\n")));
  std::filesystem::remove(path("out.idx"));
  EXPECT_THAT(tessera({"data", "inspect", "out"}).err, HasSubstr("cannot open out.idx: "));
}

}  // namespace
}  // namespace tessera
