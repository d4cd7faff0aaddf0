#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

// How a token is written in a file, little-endian.
enum class TokenType { kU8, kU16, kU32, kI16, kI32, kI64 };

std::string_view to_string(TokenType type);

std::int64_t size_of(TokenType type);

// The smaller of u16 and i32, the types that other readers of .bin files know, that holds ids below
// `vocab`.
TokenType token_type_for(std::int64_t vocab);

// What stands for an id that is no i32 in what copy_tokens() writes: no tokenizer has it.
inline constexpr std::int32_t kNoToken = -1;

// "id 5", or that it is none.
std::string describe_id(std::int32_t id);

// out[i] = token first + i of `bytes`. Precondition: they are there.
void copy_tokens(std::span<const std::byte> bytes,
                 TokenType type,
                 std::int64_t first,
                 std::span<std::int32_t> out);

// Appends `tokens` to `bytes` as `type`, u16 or i32. Errors: kInvalidArgument naming a token that
// the type does not hold.
void append_tokens(std::span<const std::int32_t> tokens, TokenType type, std::string& bytes);

}  // namespace tessera
