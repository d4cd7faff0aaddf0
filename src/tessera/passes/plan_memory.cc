#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

#include "tessera/passes/lower.h"

namespace tessera {
namespace {

bool live_together(const Buffer& a, const Buffer& b) {
  return a.begin <= b.end && b.begin <= a.end;
}

// The lowest offset at or above `base` where `buffer` overlaps none of `placed` that live with it;
// `placed` is sorted by offset.
std::int64_t lowest_free(const Buffer& buffer,
                         const std::vector<const Buffer*>& placed,
                         std::int64_t base) {
  std::int64_t offset = base;
  for (const Buffer* other : placed) {
    if (!live_together(buffer, *other)) {
      continue;
    }
    if (other->offset >= offset + buffer.total_bytes()) {
      return offset;
    }
    offset = std::max(offset, other->offset + other->total_bytes());
  }
  return offset;
}

}  // namespace

Program plan_memory(Program program) {
  std::int64_t base = 0;
  std::vector<Buffer*> temporary;
  for (const Category category : {Category::kParameter,
                                  Category::kGradient,
                                  Category::kOptimizer,
                                  Category::kActivation,
                                  Category::kWorkspace,
                                  Category::kInput}) {
    for (Buffer& buffer : program.buffers) {
      if (buffer.category != category) {
        continue;
      }
      if (!buffer.persistent) {
        temporary.push_back(&buffer);
        continue;
      }
      buffer.offset = base;
      base += buffer.total_bytes();
    }
  }
  std::stable_sort(temporary.begin(), temporary.end(), [](const Buffer* a, const Buffer* b) {
    return a->total_bytes() > b->total_bytes();
  });
  std::vector<const Buffer*> placed;
  program.arena_bytes = base;
  for (Buffer* buffer : temporary) {
    buffer->offset = lowest_free(*buffer, placed, base);
    const auto after = std::upper_bound(
        placed.begin(), placed.end(), buffer, [](const Buffer* a, const Buffer* b) {
          return a->offset < b->offset;
        });
    placed.insert(after, buffer);
    program.arena_bytes = std::max(program.arena_bytes, buffer->offset + buffer->total_bytes());
  }
  return program;
}

}  // namespace tessera
