#include "tessera/ir/wire_format.h"

#include <array>
#include <bit>
#include <sstream>
#include <string>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::array kFormats = {
    WireFormat::kF32, WireFormat::kBF16, WireFormat::kInt8, WireFormat::kInt4};

WireFormat parse_format(const std::string& word) {
  for (const WireFormat format : kFormats) {
    if (word == name(format)) {
      return format;
    }
  }
  fail(ErrorCode::kInvalidArgument,
       "\"{}\" is no wire format, expected f32, bf16, int8 or int4, for all levels or for each "
       "with spaces between",
       word);
}

}  // namespace

std::string_view name(WireFormat format) {
  switch (format) {
    case WireFormat::kF32:
      return "f32";
    case WireFormat::kBF16:
      return "bf16";
    case WireFormat::kInt8:
      return "int8";
    case WireFormat::kInt4:
      return "int4";
  }
  return "?";
}

bool is_quantized(WireFormat format) {
  return format == WireFormat::kInt8 || format == WireFormat::kInt4;
}

std::optional<WireFormat> wire_format_of(DType dtype) {
  if (dtype == DType::kF32) {
    return WireFormat::kF32;
  }
  if (dtype == DType::kBF16) {
    return WireFormat::kBF16;
  }
  return std::nullopt;
}

std::string to_string(const WireFormats& formats) {
  std::string text;
  for (const WireFormat each : formats) {
    text += format("{}{}", text.empty() ? "" : " ", name(each));
  }
  return text;
}

WireFormats parse_wire_formats(std::string_view text) {
  return with_context([&] { return format("in the wire formats \"{}\"", text); },
                      [&] {
                        WireFormats formats;
                        std::istringstream words{std::string(text)};
                        for (std::string word; words >> word;) {
                          formats.push_back(parse_format(word));
                        }
                        return formats;
                      });
}

WireFormats formats_of_levels(const WireFormats& formats, std::size_t levels) {
  TESSERA_REQUIRE(formats.size() <= 1 || formats.size() == levels,
                  ErrorCode::kInvalidArgument,
                  "{} wire formats ({}) for {} levels, expected one for each or one for all",
                  formats.size(),
                  to_string(formats),
                  levels);
  return formats.size() == 1 ? WireFormats(levels, formats[0]) : formats;
}

void require_wire_block(std::int64_t block) {
  TESSERA_REQUIRE(
      block >= 2 && block <= 256 && std::has_single_bit(static_cast<std::uint64_t>(block)),
      ErrorCode::kInvalidArgument,
      "blocks of {} elements on the wire, expected a power of two from 2 to 256",
      block);
}

std::int64_t block_elements(const Encoding& encoding) {
  require_wire_block(encoding.block);
  return is_quantized(encoding.format) ? encoding.block : kWireBlock;
}

std::int64_t wire_bytes(const Encoding& encoding, std::int64_t elements) {
  require_wire_block(encoding.block);
  const std::int64_t blocks = (elements + encoding.block - 1) / encoding.block;
  constexpr std::int64_t kScaleBytes = 4;
  switch (encoding.format) {
    case WireFormat::kF32:
      return elements * 4;
    case WireFormat::kBF16:
      return elements * 2;
    case WireFormat::kInt8:
      return blocks * (encoding.block + kScaleBytes);
    case WireFormat::kInt4:
      return blocks * (encoding.block / 2 + kScaleBytes);
  }
  return 0;
}

}  // namespace tessera
