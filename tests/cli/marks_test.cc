// Where texts begin and end, as the files of a tokenizer say: in training, in tokenizing, before
// prompts, and after what is generated.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// A model over bytes and <s> (256), </s> (257), whose tokenizer puts <s> before a text: that of
// tests/golden/eval, with other files beside it.
class MarksTest : public TrainingTest {
 protected:
  MarksTest() {
    const auto golden = std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/eval";
    std::filesystem::create_directory(path("hf"));
    for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
      write_test_file(path("hf") / name, read_file(golden / name));
    }
    write_test_file(path("docs.jsonl"), "{\"text\": \"hello\"}\n{\"text\": \"ship\"}\n");
  }

  void write(const std::string& name, const json& object) const {
    write_test_file(path("hf") / name, object.dump());
  }

  void set_config(const std::string& key, const json& value) const {
    json config = json::parse(read_file(path("hf/config.json")));
    config[key] = value;
    write("config.json", config);
  }

  // As GPT-2's: nothing stands before a text.
  void put_nothing() const {
    json tokenizer = json::parse(read_file(path("hf/tokenizer.json")));
    tokenizer["post_processor"] = nullptr;
    write("tokenizer.json", tokenizer);
  }

  // The ids of docs.jsonl as `data tokenize` has them.
  std::vector<int> tokenized(std::vector<std::string> options = {}) const {
    options.insert(options.begin(),
                   {"data", "tokenize", "docs.jsonl", "--tokenizer=hf", "--output=out", "--force"});
    const Outcome outcome = tessera(options);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    said_ = outcome.err;
    const std::string bytes = read_file(path("out.bin"));
    std::vector<int> ids;
    for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
      ids.push_back(static_cast<unsigned char>(bytes[i]) +
                    256 * static_cast<unsigned char>(bytes[i + 1]));
    }
    return ids;
  }

  void import_model() const {
    std::filesystem::remove_all(path("model"));
    const Outcome outcome = tessera({"checkpoint", "import", "hf", "-o", "model"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    said_ = outcome.err;
  }

  // What greedy choice makes of a prompt.
  json generated(std::vector<std::string> options = {}) const {
    write_test_file(path("prompts.txt"), prompt_ + "\n");
    options.insert(options.begin(),
                   {"generate", "model", "--prompts=prompts.txt", "--tokens=8", "--temperature=0"});
    const Outcome outcome = tessera(options);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out, nullptr, false);
  }

  std::string prompt_ = "the ship";
  mutable std::string said_;  // on stderr
};

std::vector<int> ids_of(const std::string& before,
                        std::vector<int> begin,
                        const std::string& after,
                        const std::vector<int>& end) {
  std::vector<int> ids;
  for (const std::string& text : {before, after}) {
    ids.insert(ids.end(), begin.begin(), begin.end());
    ids.insert(ids.end(), text.begin(), text.end());
    ids.insert(ids.end(), end.begin(), end.end());
  }
  return ids;
}

std::vector<int> documents(const std::vector<int>& begin, const std::vector<int>& end) {
  return ids_of("hello", begin, "ship", end);
}

TEST_F(MarksTest, DocumentsHaveThoseOfTheTokenizersFiles) {
  EXPECT_EQ(tokenized(), documents({256}, {257}));
  EXPECT_THAT(said_, HasSubstr("documents: <s> before each, </s> after it"));
  EXPECT_EQ(tokenized({"--no-bos"}), documents({}, {257}));
  EXPECT_EQ(tokenized({"--no-eos"}), documents({256}, {}));
  EXPECT_EQ(tokenized({"--bos=#", "--eos=!"}), documents({'#'}, {'!'}));
  put_nothing();
  EXPECT_EQ(tokenized(), documents({}, {257}));
  write("tokenizer_config.json", {{"eos_token", {{"content", "!"}}}, {"bos_token", "<s>"}});
  EXPECT_EQ(tokenized(), documents({}, {'!'}));
  write("tokenizer_config.json", {{"add_bos_token", true}, {"bos_token", "<s>"}});
  EXPECT_EQ(tokenized(), documents({256}, {257}));
  // A name that no file of the tokenizer has is said to do nothing.
  write("tokenizer_config.json", {{"eos_token", "<|nowhere|>"}});
  EXPECT_EQ(tokenized(), documents({}, {257}));
  EXPECT_THAT(said_,
              HasSubstr("warning: eos_token of hf/tokenizer_config.json is \"<|nowhere|>\", which "
                        "is no token of the tokenizer: it is passed over\n"));
  write("tokenizer_config.json", json::object());
  write("generation_config.json", {{"eos_token_id", {35, 257}}});
  EXPECT_EQ(tokenized(), documents({}, {'#'}));
  EXPECT_THAT(said_, HasSubstr("documents end with the first, #"));
  const Outcome refused =
      tessera({"data", "tokenize", "docs.jsonl", "--tokenizer=hf", "--output=out", "--eos=<none>"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("--eos: found \"<none>\", which is no token of the tokenizer"));
}

TEST_F(MarksTest, SaysThatNoMarkIsPut) {
  put_nothing();
  json tokenizer = json::parse(read_file(path("hf/tokenizer.json")));
  for (json& token : tokenizer["added_tokens"]) {
    const std::string name = token["content"];
    token["content"] = "<|" + name;
    tokenizer["model"]["vocab"]["<|" + name] = token["id"];
    tokenizer["model"]["vocab"].erase(name);
  }
  write("tokenizer.json", tokenizer);
  const std::string warning = "no token is named as EOS: no mark is put between documents";
  EXPECT_EQ(tokenized(), documents({}, {}));
  EXPECT_THAT(said_, HasSubstr(warning));
  EXPECT_THAT(tessera({"data", "inspect", "docs.jsonl", "--tokenizer=hf"}).err, HasSubstr(warning));
  const Outcome trained = train(
      "run",
      {"--tokenizer.path=hf", "--tokenizer.train_vocab=0", "--model.vocab=258", "--train.steps=4"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr(warning));
  EXPECT_EQ(tokenized({"--no-eos"}), documents({}, {}));
  EXPECT_THAT(said_, Not(HasSubstr(warning))) << "asked for";
}

// What a run found is in its checkpoints, and goes along without the files that named it.
TEST_F(MarksTest, RunsKeepTheirs) {
  write("tokenizer_config.json", {{"eos_token", "#"}, {"add_bos_token", false}});
  const std::vector<std::string> overrides = {"--tokenizer.path=hf",
                                              "--tokenizer.train_vocab=0",
                                              "--model.vocab=258",
                                              "--train.steps=4",
                                              "--data.files=docs.jsonl",
                                              "--data.format=jsonl",
                                              "--data.sequence_length=10",
                                              "--sample.prompt="};
  const Outcome trained = train("run", overrides);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("data: 11 tokens; documents: 2"));
  EXPECT_THAT(trained.err, HasSubstr("documents: # after each"));
  const std::string config = read_file(path("run/config.toml"));
  EXPECT_THAT(config, HasSubstr("bos = []\neos = [\"#\"]"));
  std::filesystem::remove_all(path("hf"));
  ASSERT_EQ(tessera({"checkpoint", "export", "run", "out"}).code, 0);
  EXPECT_EQ(json::parse(read_file(path("out/config.json"))).at("eos_token_id"), 35);
  const json written = json::parse(read_file(path("out/tokenizer_config.json")));
  EXPECT_EQ(written.at("eos_token"), "#");
  EXPECT_EQ(written.at("add_bos_token"), false);
}

TEST_F(MarksTest, KeysSetThem) {
  const Outcome trained = train("run",
                                {"--tokenizer.path=hf",
                                 "--tokenizer.train_vocab=0",
                                 "--model.vocab=258",
                                 "--train.steps=4",
                                 "--data.files=docs.jsonl",
                                 "--data.format=jsonl",
                                 "--data.sequence_length=8",
                                 "--tokenizer.bos=[]",
                                 "--tokenizer.eos=[]",
                                 "--sample.prompt="});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("data: 9 tokens; documents: 2"));
  EXPECT_THAT(trained.err, HasSubstr("documents: no token around them"));
  EXPECT_THAT(trained.err, Not(HasSubstr("warning")));
  const Outcome refused = train("other", {"--tokenizer.path=hf", "--tokenizer.eos=[\"<x>\"]"});
  EXPECT_EQ(refused.code, 2);
}

// Any of the tokens that a list names ends a text; that which documents end with is one.
TEST_F(MarksTest, EveryEndOfAListEndsAText) {
  import_model();
  // A prompt that is followed by a byte which is a character.
  json whole;
  int first = 0;
  for (prompt_ = "a"; prompt_ != "z" && (first <= ' ' || first > '~'); ++prompt_[0]) {
    whole = generated();
    first = static_cast<unsigned char>(whole.at("text").get<std::string>().front());
  }
  --prompt_[0];
  ASSERT_EQ(whole.at("finish"), "length");
  ASSERT_TRUE(first > ' ' && first <= '~');
  const auto expect_end = [&](const std::string& what) {
    import_model();
    const json found = generated();
    EXPECT_EQ(found.at("finish"), "end_of_text") << what;
    EXPECT_EQ(found.at("tokens"), 1) << what;
    EXPECT_EQ(found.at("text"), "") << what;
  };
  set_config("eos_token_id", {257, first});
  expect_end("a list of config.json");
  EXPECT_THAT(said_, HasSubstr("lists 2 tokens, and no file names an eos_token"));
  set_config("eos_token_id", 257);
  write("generation_config.json", {{"eos_token_id", {257, first}}});
  expect_end("a list of generation_config.json");
  EXPECT_THAT(said_, HasSubstr("the first counts, as in transformers"));
  write("generation_config.json", json::object());
  write("special_tokens_map.json", {{"eos_token", std::string(1, static_cast<char>(first))}});
  expect_end("special_tokens_map.json");
  EXPECT_THAT(said_, HasSubstr("documents end with the first, and either ends what is generated"));
  // For one command.
  EXPECT_EQ(generated({"--no-eos"}), whole);
  write("special_tokens_map.json", json::object());
  import_model();
  EXPECT_EQ(generated(), whole);
  EXPECT_EQ(generated({format("--eos={}", static_cast<char>(first))}).at("tokens"), 1);
}

// A prompt begins as a document does.
TEST_F(MarksTest, PromptsBeginAsDocuments) {
  import_model();
  const json with = generated();
  EXPECT_EQ(generated({"--bos=<s>"}), with);
  const json without = generated({"--no-bos"});
  EXPECT_NE(with.at("text"), without.at("text"));
  put_nothing();
  import_model();
  EXPECT_EQ(generated(), without);
  EXPECT_EQ(generated({"--bos=<s>"}), with);
  write("tokenizer_config.json", {{"add_bos_token", true}, {"bos_token", "<s>"}});
  import_model();
  EXPECT_EQ(generated(), with);
}

}  // namespace
}  // namespace tessera
