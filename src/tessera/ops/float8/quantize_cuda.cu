#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/kernels/largest.h"
#include "tessera/backend/cuda/kernels/row_sums.h"
#include "tessera/backend/cuda/kernels/row_teams.h"
#include "tessera/base/float8.h"
#include "tessera/ops/float8/codes_cuda.h"
#include "tessera/ops/float8/float8.h"
#include "tessera/ops/float8/float8_cuda.h"
#include "tessera/ops/float8/float8_operands.h"
#include "tessera/ops/float8/float8_results.h"
#include "tessera/ops/float8/scales.h"

namespace tessera {
namespace cuda {
namespace {

__global__ static void clear_all(float* values, std::int64_t count) {
  for (std::int64_t i = first_item(); i < count; i += num_threads()) {
    values[i] = 0.0F;
  }
}

// The largest magnitude of everything.
template <class T>
struct AmaxOfAll {
  Matrix<const T> x;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column, Largest* largest) const {
    const auto pack = *reinterpret_cast<const Pack<T, N>*>(x.at(row, column));
    largest->take(pack);
  }
};

// A matrix in packs.
template <class T>
struct Packs {
  Matrix<const T> x;
  std::int64_t rows;
  std::int64_t columns;  // packs in a row
};

template <int N, class T>
__global__ void amax_of_rows(Packs<T> packs, float* result) {
  for (std::int64_t row = blockIdx.x; row < packs.rows; row += gridDim.x) {
    Largest largest;
    for (std::int64_t i = threadIdx.x; i < packs.columns; i += blockDim.x) {
      const auto pack = *reinterpret_cast<const Pack<T, N>*>(packs.x.at(row, i * N));
      largest.take(pack);
    }
    const float found = largest.of_block();
    if (threadIdx.x == 0) {
      result[row] = found;
    }
  }
}

// A thread takes a pack of columns along a stretch of rows.
template <int N, class T>
__global__ void amax_of_columns(Packs<T> packs, std::int64_t stretches, float* result) {
  for (std::int64_t i = first_item(); i < stretches * packs.columns; i += num_threads()) {
    const std::int64_t stretch = i / packs.columns;
    const std::int64_t column = i % packs.columns * N;
    const std::int64_t end = packs.rows * (stretch + 1) / stretches;
    std::uint32_t largest[N] = {};
    for (std::int64_t row = packs.rows * stretch / stretches; row < end; ++row) {
      const Floats<N> values = load<N>(packs.x.at(row, column));
      for (int k = 0; k < N; ++k) {
        largest[k] = std::max(largest[k], magnitude_bits(values.at[k]));
      }
    }
    for (int k = 0; k < N; ++k) {
      Largest::raise_to(result + column + k, std::bit_cast<float>(largest[k]));
    }
  }
}

template <int N, class T>
void run_amax(const Context& context, const ScaleShape& shape, const View& x, float* result) {
  const char* const name = "amax";
  const View::Rows rows = x.rows(shape.inner);
  const Packs<T> packs = {.x = {x, shape.inner}, .rows = rows.count, .columns = rows.width / N};
  if (shape.sharing == Sharing::kRows) {
    launch(context, name, blocks_of_rows(context, rows.count), amax_of_rows<N, T>, packs, result);
    return;
  }
  if (shape.sharing == Sharing::kAll) {
    const AmaxOfAll<T> body = {.x = packs.x};
    for_each_pack_seen(context, name, rows, N == kPack, body, Places<1>{{result}});
    return;
  }
  launch(context, name, blocks_for(context, rows.width), clear_all, result, rows.width);
  const std::int64_t stretches = num_row_stretches(rows);
  launch(context,
         name,
         blocks_for(context, stretches * packs.columns),
         amax_of_columns<N, T>,
         packs,
         stretches,
         result);
}

// What a kernel of codes reads and writes.
template <class T>
struct Quantization {
  Matrix<const T> x;
  Matrix<std::uint8_t> codes;  // or null
  std::uint8_t* transposed;    // or null: (columns, rows)
  const float* amax;
  float* inverse;
  Sharing sharing;
  bool power_of_two;
  bool fits;  // x and codes move in packs
};

// One scale for each row, or one for all of them; codes as x lies.
template <class T, class Float8>
struct QuantizeRows {
  Quantization<T> task;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    const bool is_one = task.sharing == Sharing::kAll;
    const std::int64_t place = is_one ? 0 : row;
    const Floats<N> values = load<N>(task.x.at(row, column));  // before anything waits
    const float scale = scale_of(task.amax[place], Float8::kMax, task.power_of_two);
    if (column == 0 && (row == 0 || !is_one)) {
      task.inverse[place] = 1.0F / scale;
    }
    Floats<N> scales;
    for (int i = 0; i < N; ++i) {
      scales.at[i] = scale;
    }
    *reinterpret_cast<Pack<std::uint8_t, N>*>(task.codes.at(row, column)) =
        encode<Float8>(values, scales);
  }
};

// A square of codes that a block turns over, with a gap behind every group of rows, so that the
// groups of a column lie in banks of their own.
class Tile {
 public:
  static constexpr int kSide = 64;
  static constexpr int kGroup = 16;  // rows that a thread puts together

  __device__ std::uint8_t* at(int row, int column) {
    const int place = row * kSide + row / kGroup * kPack + column;
    return codes_ + place;
  }

 private:
  alignas(16) std::uint8_t codes_[kSide * kSide + kSide / kGroup * kPack];
};

// A matrix in tiles.
struct TileGrid {
  std::int64_t rows;
  std::int64_t columns;
  Divisor across;  // tiles in a row of them
  std::uint32_t count;

  TileGrid(std::int64_t num_rows, std::int64_t num_columns)
      : rows(num_rows),
        columns(num_columns),
        across((num_columns + Tile::kSide - 1) / Tile::kSide),
        count(static_cast<std::uint32_t>((num_rows + Tile::kSide - 1) / Tile::kSide) *
              across.divisor()) {}
};

// The tile that a block works on.
struct TilePlace {
  std::int64_t row;
  std::int64_t column;
  bool whole;  // it ends within the matrix

  __device__ TilePlace(const TileGrid& grid, std::uint32_t tile) {
    const std::uint32_t down = grid.across.quotient(tile);
    row = std::int64_t{down} * Tile::kSide;
    column = std::int64_t{tile - down * grid.across.divisor()} * Tile::kSide;
    whole = row + Tile::kSide <= grid.rows && column + Tile::kSide <= grid.columns;
  }
};

// to (columns, rows) = the tile, which is written. Every thread of the block calls it.
__device__ inline void store_turned(Tile& tile,
                                    const TileGrid& grid,
                                    const TilePlace& place,
                                    std::uint8_t* to) {
  constexpr int kGroups = Tile::kSide / Tile::kGroup;
  const int across = static_cast<int>(threadIdx.x) / kGroups;
  const int down = static_cast<int>(threadIdx.x) % kGroups * Tile::kGroup;
  const std::int64_t left = grid.rows - place.row - down;
  if (place.column + across >= grid.columns || left <= 0) {
    return;
  }
  Pack<std::uint8_t, Tile::kGroup> bytes;
  for (int i = 0; i < Tile::kGroup; ++i) {
    bytes.at[i] = *tile.at(down + i, across);
  }
  store_bytes(to + (place.column + across) * grid.rows + place.row + down,
              bytes,
              left,
              place.whole && grid.rows % Tile::kGroup == 0 &&
                  reinterpret_cast<std::uintptr_t>(to) % Tile::kGroup == 0);
}

// fill(tile row, tile column) for the packs of a tile that are this thread's.
template <class Fill>
__device__ void each_pack_of_tile(const Fill& fill) {
  constexpr int kPacks = Tile::kSide / kPack;  // in a row
  constexpr int kRows = kThreads / kPacks;     // that the block takes at once
  const int row = static_cast<int>(threadIdx.x) / kPacks;
  const int column = static_cast<int>(threadIdx.x) % kPacks * kPack;
#pragma unroll
  for (int first = 0; first < Tile::kSide; first += kRows) {
    fill(first + row, column);
  }
}

// The scales of a tile: of its columns, of its rows, or the first alone.
template <class T, class Float8>
__device__ void find_scales(const Quantization<T>& task,
                            const TileGrid& grid,
                            const TilePlace& tile,
                            float* scales) {
  const auto i = static_cast<int>(threadIdx.x);
  const bool by_row = task.sharing == Sharing::kRows;
  const bool is_one = task.sharing == Sharing::kAll;
  const std::int64_t place = is_one ? i : i + (by_row ? tile.row : tile.column);
  const std::int64_t count = is_one ? 1 : by_row ? grid.rows : grid.columns;
  if (i >= Tile::kSide) {
    return;
  }
  scales[i] = 0.0F;  // of what is behind the end
  if (place >= count) {
    return;
  }
  scales[i] = scale_of(task.amax[place], Float8::kMax, task.power_of_two);
  if ((by_row || tile.row == 0) && (task.sharing == Sharing::kColumns || tile.column == 0)) {
    task.inverse[place] = 1.0F / scales[i];
  }
}

// The packs of a tile, on their way from x to codes.
template <class T, class Float8>
struct TilePacks {
  const Quantization<T>& task;
  const TileGrid& grid;
  const TilePlace& place;
  const Pack<float, kPack>* scales;
  bool whole;  // all of the tile moves in packs

  // Zeros behind the ends.
  __device__ Floats<kPack> load_at(int tile_row, int tile_column) const {
    const std::int64_t row = place.row + tile_row;
    const std::int64_t column = place.column + tile_column;
    return load_pack(task.x.at(row, column), row < grid.rows ? grid.columns - column : 0, whole);
  }

  __device__ Floats<kPack> scales_at(int tile_row, int tile_column) const {
    if (task.sharing == Sharing::kColumns) {
      return widen(scales[tile_column / kPack]);
    }
    const float scale = scales[0].at[task.sharing == Sharing::kRows ? tile_row : 0];
    Floats<kPack> same;
    for (int i = 0; i < kPack; ++i) {
      same.at[i] = scale;
    }
    return same;
  }

  __device__ void quantize(int tile_row, int tile_column, Tile& tile) const {
    const Pack<std::uint8_t, kPack> codes =
        encode<Float8>(load_at(tile_row, tile_column), scales_at(tile_row, tile_column));
    *reinterpret_cast<Pack<std::uint8_t, kPack>*>(tile.at(tile_row, tile_column)) = codes;
    const std::int64_t row = place.row + tile_row;
    const std::int64_t column = place.column + tile_column;
    if (task.codes.data != nullptr && row < grid.rows) {
      store_bytes(task.codes.at(row, column), codes, grid.columns - column, whole);
    }
  }
};

// Any scales; codes as x lies and turned over, in one pass.
template <class T, class Float8>
__global__ void quantize_tiles(Quantization<T> task, TileGrid grid) {
  __shared__ Tile tile;
  __shared__ Pack<float, kPack> scales[Tile::kSide / kPack];
  for (std::uint32_t i = blockIdx.x; i < grid.count; i += gridDim.x) {
    const TilePlace place(grid, i);
    find_scales<T, Float8>(task, grid, place, scales[0].at);
    __syncthreads();
    const TilePacks<T, Float8> packs = {.task = task,
                                        .grid = grid,
                                        .place = place,
                                        .scales = scales,
                                        .whole = task.fits && place.whole};
    each_pack_of_tile([&](int row, int column) { packs.quantize(row, column, tile); });
    __syncthreads();
    if (task.transposed != nullptr) {
      store_turned(tile, grid, place, task.transposed);
    }
    __syncthreads();  // before the next tile
  }
}

template <class T, class Float8>
void run_quantize(const Context& context, const Quantization<T>& task, const View::Rows& rows) {
  const char* const name = "quantize_float8";
  if (task.transposed == nullptr && task.sharing != Sharing::kColumns) {
    for_each_pack(context, name, rows, task.fits, QuantizeRows<T, Float8>{.task = task});
    return;
  }
  const TileGrid grid(rows.count, rows.width);
  launch(context, name, blocks_of_rows(context, grid.count), quantize_tiles<T, Float8>, task, grid);
}

// Codes of rows whose largest magnitudes are found first. A team of threads takes a row.
template <class Team, bool kWhole, class T>
__global__ void quantize_found_rows(Matrix<const T> x,
                                    RowCodes to,
                                    std::int64_t rows,
                                    std::int64_t width) {
  const std::int64_t step = std::int64_t{gridDim.x} * Team::kOfBlock;
  for (std::int64_t row = std::int64_t{blockIdx.x} * Team::kOfBlock + team_of_block<Team>();
       row < rows;
       row += step) {
    const auto read = [&](std::int64_t c) { return read_pack<kWhole>(x.at(row, c), width - c); };
    Held<Team, T> held;
    Largest largest;
    each_column<Team>(width, [&](int k, std::int64_t c) { held.take(k, [&] { return read(c); }); });
    each_column<Team>(width, [&](int k, std::int64_t c) {
      largest.take(narrow<T>(held.get(k, [&] { return read(c); })));
    });
    to.write<Team, kWhole>(row, width, largest, [&](int k, std::int64_t c) {
      return held.get(k, [&] { return read(c); });
    });
  }
}

void quantize_rows(const QuantizeFloat8Attrs& attrs,
                   const Context& context,
                   const QuantizeFloat8Operands& of) {
  const View& x = of.x;
  const auto inner = static_cast<std::int32_t>(attrs.dims);
  const std::array<View, 2> both = {x, of.codes};
  const RowCodes to(of.codes, of.inverse, inner, attrs.power_of_two);
  const View::Rows rows = x.rows(inner);
  with_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    with_team(rows.width, [&](auto team) {
      using Team = decltype(team);
      with_bool(fits_packs(both, inner), [&](auto whole) {
        launch(context,
               "quantize_float8",
               blocks_of_teams<Team>(context, rows.count),
               quantize_found_rows<Team, whole.value, T>,
               Matrix<const T>(x, inner),
               to,
               rows.count,
               rows.width);
      });
    });
  });
}

// How a matrix of x lies: in rows for turning over, else as it shares scales.
std::int32_t inner_dims(const QuantizeFloat8Attrs& attrs, const View& x, const ScaleShape& shape) {
  return attrs.transposed ? x.num_dims - static_cast<std::int32_t>(attrs.rows) : shape.inner;
}

__global__ static void turn(Codes from, TileGrid grid, bool fits, std::uint8_t* to) {
  __shared__ Tile tile;
  for (std::uint32_t i = blockIdx.x; i < grid.count; i += gridDim.x) {
    const TilePlace place(grid, i);
    each_pack_of_tile([&](int tile_row, int tile_column) {
      const std::int64_t row = place.row + tile_row;
      const std::int64_t column = place.column + tile_column;
      const std::uint8_t* const source = from.data + row * from.pitch + column;
      auto& pack = *reinterpret_cast<Pack<std::uint8_t, kPack>*>(tile.at(tile_row, tile_column));
      if (fits && place.whole) {
        pack = *reinterpret_cast<const Pack<std::uint8_t, kPack>*>(source);
        return;
      }
      for (int k = 0; k < kPack; ++k) {
        pack.at[k] = row < grid.rows && column + k < grid.columns ? source[k] : std::uint8_t{0};
      }
    });
    __syncthreads();
    store_turned(tile, grid, place, to);
    __syncthreads();  // before the next tile
  }
}

}  // namespace
}  // namespace cuda

void run(const AmaxAttrs& attrs, cuda::Context& context, const Views& views) {
  const AmaxOperands of = by_name(attrs, views);
  const View& x = of.x;
  const std::span<const View> packed(&x, 1);
  const ScaleShape shape =
      scale_shape(attrs.dims, attrs.leading, x, cpu::common_inner_dims(packed));
  float* const result = cpu::flat<float>(of.amax).data();
  cuda::with_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    if (cuda::fits_packs(packed, shape.inner)) {
      cuda::run_amax<cuda::kPack, T>(context, shape, x, result);
    } else {
      cuda::run_amax<1, T>(context, shape, x, result);
    }
  });
}

void run(const QuantizeFloat8Attrs& attrs, cuda::Context& context, const Views& views) {
  const QuantizeFloat8Operands of = by_name(attrs, views);
  if (attrs.amax) {
    cuda::quantize_rows(attrs, context, of);
    return;
  }
  const View& x = of.x;
  const std::array<View, 2> both = {x, attrs.codes ? of.codes : x};
  const ScaleShape shape = scale_shape(attrs.dims, attrs.leading, x, cpu::common_inner_dims(both));
  const std::int32_t inner = cuda::inner_dims(attrs, x, shape);
  cuda::with_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    cuda::Quantization<T> task = {.x = {x, inner},
                                  .codes = {},
                                  .transposed = nullptr,
                                  .amax = cpu::flat<const float>(of.amax).data(),
                                  .inverse = cpu::flat<float>(of.inverse).data(),
                                  .sharing = shape.sharing,
                                  .power_of_two = attrs.power_of_two,
                                  .fits = cuda::fits_packs(both, inner)};
    if (attrs.codes) {
      task.codes = {of.codes, inner};
    }
    if (attrs.transposed) {
      task.transposed = cpu::flat<std::uint8_t>(of.transposed).data();
    }
    if (attrs.dtype == DType::kF8E4M3) {
      cuda::run_quantize<T, Float8E4M3>(context, task, x.rows(inner));
    } else {
      cuda::run_quantize<T, Float8E5M2>(context, task, x.rows(inner));
    }
  });
}

void run(const TransposeCodesAttrs& attrs, cuda::Context& context, const Views& views) {
  const TransposeCodesOperands of = by_name(attrs, views);
  const View::Rows rows = of.codes.rows(of.codes.num_dims - static_cast<std::int32_t>(attrs.rows));
  const cuda::Codes from = {.data = of.codes.as<const std::uint8_t>(),
                            .rows = rows.count,
                            .columns = rows.width,
                            .pitch = rows.stride};
  const cuda::TileGrid grid(rows.count, rows.width);
  cuda::launch(context,
               "transpose_codes",
               cuda::blocks_of_rows(context, grid.count),
               cuda::turn,
               from,
               grid,
               from.fits(),
               cpu::flat<std::uint8_t>(of.transposed).data());
}

}  // namespace tessera
