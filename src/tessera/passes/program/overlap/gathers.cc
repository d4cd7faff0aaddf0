#include "tessera/passes/program/overlap/gathers.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

namespace tessera {
namespace {

// The first place from `target` on where gather `i` may stand. Gathers keep their order, so that
// those that make parts of one buffer do not hold each other up.
std::int32_t earliest(const CodeBody& body, std::int32_t i, std::int32_t target) {
  std::int32_t place = i;
  while (place > target && (is_gather(body[place - 1]) || !conflict(body[place - 1], body[i]))) {
    --place;
  }
  return place;
}

bool writes_any(const Instruction& writer, const std::vector<TensorRef>& read) {
  return std::ranges::any_of(writer.results, [&](const TensorRef& result) {
    return std::ranges::any_of(read, [&](const TensorRef& t) { return t.buffer == result.buffer; });
  });
}

bool uses(const CodeBody& body, BufferId buffer) {
  for (std::int32_t i = 0; i < body.size(); ++i) {
    bool found = false;
    for_each_buffer(body[i], [&](BufferId used) { found = found || used == buffer; });
    if (found) {
      return true;
    }
  }
  return false;
}

// Whether `gather`, of `body`, may run beside the last `layers` blocks of any code, and no other
// code uses what it makes: of this code each microbatch has that in a slot of its own.
bool may_be_ahead(const std::vector<CodeBody>& codes,
                  const CodeBody& body,
                  const Instruction& gather,
                  std::int64_t layers) {
  return std::ranges::all_of(codes, [&](const CodeBody& other) {
    for (std::int32_t i = 0; i < other.size(); ++i) {
      const bool is_tail =
          other.code.action != Action::kUpdate && other.block(i) >= other.num_blocks() - layers;
      if (is_tail &&
          (&other == &body ? writes_any(other[i], gather.operands) : conflict(other[i], gather))) {
        return false;
      }
    }
    return &other == &body || std::ranges::none_of(gather.results, [&](const TensorRef& result) {
      return uses(other, result.buffer);
    });
  });
}

}  // namespace

void issue_gathers_early(CodeBody& body, std::int64_t layers) {
  std::vector<std::vector<std::int32_t>> before(static_cast<std::size_t>(body.size()));
  std::vector<bool> moved(before.size(), false);
  for (std::int32_t i = 0; i < body.size(); ++i) {
    if (!is_gather(body[i])) {
      continue;
    }
    const auto reader = body.first_conflict(body[i], i, body.size());
    const auto target = reader ? body.begin_of_block(body.block(*reader) - layers) : std::nullopt;
    if (target && *target < i) {
      before[static_cast<std::size_t>(earliest(body, i, *target))].push_back(i);
      moved[static_cast<std::size_t>(i)] = true;
    }
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < before.size(); ++i) {
    order.insert(order.end(), before[i].begin(), before[i].end());
    if (!moved[i]) {
      order.push_back(i);
    }
  }
  for (Segment& segment : body.variants) {
    std::vector<Instruction> instructions;
    for (const std::size_t i : order) {
      instructions.push_back(std::move(segment.instructions[i]));
    }
    segment.instructions = std::move(instructions);
  }
  body.find_blocks();
}

std::vector<Instruction> take_gathers_ahead(std::vector<CodeBody>& codes,
                                            CodeBody& body,
                                            std::int64_t layers) {
  std::vector<Instruction> ahead;
  for (std::int32_t i = 0; i < body.size();) {
    const auto reader =
        is_gather(body[i]) ? body.first_conflict(body[i], i, body.size()) : std::nullopt;
    if (reader && body.block(*reader) < layers && earliest(body, i, 0) == 0 &&
        may_be_ahead(codes, body, body[i], layers)) {
      ahead.push_back(body.extract(i));
      body.find_blocks();
    } else {
      ++i;
    }
  }
  return ahead;
}

}  // namespace tessera
