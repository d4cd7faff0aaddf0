#include "tessera/train/choices.h"

#include <filesystem>
#include <string>

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

TEST(Scores, PreferTheFirstOfEquals) {
  const Scores scores = {.log_probs = {-4, -3, -6, -3}, .tokens = {}, .bytes = {2, 1, 3, 1}};
  EXPECT_EQ(scores.best(), 1U);
  EXPECT_EQ(scores.best_normalized(), 0U);
}

}  // namespace
}  // namespace tessera
