#include "tessera/comm/wired.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory_resource>
#include <numeric>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/quantize.h"
#include "tessera/mesh/placement.h"

namespace tessera {
namespace {

std::int64_t dtype_bytes(DType dtype) {
  return static_cast<std::int64_t>(size_bytes(dtype));
}

std::int64_t product(LevelSizes sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

// Whether elements travel as they are on every level.
bool is_plain(const LevelWire& wire, DType dtype) {
  return std::ranges::all_of(wire.formats,
                             [&](WireFormat format) { return format == wire_format_of(dtype); });
}

std::int64_t plain_workspace_bytes(LevelSizes sizes, DType dtype, std::int64_t slice) {
  return scratch_elements(sizes, slice) * dtype_bytes(dtype);
}

// Whether a reduction's level takes f32 sums as they are.
bool folds_directly(WireFormat format, DType dtype) {
  return format == WireFormat::kF32 && dtype == DType::kF32;
}

// The sums between the first level and the next, in f32.
std::int64_t stage_bytes(std::int64_t elements) {
  return elements * dtype_bytes(DType::kF32);
}

std::int64_t stage_elements(Levels levels, std::int64_t slice) {
  return levels.size() < 2 ? 0 : slice * num_ranks(levels.subspan(1));
}

// What one level sends at most, with this rank's own part.
std::int64_t exchange_bytes(LevelSizes sizes,
                            const LevelWire& wire,
                            DType dtype,
                            std::int64_t slice) {
  std::int64_t most = 0;
  std::int64_t elements = slice * product(sizes);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (!folds_directly(wire.formats[i], dtype)) {
      most = std::max(most, wire_bytes({.format = wire.formats[i], .block = wire.block}, elements));
    }
    elements /= sizes[i];
  }
  return most;
}

void require_levels(std::size_t levels, const LevelWire& wire) {
  TESSERA_CHECK(wire.formats.empty() || wire.formats.size() == levels,
                "{} wire formats for {} levels",
                wire.formats.size(),
                levels);
}

// One level of a reduction: target = the sum of what everybody's `stage` has in this rank's place,
// where parts are target.count elements. `room` holds twice what the level sends.
void exchange(Communicator& level,
              const Encoding& encoding,
              const ConstElements& stage,
              const Elements& target,
              std::byte* room,
              const Mover& mover) {
  const std::int64_t part_bytes = wire_bytes(encoding, target.count);
  const auto all_bytes = static_cast<std::size_t>(part_bytes * level.size());
  mover.encode(stage, target.count * level.size(), encoding, room);
  std::byte* const received = room + all_bytes;
  level.all_to_all({room, all_bytes}, {received, all_bytes});
  // On the stack, unless the level has more ranks than that.
  alignas(const std::byte*) std::array<std::byte, 256 * sizeof(const std::byte*)> stack;
  std::pmr::monotonic_buffer_resource memory(stack.data(), stack.size());
  std::pmr::vector<const std::byte*> parts(static_cast<std::size_t>(level.size()), &memory);
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    parts[rank] = received + static_cast<std::int64_t>(rank) * part_bytes;
  }
  mover.decode_sum(parts, encoding, target);
}

// The levels [first, end) that a gather crosses with the same codes: the outermost of one format.
std::size_t first_of_run(std::span<const WireFormat> formats) {
  const auto other = std::find_if(formats.rbegin(), formats.rend(), [&](WireFormat format) {
    return format != formats.back();
  });
  return static_cast<std::size_t>(formats.rend() - other);
}

// The formats of the levels inside a run.
LevelWire inside(const LevelWire& wire, std::size_t first) {
  return {wire.formats.first(first), wire.block};
}

// codes = the codes of all slices, in order of their index, each encoded by its owner.
void gather_encoded(Levels levels,
                    const Encoding& encoding,
                    const ConstElements& slice,
                    std::span<std::byte> codes,
                    const Mover& mover) {
  if (levels.empty()) {
    mover.encode(slice, slice.count, encoding, codes.data());
    return;
  }
  Communicator& level = *levels[0];
  const std::size_t bytes = codes.size() / static_cast<std::size_t>(level.size());
  const std::span<std::byte> part =
      codes.subspan(static_cast<std::size_t>(level.rank()) * bytes, bytes);
  gather_encoded(levels.subspan(1), encoding, slice, part, mover);
  level.all_gather(part, codes, bytes);
}

// Gathers a slice over levels of one format, encoded once. `room` holds the codes of all.
void gather_codes(Levels levels,
                  const Encoding& encoding,
                  const ConstElements& slice,
                  const Elements& all,
                  std::byte* room,
                  const Mover& mover) {
  const std::int64_t padded = slice.count * num_ranks(levels);
  const auto bytes = static_cast<std::size_t>(wire_bytes(encoding, padded));
  gather_encoded(levels, encoding, slice, {room, bytes}, mover);
  const std::array<const std::byte*, 1> codes = {room};
  mover.decode_sum(codes, encoding, all);
}

}  // namespace

std::int64_t reduce_workspace_bytes(LevelSizes sizes,
                                    const LevelWire& wire,
                                    DType dtype,
                                    std::int64_t slice) {
  if (is_plain(wire, dtype)) {
    return plain_workspace_bytes(sizes, dtype, slice);
  }
  return stage_bytes(scratch_elements(sizes, slice)) +
         2 * exchange_bytes(sizes, wire, dtype, slice);
}

void reduce_slices(Levels levels,
                   const LevelWire& wire,
                   const ConstElements& all,
                   const Elements& slice,
                   std::byte* workspace,
                   const Mover& mover) {
  require_levels(levels.size(), wire);
  if (is_plain(wire, all.dtype)) {
    reduce_slices(Fold::kSum, levels, all, slice, workspace, mover);
    return;
  }
  std::byte* const room = workspace + stage_bytes(stage_elements(levels, slice.count));
  std::int64_t stride = slice.count * num_ranks(levels);
  ConstElements stage = all;
  Elements held = {};  // the stage, once it is in the workspace
  for (std::size_t i = 0; i < levels.size(); ++i) {
    Communicator& level = *levels[i];
    const bool is_last = i + 1 == levels.size();
    stride /= level.size();
    Elements target =
        is_last ? slice : Elements{.dtype = DType::kF32, .data = workspace, .count = stride};
    if (folds_directly(wire.formats[i], all.dtype)) {
      if (i > 0 && !is_last) {
        target.data = held.data + level.rank() * stride * dtype_bytes(DType::kF32);
      }
      reduce_level(Fold::kSum, level, stage, target, mover);
    } else {
      const Encoding encoding = {.format = wire.formats[i], .block = wire.block};
      exchange(level, encoding, stage, target, room, mover);
    }
    held = target;
    stage = held;
  }
}

std::int64_t gather_workspace_bytes(LevelSizes sizes,
                                    const LevelWire& wire,
                                    DType dtype,
                                    std::int64_t slice) {
  if (is_plain(wire, dtype)) {
    return plain_workspace_bytes(sizes, dtype, slice);
  }
  const std::size_t first = first_of_run(wire.formats);
  const LevelSizes run = sizes.subspan(first);
  const std::int64_t gathered = slice * product(run);
  const Encoding encoding = {.format = wire.formats.back(), .block = wire.block};
  const std::int64_t run_bytes = encoding.format == wire_format_of(dtype)
                                     ? plain_workspace_bytes(run, dtype, slice)
                                     : wire_bytes(encoding, gathered);
  if (first == 0) {
    return run_bytes;
  }
  // What the run gathered, and then room for it and for the levels inside in turn.
  return gathered * dtype_bytes(dtype) +
         std::max(run_bytes,
                  gather_workspace_bytes(sizes.first(first), inside(wire, first), dtype, gathered));
}

void gather_slices(Levels levels,
                   const LevelWire& wire,
                   const ConstElements& slice,
                   const Elements& all,
                   std::byte* workspace,
                   const Mover& mover) {
  require_levels(levels.size(), wire);
  if (is_plain(wire, slice.dtype)) {
    gather_slices(levels, slice, all, workspace, mover);
    return;
  }
  const std::size_t first = first_of_run(wire.formats);
  const Levels run = levels.subspan(first);
  const Encoding encoding = {.format = wire.formats.back(), .block = wire.block};
  if (first == 0) {
    gather_codes(run, encoding, slice, all, workspace, mover);
    return;
  }
  const Elements gathered = {
      .dtype = slice.dtype, .data = workspace, .count = slice.count * num_ranks(run)};
  std::byte* const room = workspace + ConstElements(gathered).bytes();
  if (encoding.format == wire_format_of(slice.dtype)) {
    gather_slices(run, slice, gathered, room, mover);
  } else {
    gather_codes(run, encoding, slice, gathered, room, mover);
  }
  gather_slices(levels.first(first), inside(wire, first), gathered, all, room, mover);
}

void round_as_gathered(const Wire& wire, const Elements& values, int threads) {
  if (is_plain(wire, values.dtype)) {
    return;
  }
  constexpr std::int64_t kPiece = std::int64_t{1} << 20U;  // whole blocks
  const std::int64_t element = dtype_bytes(values.dtype);
  WireFormats runs = wire.formats;
  runs.erase(std::unique(runs.begin(), runs.end()), runs.end());
  ThreadTeam team(threads);
  std::vector<std::byte> room;
  for (std::int64_t begin = 0; begin < values.count; begin += kPiece) {
    const Elements piece = {.dtype = values.dtype,
                            .data = values.data + begin * element,
                            .count = std::min(kPiece, values.count - begin)};
    for (auto format = runs.rbegin(); format != runs.rend(); ++format) {
      const Encoding encoding = {.format = *format, .block = wire.block};
      const std::int64_t unit = block_elements(encoding);
      const std::int64_t padded = (piece.count + unit - 1) / unit * unit;
      room.resize(static_cast<std::size_t>(wire_bytes(encoding, padded)));
      encode(piece, padded, encoding, room.data(), team);
      const std::array<const std::byte*, 1> codes = {room.data()};
      decode_sum(codes, encoding, piece, team);
    }
  }
}

std::int64_t all_reduce_workspace_bytes(LevelSizes sizes,
                                        const LevelWire& wire,
                                        DType dtype,
                                        std::int64_t all) {
  if (is_plain(wire, dtype)) {
    return 0;
  }
  const std::int64_t slice = padded_elements(all, product(sizes)) / product(sizes);
  return slice * dtype_bytes(dtype) + std::max(reduce_workspace_bytes(sizes, wire, dtype, slice),
                                               gather_workspace_bytes(sizes, wire, dtype, slice));
}

void all_reduce_slices(Levels levels,
                       const LevelWire& wire,
                       const ConstElements& in,
                       const Elements& out,
                       std::byte* workspace,
                       const Mover& mover) {
  require_levels(levels.size(), wire);
  if (is_plain(wire, in.dtype)) {
    all_reduce_slices(levels, in, out, mover);
    return;
  }
  const std::int64_t ranks = num_ranks(levels);
  const Elements slice = {
      .dtype = in.dtype, .data = workspace, .count = padded_elements(in.count, ranks) / ranks};
  std::byte* const room = workspace + ConstElements(slice).bytes();
  reduce_slices(levels, wire, in, slice, room, mover);
  gather_slices(levels, wire, slice, out, room, mover);
}

}  // namespace tessera
