#pragma once

// For the ops' files about CUDA: kernels that reduce each row of a tensor and then write it. A team
// of threads takes a row: a warp where rows are narrow, which needs no barrier, else a block.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/kernels/launch.h"

namespace tessera::cuda {

// A team of kSize threads, each of which has every kSize-th pack of a row: at most kHeld of them,
// which it keeps in registers between the two passes over a row; kHeld of 0: any number, which it
// reads again.
template <int kThreadsOfTeam, int kPacksHeld>
struct Team {
  static constexpr int kSize = kThreadsOfTeam;
  static constexpr int kHeld = kPacksHeld;
  static constexpr int kOfBlock = kThreads / kSize;
  // Blocks that are to share a multiprocessor: few where a thread needs many registers.
  static constexpr int kBlocks = kHeld > 2 ? 2 : 3;
};

// The widest rows whose packs are held.
inline constexpr std::int64_t kMostHeld = std::int64_t{4} * kThreads * kPack;

// body(Team<..>()) with the team for rows of `width` elements, which is all that the choice, and
// with it the order of a row's sum, depends on.
template <class Body>
void with_team(std::int64_t width, const Body& body) {
  if (width <= std::int64_t{4} * kWarp * kPack) {
    body(Team<kWarp, 4>());
  } else if (width <= std::int64_t{2} * kThreads * kPack) {
    body(Team<kThreads, 2>());
  } else if (width <= kMostHeld) {
    body(Team<kThreads, 4>());
  } else {
    body(Team<kThreads, 0>());
  }
}

// body(std::bool_constant<value>()), for kernels that know it when they are compiled.
template <class Body>
void with_bool(bool value, const Body& body) {
  if (value) {
    body(std::true_type());
  } else {
    body(std::false_type());
  }
}

// In how many stretches, a block each, rows go through a kernel that sums columns, too: it depends
// on the shape alone. Where a device has 128 multiprocessors or more all of them run at once.
inline std::int64_t num_team_stretches(std::int64_t rows, std::int64_t width) {
  std::int64_t most = 1;
  with_team(width, [&](auto team) { most = std::int64_t{128} * decltype(team)::kBlocks; });
  return std::clamp<std::int64_t>((rows + 7) / 8, 1, most);
}

// Workspace for one sum of columns over these stretches.
inline std::int64_t team_sums_bytes(const View::Rows& rows) {
  return num_team_stretches(rows.count, rows.width) * rows.width *
         static_cast<std::int64_t>(sizeof(float));
}

// Blocks for `rows` rows, one a team.
template <class Team>
std::int64_t blocks_of_teams(const Context& context, std::int64_t rows) {
  return blocks_of_rows(context, (rows + Team::kOfBlock - 1) / Team::kOfBlock);
}

#if defined(__CUDACC__) || defined(TESSERA_EMULATED_CUDA)

// Which of the block's teams this thread is of.
template <class Team>
__device__ int team_of_block() {
  return static_cast<int>(threadIdx.x) / Team::kSize;
}

template <class Team>
__device__ float team_sum(float value) {
  if constexpr (Team::kSize == kWarp) {
    return warp_fold(value, [](float a, float b) { return a + b; });
  } else {
    return block_sum(value);
  }
}

// body(k, column) for the packs of this thread, k counting those that it holds.
template <class Team, class Body>
__device__ void each_column(std::int64_t width, const Body& body) {
  constexpr std::int64_t kStep = std::int64_t{Team::kSize} * kPack;
  const std::int64_t first = std::int64_t{threadIdx.x % Team::kSize} * kPack;
  if constexpr (Team::kHeld > 0) {
#pragma unroll
    for (int k = 0; k < Team::kHeld; ++k) {
      if (first + k * kStep < width) {
        body(k, first + k * kStep);
      }
    }
  } else {
    for (std::int64_t column = first; column < width; column += kStep) {
      body(0, column);
    }
  }
}

// A pack as it lies in memory, in words: elements of 16 bits would take a register each.
template <class T>
struct Words {
  static constexpr int kCount = kPack * static_cast<int>(sizeof(T)) / 4;

  alignas(16) std::uint32_t at[kCount];

  static __device__ Words of(const Floats<kPack>& values) {
    Words words;
    for (int i = 0; i < kCount; ++i) {
      if constexpr (sizeof(T) == 2) {
        words.at[i] = bfloat16_pair(values.at[2 * i], values.at[2 * i + 1]);
      } else {
        words.at[i] = std::bit_cast<std::uint32_t>(values.at[i]);
      }
    }
    return words;
  }

  __device__ Floats<kPack> floats() const {
    Floats<kPack> values;
    for (int i = 0; i < kCount; ++i) {
      if constexpr (sizeof(T) == 2) {
        values.at[2 * i] = std::bit_cast<float>(at[i] << 16U);
        values.at[2 * i + 1] = std::bit_cast<float>(at[i] & 0xFFFF0000U);
      } else {
        values.at[i] = std::bit_cast<float>(at[i]);
      }
    }
    return values;
  }
};

// As load_pack(). Which of the two it is the kernel knows, not its data: a branch around each load
// would make the next one wait for it.
template <bool kWhole, class T>
__device__ Words<T> read_pack(const T* place, std::int64_t left) {
  if constexpr (kWhole) {
    return *reinterpret_cast<const Words<T>*>(place);
  } else {
    return Words<T>::of(load_pack(place, left, false));
  }
}

// Packs of a row that a thread holds from one pass over it to the next: none where its team holds
// none, nor where there is no register for them.
template <class Team, class T, bool kRoom = true>
struct Held {
  static constexpr bool kHolds = kRoom && Team::kHeld > 0;

  Words<T> at[kHolds ? Team::kHeld : 1];

  template <class Read>
  __device__ void take(int k, const Read& read) {
    if constexpr (kHolds) {
      at[k] = read();
    }
  }

  // The k-th, by `read` where none are held.
  template <class Read>
  __device__ Floats<kPack> get(int k, const Read& read) const {
    if constexpr (kHolds) {
      return at[k].floats();
    } else {
      return read().floats();
    }
  }
};

// The sums of a thread's columns over the rows of a stretch.
template <class Team>
struct ColumnSums {
  Floats<kPack> at[std::max(Team::kHeld, 1)] = {};

  // place[c] = the sum over the block's teams, in their order. Every thread of the block calls it.
  __device__ void write(std::int64_t width, float* place) const {
    if constexpr (Team::kOfBlock == 1) {
      each_column<Team>(width, [&](int k, std::int64_t column) {
        store_pack(place + column, at[k], width - column, width % kPack == 0);
      });
    } else {
      __shared__ float sums[Team::kHeld * Team::kSize * kPack];
      for (int team = 0; team < Team::kOfBlock; ++team) {
        if (team == team_of_block<Team>()) {
          each_column<Team>(width, [&](int k, std::int64_t column) {
            for (int i = 0; i < kPack; ++i) {
              float& sum = sums[column + i];
              sum = team == 0 ? at[k].at[i] : sum + at[k].at[i];
            }
          });
        }
        __syncthreads();
      }
      for (std::int64_t column = threadIdx.x; column < width; column += kThreads) {
        place[column] = sums[column];
      }
      __syncthreads();  // before the next one writes
    }
  }
};

#endif

}  // namespace tessera::cuda
