#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "tessera/comm/hierarchical.h"
#include "tessera/comm/local/local_world.h"

namespace tessera {

// For tests: sizes of nested levels, innermost first.
using Sizes = std::vector<std::int64_t>;

inline std::int64_t product(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

inline Elements elements(std::vector<float>& values) {
  return {.dtype = DType::kF32,
          .data = reinterpret_cast<std::byte*>(values.data()),
          .count = static_cast<std::int64_t>(values.size())};
}

// Runs body(rank, levels) on as many ranks as the sizes say.
template <class Body>
void on_levels(const Sizes& sizes, const Body& body) {
  LocalWorld world(product(sizes), {.deadline_seconds = 20});
  std::vector<std::jthread> threads;
  for (std::int64_t rank = 0; rank < world.num_ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<World> self = world.join(rank);
      std::vector<std::unique_ptr<Communicator>> owned;
      std::vector<Communicator*> levels;
      std::int64_t step = 1;
      for (const std::int64_t size : sizes) {
        const std::int64_t first = rank - rank / step % size * step;
        std::vector<std::int64_t> members;
        for (std::int64_t i = 0; i < size; ++i) {
          members.push_back(first + i * step);
        }
        owned.push_back(self->group(members));
        levels.push_back(owned.back().get());
        step *= size;
      }
      body(rank, Levels(levels));
    });
  }
}

// The place of a rank's slice: its digits, the innermost level's most significant.
inline std::int64_t slice_index(const Sizes& sizes, std::int64_t rank) {
  std::int64_t index = 0;
  for (const std::int64_t size : sizes) {
    index = index * size + rank % size;
    rank /= size;
  }
  return index;
}

}  // namespace tessera
