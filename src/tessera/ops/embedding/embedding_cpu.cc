#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/comm/hierarchical.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/embedding/embedding_operands.h"

namespace tessera {

namespace {

void check_ids(std::span<const std::int32_t> ids, std::int64_t vocab) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    TESSERA_REQUIRE(ids[i] >= 0 && ids[i] < vocab,
                    ErrorCode::kInvalidData,
                    "embedding: id {} at index {} is outside [0, {})",
                    ids[i],
                    i,
                    vocab);
  }
}

// The entries of the vocabulary that lie here: the first, and how many rows the table has.
struct Entries {
  std::int64_t first = 0;
  std::int64_t count = 0;

  // The row of `id` in the table; -1 where it lies elsewhere.
  std::int64_t row(std::int32_t id) const {
    const std::int64_t row = id - first;
    return row >= 0 && row < count ? row : -1;
  }
};

// Checks the ids against the whole vocabulary.
template <class Attrs>
Entries entries_here(const Attrs& attrs,
                     cpu::Context& context,
                     std::int64_t rows,
                     std::span<const std::int32_t> ids) {
  if (attrs.axes.empty()) {
    check_ids(ids, rows);
    return {.first = 0, .count = rows};
  }
  check_ids(ids, attrs.whole_vocab);
  return {.first = place_along(context.levels(attrs.axes, TrafficClass::kTensor)) * rows,
          .count = rows};
}

// For each id here, the positions where it stands, in their order, as a linked list in the
// workspace.
struct Occurrences {
  std::span<std::int32_t> first;  // by row: its first position, or kNone
  std::span<std::int32_t> last;   // by row
  std::span<std::int32_t> next;   // by position: the next one with the same id, or kNone

  static constexpr std::int32_t kNone = -1;

  static std::int64_t workspace_bytes(std::int64_t positions, std::int64_t vocab) {
    return (positions + 2 * vocab) * static_cast<std::int64_t>(sizeof(std::int32_t));
  }

  Occurrences(std::span<const std::int32_t> ids,
              const Entries& entries,
              std::span<std::byte> workspace) {
    auto* const words = reinterpret_cast<std::int32_t*>(workspace.data());
    const auto rows = static_cast<std::size_t>(entries.count);
    first = {words, rows};
    last = {words + rows, rows};
    next = {words + 2 * rows, ids.size()};
    std::ranges::fill(first, kNone);
    for (std::size_t position = 0; position < ids.size(); ++position) {
      const std::int64_t found = entries.row(ids[position]);
      if (found < 0) {
        continue;
      }
      const auto row = static_cast<std::size_t>(found);
      const auto here = static_cast<std::int32_t>(position);
      (first[row] == kNone ? first[row] : next[static_cast<std::size_t>(last[row])]) = here;
      last[row] = here;
      next[position] = kNone;
    }
  }
};

float to_f32(float value) {
  return value;
}

float to_f32(BFloat16 value) {
  return to_float(value);
}

// dtable[id] = (accumulator[id] +) the sum of dy at the id's positions, for columns of `range`. The
// sum is complete before it is added, so that it is bitwise a separate addition.
template <class T>
void add_rows(const Occurrences& occurrences,
              const cpu::RowsOf<const T>& dy,
              const cpu::RowsOf<float>& dtable,
              cpu::Range range) {
  constexpr std::int64_t kChunk = 256;  // columns whose sums stay in the first-level cache
  std::array<float, kChunk> sums;
  for (std::size_t entry = 0; entry < occurrences.first.size(); ++entry) {
    const std::int32_t first = occurrences.first[entry];
    for (std::int64_t c = range.begin; c < range.end && first >= 0; c += kChunk) {
      const std::int64_t size = std::min(kChunk, range.end - c);
      std::fill_n(sums.begin(), size, 0.0F);
      for (std::int32_t at = first; at >= 0; at = occurrences.next[static_cast<std::size_t>(at)]) {
        const T* const row = dy[at] + c;
        for (std::int64_t i = 0; i < size; ++i) {
          sums[static_cast<std::size_t>(i)] += to_f32(row[i]);
        }
      }
      float* const result = dtable[static_cast<std::int64_t>(entry)] + c;
      for (std::int64_t i = 0; i < size; ++i) {
        result[i] += sums[static_cast<std::size_t>(i)];
      }
    }
  }
}

void clear(ThreadTeam& team, const cpu::RowsOf<float>& table) {
  const cpu::Work rows = {.count = table.count, .elements = table.width};
  cpu::parallel_ranges(team, rows, [&](cpu::Range range) {
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      std::fill_n(table[row], table.width, 0.0F);
    }
  });
}

}  // namespace

void run(const EmbeddingAttrs& attrs, cpu::Context& context, const Views& views) {
  const EmbeddingOperands of = by_name(attrs, views);
  const View& table = of.table;
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(table.dtype));
  const std::span<const std::int32_t> ids = cpu::flat<const std::int32_t>(of.ids);
  const View::Rows rows = table.rows(1);
  const View::Rows y = of.y.rows(1);
  const Entries entries = entries_here(attrs, context, rows.count, ids);
  const auto row_bytes = static_cast<std::size_t>(y.width * element_bytes);
  const cpu::Work work = {.count = y.count, .elements = y.width};
  cpu::parallel_ranges(context.team(), work, [&](cpu::Range range) {
    for (std::int64_t position = range.begin; position < range.end; ++position) {
      std::byte* const to = of.y.as<std::byte>() + position * y.stride * element_bytes;
      const std::int64_t row = entries.row(ids[static_cast<std::size_t>(position)]);
      if (row < 0) {
        std::memset(to, 0, row_bytes);
      } else {
        std::memcpy(to, table.as<const std::byte>() + row * rows.stride * element_bytes, row_bytes);
      }
    }
  });
}

std::int64_t workspace_bytes(const EmbeddingBackwardAttrs& attrs,
                             cpu::Context& /*context*/,
                             Types in) {
  return Occurrences::workspace_bytes(in[1].num_elements(), attrs.vocab);
}

void run(const EmbeddingBackwardAttrs& attrs, cpu::Context& context, const Views& views) {
  const EmbeddingBackwardOperands of = by_name(attrs, views);
  const std::span<const std::int32_t> ids = cpu::flat<const std::int32_t>(of.ids);
  const cpu::RowsOf<float> dtable(of.dtable);
  const cpu::Form form = cpu::form_of({&of.dy, 1}, 1, views.in);
  const Entries entries = entries_here(attrs, context, attrs.vocab, ids);
  if (attrs.accumulate) {
    TESSERA_CHECK(of.dtable.data == of.accumulator.data, "the accumulator is updated in place");
  } else {
    clear(context.team(), dtable);
  }
  const Occurrences occurrences(ids, entries, views.workspace);
  const cpu::Work columns = {
      .count = dtable.width, .elements = static_cast<std::int64_t>(ids.size()), .cut = 16};
  cpu::parallel_ranges(context.team(), columns, [&](cpu::Range range) {
    if (form.bf16) {
      add_rows<BFloat16>(occurrences, cpu::RowsOf<const BFloat16>(of.dy), dtable, range);
    } else {
      add_rows<float>(occurrences, cpu::RowsOf<const float>(of.dy), dtable, range);
    }
  });
}

}  // namespace tessera
