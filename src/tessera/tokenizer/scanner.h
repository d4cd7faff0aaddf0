#pragma once

#include <string_view>

namespace tessera {

// Hand-written matchers of the best-known pre-tokenization patterns, many times faster than a
// regex engine and equal to it for every valid text. The classes of characters come from utf8proc,
// and with them the version of Unicode.

// GPT-2's, which is also the one that Hugging Face's ByteLevel pre-tokenizer brings along.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Llama 3's, as in its published tokenizer.json.
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Qwen's: Llama 3's with digits one by one.
inline constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// That of tiktoken's o200k_base, which has no scanner: letters are cut where a capital follows a
// small one, and have their contraction at the end.
inline constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The end of the pre-token that starts at `at`. Requires at < end and valid UTF-8 in [at, end);
// the lookahead of the pattern takes `end` for the end of the text.
const char* gpt2_piece_end(const char* at, const char* end);
const char* llama3_piece_end(const char* at, const char* end);
const char* qwen_piece_end(const char* at, const char* end);

}  // namespace tessera
