#include "tessera/train/text_encoder.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tessera {
namespace {

// All bytes, and these special tokens from id 256 on.
Tokenizer bytes_and(const std::vector<std::string>& special) {
  TokenizerSpec spec;
  spec.alphabet = Alphabet::kBytes;
  for (int byte = 0; byte < 256; ++byte) {
    spec.tokens.emplace_back(1, static_cast<char>(byte));
  }
  for (const std::string& content : special) {
    spec.added.push_back({.id = static_cast<std::int32_t>(spec.tokens.size()),
                          .content = content,
                          .special = true,
                          .normalized = false});
    spec.tokens.push_back(content);
  }
  return Tokenizer(spec);
}

TEST(TextEncoder, OneTokenForBothEndsIsBehindADocumentAlone) {
  const Tokenizer two = bytes_and({"<s>", "</s>"});
  EXPECT_EQ(text_encoder(two).bos, 256);
  EXPECT_EQ(text_encoder(two).eos, 257);
  const Tokenizer one = bytes_and({"<|endoftext|>"});
  EXPECT_EQ(one.bos(), 256) << "a prompt begins with it";
  EXPECT_EQ(text_encoder(one).bos, std::nullopt);
  EXPECT_EQ(text_encoder(one).eos, 256);
}

}  // namespace
}  // namespace tessera
