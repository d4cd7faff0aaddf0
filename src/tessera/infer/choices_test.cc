#include "tessera/infer/choices.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/tokenizer/tokenizer.h"

namespace tessera {
namespace {

// Of bytes: <s> (256) in front, then the texts.
std::string text_of(const EncodedEnding& encoded) {
  std::string text;
  for (std::size_t i = 1; i < encoded.tokens.size(); ++i) {
    text += static_cast<char>(encoded.tokens[i]);
    text += i + encoded.own == encoded.tokens.size() - 1 ? "|" : "";
  }
  return text;
}

TEST(EncodeEnding, PutsOneSpaceBetween) {
  const Tokenizer bytes = Tokenizer::load(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                          "tests/golden/eval/tokenizer.json");
  EXPECT_EQ(encode_ending(bytes, "He", "ran").tokens.front(), 256);
  EXPECT_EQ(text_of(encode_ending(bytes, "He", "ran")), "He| ran");
  EXPECT_EQ(text_of(encode_ending(bytes, "He ", "ran")), "He| ran");
  EXPECT_EQ(text_of(encode_ending(bytes, "He", " ran")), "He| ran");
  EXPECT_EQ(text_of(encode_ending(bytes, "He\n", "ran")), "He|\nran");
  EXPECT_EQ(encode_ending(bytes, "", "ran").own, 3U);
}

// As GPT-2's tokenizer has it, nothing stands before a context; where there is none, one token
// does, since the first of an ending is predicted from something.
TEST(EncodeEnding, BeginsAsTheTokenizerSays) {
  const Tokenizer bytes = Tokenizer::load(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                          "tests/golden/eval/tokenizer.json");
  const Tokenizer plain = bytes.with_marks({.eos = {257}, .bos = 256});
  EXPECT_EQ(encode_ending(plain, "He", "ran").tokens,
            (std::vector<std::int32_t>{'H', 'e', ' ', 'r', 'a', 'n'}));
  EXPECT_EQ(encode_ending(plain, "", "ran").tokens,
            (std::vector<std::int32_t>{256, 'r', 'a', 'n'}));
  const Tokenizer ended = bytes.with_marks({.eos = {257}});
  EXPECT_EQ(encode_ending(ended, "", "ran").tokens,
            (std::vector<std::int32_t>{257, 'r', 'a', 'n'}));
  EXPECT_EQ(encode_ending(bytes.with_marks({}), "", "ran").tokens.size(), 3U);
}

TEST(Scores, PreferTheFirstOfEquals) {
  const Scores scores = {.log_probs = {-4, -3, -6, -3},
                         .tokens = {},
                         .characters = {2, 1, 3, 1},
                         .bytes = {2, 1, 6, 1}};
  EXPECT_EQ(scores.best(), 1U);
  EXPECT_EQ(scores.best_by_character(), 0U);
  EXPECT_EQ(scores.best_by_byte(), 2U);
}

}  // namespace
}  // namespace tessera
