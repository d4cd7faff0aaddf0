#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ir/dtype.h"

namespace tessera {

// How training state looks while it travels between ranks. int8 and int4 are symmetric codes of
// blocks of consecutive elements; comm/quantize.h has the bytes.
enum class WireFormat : std::uint8_t { kF32, kBF16, kInt8, kInt4 };

std::string_view name(WireFormat format);  // "f32", "bf16", "int8", "int4"

bool is_quantized(WireFormat format);

// What elements of this dtype are while they travel as they are; nothing for dtypes that no format
// holds.
std::optional<WireFormat> wire_format_of(DType dtype);

// Formats of several levels, innermost first.
using WireFormats = std::vector<WireFormat>;

// "int8 int4"; "" for none.
std::string to_string(const WireFormats& formats);

// Errors: kInvalidArgument quoting the text, with the formats that there are.
WireFormats parse_wire_formats(std::string_view text);

inline void parse_text(std::string_view text, WireFormats& formats) {
  formats = parse_wire_formats(text);
}

// Elements that share a scale unless a plan says otherwise: 1.6 % of the bytes of int8, 3.1 % of
// int4's, are then scales.
inline constexpr std::int64_t kWireBlock = 256;

// One level's format. `block` elements share a scale where it is quantized.
struct Encoding {
  WireFormat format = WireFormat::kF32;
  std::int64_t block = kWireBlock;
};

// What a plan says about the wire of one state: a format for each level, one for all, or none: the
// tensor's own dtype.
struct Wire {
  WireFormats formats = {};
  std::int64_t block = kWireBlock;

  friend bool operator==(const Wire&, const Wire&) = default;
};

// The formats of `levels` levels of which the list names each, all at once, or none.
// Errors: kInvalidArgument with the numbers.
WireFormats formats_of_levels(const WireFormats& formats, std::size_t levels);

// Errors: kInvalidArgument unless the block is a power of two from 2 to 256: slices, which are
// multiples of 256 elements, are then whole blocks, and int4 packs whole bytes.
void require_wire_block(std::int64_t block);

// Elements that are encoded together: a block, or kWireBlock where nothing is quantized.
// Errors: as require_wire_block().
std::int64_t block_elements(const Encoding& encoding);

// Bytes of that many elements on the wire; what is quantized is padded to whole blocks and has an
// f32 scale for each. Errors: as require_wire_block().
std::int64_t wire_bytes(const Encoding& encoding, std::int64_t elements);

}  // namespace tessera
