#include "tessera/data/token_type.h"

#include <cstring>
#include <limits>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

template <class T>
void copy_as(const std::byte* from, std::span<std::int32_t> out) {
  for (std::int32_t& token : out) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    token = std::in_range<std::int32_t>(value) ? static_cast<std::int32_t>(value) : kNoToken;
    from += sizeof(T);
  }
}

}  // namespace

std::string_view to_string(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return "u8";
    case TokenType::kU16:
      return "u16";
    case TokenType::kU32:
      return "u32";
    case TokenType::kI16:
      return "i16";
    case TokenType::kI32:
      return "i32";
    case TokenType::kI64:
      return "i64";
  }
  return "?";
}

std::int64_t size_of(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return 1;
    case TokenType::kU16:
    case TokenType::kI16:
      return 2;
    case TokenType::kU32:
    case TokenType::kI32:
      return 4;
    case TokenType::kI64:
      return 8;
  }
  return 0;
}

TokenType token_type_for(std::int64_t vocab) {
  return vocab <= std::int64_t{std::numeric_limits<std::uint16_t>::max()} + 1 ? TokenType::kU16
                                                                              : TokenType::kI32;
}

void copy_tokens(std::span<const std::byte> bytes,
                 TokenType type,
                 std::int64_t first,
                 std::span<std::int32_t> out) {
  const std::byte* from = bytes.data() + first * size_of(type);
  switch (type) {
    case TokenType::kU8:
      copy_as<std::uint8_t>(from, out);
      break;
    case TokenType::kU16:
      copy_as<std::uint16_t>(from, out);
      break;
    case TokenType::kU32:
      copy_as<std::uint32_t>(from, out);
      break;
    case TokenType::kI16:
      copy_as<std::int16_t>(from, out);
      break;
    case TokenType::kI32:
      copy_as<std::int32_t>(from, out);
      break;
    case TokenType::kI64:
      copy_as<std::int64_t>(from, out);
      break;
  }
}

void append_tokens(std::span<const std::int32_t> tokens, TokenType type, std::string& bytes) {
  TESSERA_REQUIRE(type == TokenType::kU16 || type == TokenType::kI32,
                  ErrorCode::kInvalidArgument,
                  "tokens are written as u16 or i32, not as {}",
                  to_string(type));
  if (type == TokenType::kI32) {
    bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
    return;
  }
  std::size_t at = bytes.size();
  bytes.resize(at + tokens.size() * sizeof(std::uint16_t));
  for (const std::int32_t token : tokens) {
    TESSERA_REQUIRE(std::in_range<std::uint16_t>(token),
                    ErrorCode::kInvalidArgument,
                    "token {}: expected one from 0 to 65535",
                    token);
    const auto narrow = static_cast<std::uint16_t>(token);
    std::memcpy(bytes.data() + at, &narrow, sizeof(narrow));
    at += sizeof(narrow);
  }
}

std::string describe_id(std::int32_t id) {
  return id == kNoToken ? "no id at all" : format("id {}", id);
}

}  // namespace tessera
