#include "tessera/data/token_layout.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/file_kind.h"

namespace tessera {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kNumpy = "\x93NUMPY";

// Source: numpy/lib/format.py. Ids above 2^63 are no ids in either type of 64 bits.
constexpr std::array kNumpyTypes = {std::pair{"|u1"sv, TokenType::kU8},
                                    std::pair{"<u2"sv, TokenType::kU16},
                                    std::pair{"<u4"sv, TokenType::kU32},
                                    std::pair{"<i2"sv, TokenType::kI16},
                                    std::pair{"<i4"sv, TokenType::kI32},
                                    std::pair{"<i8"sv, TokenType::kI64},
                                    std::pair{"<u8"sv, TokenType::kI64}};

// Source: llm.c, dev/data/data_common.py: 256 i32, the first three a mark, the version, which says
// the type, and the number of tokens.
constexpr std::int32_t kLlmcMark = 20240520;
constexpr std::int64_t kLlmcHeaderBytes = 1024;

template <class T>
T read_as(std::string_view bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// What stands behind `key` in the header of an array, up to one of `ends`.
std::string_view numpy_field(std::string_view header, std::string_view key, std::string_view ends) {
  const std::size_t at = header.find(key);
  if (at == std::string_view::npos) {
    return "";
  }
  std::string_view rest = header.substr(at + key.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(": "), rest.size()));
  return rest.substr(0, rest.find_first_of(ends));
}

// The product of a shape: "(3, 4" is 12. Negative where it is none.
std::int64_t num_elements(std::string_view shape) {
  std::int64_t product = 1;
  if (!shape.starts_with('(')) {
    return -1;
  }
  for (shape.remove_prefix(1); !shape.empty();) {
    if (shape.front() == ',' || shape.front() == ' ') {
      shape.remove_prefix(1);
      continue;
    }
    std::int64_t size = 0;
    const auto [end, error] = std::from_chars(shape.data(), shape.data() + shape.size(), size);
    if (error != std::errc() || size < 0 || __builtin_mul_overflow(product, size, &product)) {
      return -1;
    }
    shape.remove_prefix(static_cast<std::size_t>(end - shape.data()));
  }
  return product;
}

TokenLayout numpy_layout(std::string_view bytes, const std::string& name) {
  const std::size_t length_bytes = bytes.size() > 6 && bytes[6] == 1 ? 2 : 4;
  const std::size_t start = 8 + length_bytes;
  TESSERA_REQUIRE(bytes.size() >= start, ErrorCode::kInvalidData, "{}: the array is cut off", name);
  const std::size_t length =
      length_bytes == 2 ? read_as<std::uint16_t>(bytes, 8) : read_as<std::uint32_t>(bytes, 8);
  TESSERA_REQUIRE(
      bytes.size() - start >= length, ErrorCode::kInvalidData, "{}: the array is cut off", name);
  const std::string_view header = bytes.substr(start, length);
  const std::string_view descr = numpy_field(header, "'descr'", ",}");
  const auto type = std::ranges::find_if(
      kNumpyTypes, [&](const auto& known) { return descr == format("'{}'", known.first); });
  TESSERA_REQUIRE(type != kNumpyTypes.end(),
                  ErrorCode::kInvalidData,
                  "{}: found a NumPy array of {}, expected ids: u1, u2, u4, i2, i4 or i8, "
                  "little-endian",
                  name,
                  descr);
  const std::int64_t count = num_elements(numpy_field(header, "'shape'", ")"));
  const std::string_view order = numpy_field(header, "'fortran_order'", ",}");
  TESSERA_REQUIRE(order == "False",
                  ErrorCode::kInvalidData,
                  "{}: found a NumPy array in column order, expected one whose rows follow each "
                  "other (fortran_order False)",
                  name);
  const TokenLayout layout = {.type = type->second,
                              .offset = static_cast<std::int64_t>(start + length)};
  const auto held = static_cast<std::int64_t>(bytes.size()) - layout.offset;
  TESSERA_REQUIRE(
      count > 0 && held / size_of(layout.type) == count && held % size_of(layout.type) == 0,
      ErrorCode::kInvalidData,
      "{}: found {} bytes behind the header of a NumPy array of shape {}), expected as "
      "many as its ids take, and one id at least",
      name,
      held,
      numpy_field(header, "'shape'", ")"));
  return layout;
}

// Whether the header of llm.c is there and counts what follows.
bool is_llmc(std::string_view bytes, TokenLayout& layout) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size <= kLlmcHeaderBytes || read_as<std::int32_t>(bytes, 0) != kLlmcMark) {
    return false;
  }
  // Version 1 is GPT-2's, 7 that of larger vocabularies.
  layout = {.type = read_as<std::int32_t>(bytes, 4) == 1 ? TokenType::kU16 : TokenType::kU32,
            .offset = kLlmcHeaderBytes};
  return size - kLlmcHeaderBytes == read_as<std::int32_t>(bytes, 8) * size_of(layout.type);
}

}  // namespace

TokenLayout token_layout(std::span<const std::byte> bytes,
                         TokenType given,
                         const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with(kNumpy)) {
    return numpy_layout(text, name);
  }
  const FileKind kind = known_kind(text.substr(0, kFileKindBytes));
  TESSERA_REQUIRE(kind.name.empty(),
                  ErrorCode::kInvalidData,
                  "{} is {}, expected bare ids: {}",
                  name,
                  kind.name,
                  kind.advice);
  TokenLayout layout;
  if (is_llmc(text, layout)) {
    return layout;
  }
  const auto size = static_cast<std::int64_t>(bytes.size());
  TESSERA_REQUIRE(size > 0 && size % size_of(given) == 0,
                  ErrorCode::kInvalidData,
                  "{}: found {} bytes, expected tokens of {} bytes each ({})",
                  name,
                  size,
                  size_of(given),
                  to_string(given));
  return {.type = given};
}

}  // namespace tessera
