#include "tessera/data/token_layout.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/utf8.h"
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

// Source: llm.c, dev/data/data_common.py: 256 i32, the first three a mark, the version and the
// number of tokens; the others are zero.
struct LlmcKind {
  std::int32_t mark;
  std::int32_t version;
  TokenType type;
};

constexpr std::array kLlmcKinds = {LlmcKind{20240520, 1, TokenType::kU16},
                                   LlmcKind{20240801, 7, TokenType::kU32}};
constexpr std::int32_t kLlmcQuestions = 20240522;
constexpr std::size_t kLlmcHeaderBytes = 1024;

// What is looked at to tell text: text has no zero bytes, and few ids have none. Below the least
// size ids may look like text.
constexpr std::size_t kTextFrontBytes = 4096;
constexpr std::size_t kLeastTextBytes = 24;

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

// Whether a file has the header of llm.c, or as much of it as there is.
bool has_llmc_header(std::string_view bytes) {
  if (bytes.size() < 12) {
    return false;
  }
  const auto mark = read_as<std::int32_t>(bytes, 0);
  const bool is_known = mark == kLlmcQuestions ||
                        std::ranges::find(kLlmcKinds, mark, &LlmcKind::mark) != kLlmcKinds.end();
  // What the header of questions has in its fourth place is no matter.
  const std::string_view rest =
      bytes.substr(0, kLlmcHeaderBytes).substr(std::min<std::size_t>(bytes.size(), 16));
  return is_known && rest.find_first_not_of('\0') == std::string_view::npos;
}

TokenLayout llmc_layout(std::string_view bytes, const std::string& name) {
  const auto mark = read_as<std::int32_t>(bytes, 0);
  const auto version = read_as<std::int32_t>(bytes, 4);
  TESSERA_REQUIRE(mark != kLlmcQuestions,
                  ErrorCode::kInvalidData,
                  "{} is llm.c's file of questions (.bin), expected ids to train on",
                  name);
  const auto* const kind = std::ranges::find(kLlmcKinds, mark, &LlmcKind::mark);
  TESSERA_REQUIRE(kind->version == version,
                  ErrorCode::kInvalidData,
                  "{}: found version {} in llm.c's header with the mark {}, expected {}",
                  name,
                  version,
                  mark,
                  kind->version);
  const std::int64_t count = read_as<std::int32_t>(bytes, 8);
  const std::int64_t held =
      static_cast<std::int64_t>(bytes.size()) - static_cast<std::int64_t>(kLlmcHeaderBytes);
  TESSERA_REQUIRE(
      count > 0 && held == count * size_of(kind->type),
      ErrorCode::kInvalidData,
      "{}: found {} bytes after llm.c's header of {}, expected the {} tokens of {} bytes "
      "that it counts: is the file cut off?",
      name,
      std::max<std::int64_t>(held, 0),
      kLlmcHeaderBytes,
      count,
      size_of(kind->type));
  return {.type = kind->type, .offset = static_cast<std::int64_t>(kLlmcHeaderBytes)};
}

// Whether a file is text: characters alone, of which none is a control character.
bool reads_as_text(std::string_view bytes) {
  const std::string_view front = bytes.substr(0, kTextFrontBytes);
  if (front.size() < kLeastTextBytes) {
    return false;
  }
  const bool has_controls = std::ranges::any_of(front, [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 &&
            "\t\n\r\f"sv.find(c) == std::string_view::npos) ||
           c == '\x7f';
  });
  // The front may end inside a character.
  const std::size_t most_cut = front.size() < bytes.size() ? 3 : 0;
  return !has_controls && valid_utf8_prefix(front) + most_cut >= front.size();
}

// Whether ids of two bytes would be 0 at every second place: they have four.
bool reads_as_u32(std::span<const std::byte> bytes) {
  constexpr std::size_t kLeast = 64;
  constexpr std::size_t kMost = 4096;
  const std::size_t count = std::min(bytes.size() / 4, kMost);
  bool any = false;
  for (std::size_t i = 0; i < count; ++i) {
    const auto id = bytes.subspan(4 * i, 4);
    if (id[2] != std::byte{0} || id[3] != std::byte{0}) {
      return false;
    }
    any = any || id[0] != std::byte{0} || id[1] != std::byte{0};
  }
  return any && count >= kLeast && bytes.size() % 4 == 0;
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
  if (has_llmc_header(text)) {
    return llmc_layout(text, name);
  }
  TESSERA_REQUIRE(!reads_as_text(text),
                  ErrorCode::kInvalidData,
                  "{} is text, expected bare ids: the formats text and jsonl read it",
                  name);
  const auto size = static_cast<std::int64_t>(bytes.size());
  TESSERA_REQUIRE(size > 0 && size % size_of(given) == 0,
                  ErrorCode::kInvalidData,
                  "{}: found {} bytes, expected tokens of {} bytes each ({})",
                  name,
                  size,
                  size_of(given),
                  to_string(given));
  TESSERA_REQUIRE(
      given != TokenType::kU16 || !reads_as_u32(bytes),
      ErrorCode::kInvalidData,
      "{}: every second id of two bytes is 0, so that these are ids of four bytes each: "
      "set token_type = \"u32\"",
      name);
  return {.type = given};
}

}  // namespace tessera
