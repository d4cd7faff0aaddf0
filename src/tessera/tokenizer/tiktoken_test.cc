// Files of tiktoken, and the families that say how their texts are cut.

#include "tessera/tokenizer/tiktoken.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/test_error.h"
#include "tessera/tokenizer/pre_tokenizer.h"
#include "tessera/tokenizer/test_goldens.h"
#include "tessera/tokenizer/tiktoken_families.h"
#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// So many ranks as a published file has, some of them left out.
TokenizerSpec family_spec(const TiktokenFamily& family, std::size_t num_ids) {
  TokenizerSpec spec;
  spec.tokens.resize(num_ids);
  if (num_ids > family.num_ranks) {
    spec.holes = {50'256};
  }
  add_tiktoken_family(family, spec);
  return spec;
}

// Ids of tiktoken's openai_public.py, of llama3's tokenizer.py and Qwen's tokenization_qwen.py.
TEST(TokenizerFiles, TiktokenFamiliesHaveTheirSpecialTokens) {
  const auto id_of = [](const TokenizerSpec& spec, const std::string& content) {
    const auto found = std::ranges::find(spec.added, content, &AddedToken::content);
    return found == spec.added.end() ? -1 : found->id;
  };
  const auto of = [](std::string_view name, std::size_t num_ids) {
    return family_spec(*find_tiktoken_family(name), num_ids);
  };
  const TokenizerSpec r50k = of("r50k_base", 50'256);
  EXPECT_EQ(r50k.tokens.size(), 50'257U);
  EXPECT_EQ(id_of(r50k, "<|endoftext|>"), 50'256);
  EXPECT_TRUE(r50k.holes.empty());
  const TokenizerSpec p50k = of("p50k_base", 50'281);
  EXPECT_EQ(p50k.tokens.size(), 50'281U);
  EXPECT_EQ(id_of(p50k, "<|endoftext|>"), 50'256);
  EXPECT_EQ(p50k.added.size(), 1U);
  const TokenizerSpec edit = of("p50k_edit", 50'281);
  EXPECT_EQ(id_of(edit, "<|endoftext|>"), 50'256);
  EXPECT_EQ(id_of(edit, "<|fim_prefix|>"), 50'281);
  EXPECT_EQ(id_of(edit, "<|fim_suffix|>"), 50'283);
  const TokenizerSpec cl100k = of("cl100k_base", 100'256);
  EXPECT_EQ(cl100k.tokens.size(), 100'277U);
  EXPECT_EQ(id_of(cl100k, "<|endoftext|>"), 100'257);
  EXPECT_EQ(id_of(cl100k, "<|fim_middle|>"), 100'259);
  EXPECT_EQ(id_of(cl100k, "<|endofprompt|>"), 100'276);
  EXPECT_EQ(cl100k.holes.size(), 16U);
  EXPECT_EQ(cl100k.holes.front(), 100'256);
  const TokenizerSpec o200k = of("o200k_base", 199'998);
  EXPECT_EQ(o200k.tokens.size(), 200'019U);
  EXPECT_EQ(id_of(o200k, "<|endoftext|>"), 199'999);
  EXPECT_EQ(id_of(o200k, "<|endofprompt|>"), 200'018);
  const TokenizerSpec harmony = of("o200k_harmony", 199'998);
  EXPECT_EQ(harmony.tokens.size(), 201'088U);
  EXPECT_EQ(id_of(harmony, "<|start|>"), 200'006);
  EXPECT_EQ(id_of(harmony, "<|call|>"), 200'012);
  EXPECT_EQ(id_of(harmony, "<|reserved_201087|>"), 201'087);
  const TokenizerSpec llama3 = of("llama3", 128'000);
  EXPECT_EQ(llama3.tokens.size(), 128'256U);
  EXPECT_EQ(id_of(llama3, "<|eot_id|>"), 128'009);
  EXPECT_EQ(id_of(llama3, "<|reserved_special_token_250|>"), 128'255);
  const TokenizerSpec qwen = of("qwen", 151'643);
  EXPECT_EQ(qwen.tokens.size(), 151'851U);
  EXPECT_EQ(id_of(qwen, "<|im_end|>"), 151'645);
  EXPECT_EQ(qwen.normalizer.size(), 1U);
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t left = std::min<std::size_t>(bytes.size() - at, 3);
    unsigned bits = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      bits = bits << 8U | (i < left ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      text += i <= left ? kDigits[bits >> (18 - 6 * i) & 0x3FU] : '=';
    }
  }
  return text;
}

// Lines of base64 and ranks from 0, of `count` tokens: the bytes and words that are letters.
std::string many_ranks(std::size_t count) {
  std::string lines;
  for (std::size_t rank = 0; rank < count; ++rank) {
    std::string bytes(1, static_cast<char>(rank));
    for (std::size_t rest = rank < 256 ? 0 : rank; rest > 0; rest /= 26) {
      bytes = rest == rank ? "_" : bytes;
      bytes += static_cast<char>('a' + rest % 26);
    }
    lines += format("{} {}\n", base64(bytes), rank);
  }
  return lines;
}

TEST(TokenizerFiles, TiktokenFamiliesAreTold) {
  const std::string gpt2_like = many_ranks(50'256);
  EXPECT_EQ(parse_tiktoken(gpt2_like, "tokenizer.model").splits.front().pattern, kGpt2Pattern);
  EXPECT_EQ(parse_tiktoken(gpt2_like, "gpt2.tiktoken").tokens.size(), 50'257U);
  EXPECT_EQ(tiktoken_with_family(gpt2_like, "gpt2.tiktoken"), gpt2_like);
  const auto refusal = [](const std::string& text, std::string_view name) {
    return error_of(ErrorCode::kInvalidData, [&] { parse_tiktoken(text, name); });
  };
  EXPECT_THAT(refusal(gpt2_like, "o200k_base.tiktoken"),
              HasSubstr("the lines are 50256 ranks, as r50k_base has, but the file's name says "
                        "o200k_base: rename it, or put a first line \"# tiktoken NAME\""));
  EXPECT_THAT(refusal(gpt2_like, "r50k_base-o200k_base.tiktoken"),
              HasSubstr("has those of two tiktoken families, o200k_base and r50k_base, in it"));
  EXPECT_EQ(parse_tiktoken(gpt2_like, "gpt2-r50k_base.tiktoken").tokens.size(), 50'257U);
  const std::string few = many_ranks(300);
  EXPECT_THAT(refusal(few, "tokenizer.model"),
              HasSubstr("says neither its pattern nor its special tokens, and 300 ranks and this "
                        "file's name do not tell them: put a first line \"# tiktoken NAME\""));
  EXPECT_THAT(refusal("# tiktoken llama9\n" + few, "llama3"),
              HasSubstr("line 1 names the tiktoken family \"llama9\", expected one of llama3, "));
  EXPECT_EQ(parse_tiktoken(few, "Meta-Llama-3-8B.model").added.size(), 256U);
  EXPECT_EQ(parse_tiktoken(few, "cl100k.tiktoken").holes.size(), 16U);
  EXPECT_EQ(parse_tiktoken("# tiktoken qwen\n" + few, "llama3").added.size(), 208U);
}

TEST(TokenizerFiles, BrokenTiktoken) {
  const std::string good = read_file(golden_path("llama3.tiktoken"));
  const auto expect_refused = [](const std::string& text, const std::string& message) {
    expect_error([&] { parse_tiktoken(text, "llama3"); }, ErrorCode::kInvalidData, message);
  };
  expect_refused(
      "",
      "no token is the single byte 0x00: a tiktoken file has all 256 (what lines 1 to 0 say "
      "together)");
  expect_refused("IQ== 1\nIg== 1\n", "line 2 has the rank 1, expected 2: ranks rise");
  expect_refused("IQ== 1\nIg== 0\n", "line 2 has the rank 0, expected 2: ranks rise");
  expect_refused("IQ== 99999\n", "line 1 has the rank 99999, expected 0: ranks rise");
  expect_refused("IQ== 0\nIQ= 1\n", "line 2 is \"IQ= 1\", expected base64, a space and a rank");
  expect_refused("IQ== 0\nIQ== 99999999999\n", "line 2 is \"IQ== 99999999999\"");
  expect_refused("IQ== -1\n", "line 1 is \"IQ== -1\"");
  expect_refused("I*== 0\n", "line 1 is");
  expect_refused(good + "IQ== 698\n", "line 699 has the token of line 1");
  expect_refused(good + "\n\nIQ== 698\n", "line 701 has the token of line 1");
  expect_refused(good.substr(0, good.size() / 8), "");
}

}  // namespace
}  // namespace tessera
