#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/collective_context.h"
#include "tessera/comm/wired.h"
#include "tessera/mesh/axes.h"
#include "tessera/ops/collective/collective.h"
#include "tessera/ops/in_order.h"

namespace tessera {
namespace {

// The sizes and formats of the axes that have several ranks. Every run makes one: it lies on the
// stack, unless there are very many axes.
class Wiring {
 public:
  template <class Attrs>
  explicit Wiring(const Attrs& attrs) : block_(attrs.block) {
    const AxisSizes& axes = attrs.axes;
    sizes_.reserve(axes.size());
    formats_.reserve(axes.size());
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (axes[i].size > 1) {
        sizes_.push_back(axes[i].size);
        if (!attrs.wire.empty()) {
          formats_.push_back(attrs.wire.at(attrs.wire.size() == 1 ? 0 : i));
        }
      }
    }
  }

  LevelSizes sizes() const { return sizes_; }

  LevelWire wire() const { return {formats_, block_}; }

 private:
  std::array<std::byte, 512> stack_;
  std::pmr::monotonic_buffer_resource memory_{stack_.data(), stack_.size()};
  std::pmr::vector<std::int64_t> sizes_{&memory_};
  std::pmr::vector<WireFormat> formats_{&memory_};
  std::int64_t block_;
};

Elements elements_of(const View& view) {
  TESSERA_CHECK(view.is_contiguous(), "a collective needs contiguous memory");
  return {.dtype = view.dtype, .data = view.as<std::byte>(), .count = view.num_elements()};
}

// Workspace of moving shards as slices of `slice` elements.
std::int64_t shard_workspace_bytes(const AxisSizes& axes, std::int64_t slice, DType dtype) {
  std::vector<std::int64_t> sizes;
  for (const AxisSize& axis : axes) {
    if (axis.size > 1) {
      sizes.push_back(axis.size);
    }
  }
  return scratch_elements(sizes, slice) * static_cast<std::int64_t>(size_bytes(dtype));
}

// A tensor whose dim `dim` is cut, as equal rows, one for each index of the dims before it: the
// shards of a row are slices of it.
class Rows {
 public:
  Rows(const View& view, std::int64_t dim) : all_(elements_of(view)) {
    for (std::int64_t d = 0; d < dim; ++d) {
      count_ *= view.sizes[static_cast<std::size_t>(d)];
    }
    width_ = count_ == 0 ? 0 : all_.count / count_;
  }

  std::int64_t count() const { return count_; }

  std::int64_t width() const { return width_; }

  std::int64_t row_bytes() const {
    return width_ * static_cast<std::int64_t>(size_bytes(all_.dtype));
  }

  const Elements& all() const { return all_; }

  Elements operator[](std::int64_t row) const {
    const auto element = static_cast<std::int64_t>(size_bytes(all_.dtype));
    return {.dtype = all_.dtype, .data = all_.data + row * width_ * element, .count = width_};
  }

 private:
  Elements all_;
  std::int64_t count_ = 1;
  std::int64_t width_ = 0;
};

// Workspace of moving shards of dim `dim`: those that move together lie in it side by side.
std::int64_t shards_workspace_bytes(const AxisSizes& axes,
                                    std::int64_t dim,
                                    const TensorType& shard) {
  const auto element = static_cast<std::int64_t>(size_bytes(shard.dtype));
  const std::int64_t row = shard.extent(static_cast<std::size_t>(dim), shard.num_dims());
  const std::int64_t rows = shard.extent(0, static_cast<std::size_t>(dim));
  if (!moves_together(rows, row * element)) {
    return shard_workspace_bytes(axes, row, shard.dtype);
  }
  return num_ranks(axes) * shard.num_elements() * element +
         shard_workspace_bytes(axes, shard.num_elements(), shard.dtype);
}

// The shards of all ranks side by side, at the front of a workspace, and what lies after them.
struct Together {
  Elements shards;
  std::byte* scratch;

  Together(const Rows& shard, std::int64_t ranks, std::span<std::byte> workspace)
      : shards{.dtype = shard.all().dtype,
               .data = workspace.data(),
               .count = ranks * shard.all().count},
        scratch(workspace.data() + ConstElements(shards).bytes()) {}
};

// Calls body(where a shard's rows begin in `whole`, where its own memory does, bytes of a row) for
// the shards of all ranks. These have rows of `width` bytes and lie side by side; `whole` is cut at
// its end.
template <class Body>
void for_each_shard(const Rows& whole, std::int64_t width, const Body& body) {
  std::int64_t side_by_side = 0;
  for (std::int64_t begin = 0; begin < whole.row_bytes(); begin += width) {
    body(begin, side_by_side, std::min(width, whole.row_bytes() - begin));
    side_by_side += width * whole.count();
  }
}

// Copies such shards to their places in `whole`.
void gather_shards(const Mover& mover,
                   const std::byte* shards,
                   std::int64_t width,
                   const Rows& whole) {
  std::byte* const to = whole.all().data;
  for_each_shard(whole, width, [&](std::int64_t begin, std::int64_t at, std::int64_t bytes) {
    mover.copy_rows(shards + at, width, to + begin, whole.row_bytes(), bytes, whole.count());
  });
}

// Copies `whole` to such shards; zeros where they reach over its end.
void cut_shards(const Mover& mover,
                const Rows& whole,
                std::int64_t width,
                std::span<std::byte> shards) {
  if (std::ssize(shards) > whole.row_bytes() * whole.count()) {
    mover.zero(shards);
  }
  const std::byte* const from = whole.all().data;
  for_each_shard(whole, width, [&](std::int64_t begin, std::int64_t at, std::int64_t bytes) {
    mover.copy_rows(
        from + begin, whole.row_bytes(), shards.data() + at, width, bytes, whole.count());
  });
}

}  // namespace

void run(const AllReduceAttrs& attrs, CollectiveContext& context, const Views& views) {
  const auto [x, y] = one_to_one(views);
  const Elements in = elements_of(x);
  all_reduce(attrs.max ? Fold::kMax : Fold::kSum,
             context.levels(attrs.axes, all_reduce_class(in.dtype, in.count)),
             in,
             elements_of(y),
             context.mover());
}

std::int64_t workspace_bytes(const AllReduceSlicesAttrs& attrs, Types in) {
  const Wiring wiring(attrs);
  return all_reduce_workspace_bytes(
      wiring.sizes(), wiring.wire(), in[0].dtype, in[0].num_elements());
}

void run(const AllReduceSlicesAttrs& attrs, CollectiveContext& context, const Views& views) {
  const auto [x, y] = one_to_one(views);
  all_reduce_slices(context.levels(attrs.axes, TrafficClass::kState),
                    Wiring(attrs).wire(),
                    elements_of(x),
                    elements_of(y),
                    views.workspace.data(),
                    context.mover());
}

std::int64_t workspace_bytes(const GatherSlicesAttrs& attrs, Types in) {
  const Wiring wiring(attrs);
  return gather_workspace_bytes(wiring.sizes(), wiring.wire(), in[0].dtype, in[0].num_elements());
}

void run(const GatherSlicesAttrs& attrs, CollectiveContext& context, const Views& views) {
  const auto [x, y] = one_to_one(views);
  gather_slices(context.levels(attrs.axes, TrafficClass::kState),
                Wiring(attrs).wire(),
                elements_of(x),
                elements_of(y),
                views.workspace.data(),
                context.mover());
}

std::int64_t workspace_bytes(const ReduceSlicesAttrs& attrs, Types in) {
  const Wiring wiring(attrs);
  return reduce_workspace_bytes(wiring.sizes(), wiring.wire(), in[0].dtype, attrs.slice);
}

void run(const ReduceSlicesAttrs& attrs, CollectiveContext& context, const Views& views) {
  const auto [x, y] = one_to_one(views);
  reduce_slices(context.levels(attrs.axes, TrafficClass::kState),
                Wiring(attrs).wire(),
                elements_of(x),
                elements_of(y),
                views.workspace.data(),
                context.mover());
}

std::int64_t workspace_bytes(const AllGatherAttrs& attrs, Types in) {
  return shards_workspace_bytes(attrs.axes, attrs.dim, in[0]);
}

void run(const AllGatherAttrs& attrs, CollectiveContext& context, const Views& views) {
  const Levels levels = context.levels(attrs.axes, TrafficClass::kTensor);
  const auto [x, y] = one_to_one(views);
  const Rows shard(x, attrs.dim);
  const Rows whole(y, attrs.dim);
  if (moves_together(shard.count(), shard.row_bytes())) {
    const Together together(shard, num_ranks(attrs.axes), views.workspace);
    gather_slices(levels, shard.all(), together.shards, together.scratch, context.mover());
    gather_shards(context.mover(), together.shards.data, shard.row_bytes(), whole);
    return;
  }
  for (std::int64_t row = 0; row < whole.count(); ++row) {
    gather_slices(levels, shard[row], whole[row], views.workspace.data(), context.mover());
  }
}

std::int64_t workspace_bytes(const ReduceScatterAttrs& attrs, Types in) {
  return shards_workspace_bytes(attrs.axes, attrs.dim, infer(attrs, in)[0]);
}

void run(const ReduceScatterAttrs& attrs, CollectiveContext& context, const Views& views) {
  const Levels levels = context.levels(attrs.axes, TrafficClass::kTensor);
  const auto [x, y] = one_to_one(views);
  const Rows whole(x, attrs.dim);
  const Rows shard(y, attrs.dim);
  if (moves_together(shard.count(), shard.row_bytes())) {
    const Mover& mover = context.mover();
    const Together together(shard, num_ranks(attrs.axes), views.workspace);
    const ConstElements shards = together.shards;
    cut_shards(mover,
               whole,
               shard.row_bytes(),
               {together.shards.data, static_cast<std::size_t>(shards.bytes())});
    reduce_slices(Fold::kSum, levels, together.shards, shard.all(), together.scratch, mover);
    return;
  }
  for (std::int64_t row = 0; row < whole.count(); ++row) {
    reduce_slices(
        Fold::kSum, levels, whole[row], shard[row], views.workspace.data(), context.mover());
  }
}

namespace {

// Bytes that a rank deals to each of `ranks`, of its own `bytes`: a dim of `bound` is cut, padded.
std::int64_t dealt_bytes(std::int64_t bytes, std::int64_t bound, std::int64_t ranks) {
  return bound == 0 ? 0 : bytes / bound * ((bound + ranks - 1) / ranks);
}

}  // namespace

std::int64_t workspace_bytes(const AllToAllAttrs& attrs, Types in) {
  const std::int64_t ranks = num_ranks(attrs.axes);
  const auto to = static_cast<std::size_t>(attrs.to);
  return 2 * ranks * dealt_bytes(in[0].num_bytes(), in[0].extent(to, to + 1), ranks);
}

void run(const AllToAllAttrs& attrs, CollectiveContext& context, const Views& views) {
  const auto [x, y] = one_to_one(views);
  const std::int64_t ranks = num_ranks(attrs.axes);
  const Rows from(x, attrs.to);
  const Rows to(y, attrs.from);
  const std::int64_t part = dealt_bytes(
      ConstElements(from.all()).bytes(), x.sizes[static_cast<std::size_t>(attrs.to)], ranks);
  if (part == 0) {
    return;
  }
  const auto bytes = static_cast<std::size_t>(ranks * part);
  const std::span<std::byte> parts = views.workspace.first(bytes);
  cut_shards(context.mover(), from, part / from.count(), parts);
  const std::byte* const received =
      exchange_parts(context.levels(attrs.axes, TrafficClass::kTensor),
                     parts,
                     views.workspace.subspan(bytes, bytes));
  gather_shards(context.mover(), received, part / to.count(), to);
}

void run(const RingShiftAttrs& attrs, CollectiveContext& context, const Views& views) {
  const auto [x, y] = one_to_one(views);
  const Levels levels = context.levels(attrs.axes, TrafficClass::kTensor);
  const Elements from = elements_of(x);
  const Elements to = elements_of(y);
  const auto bytes = static_cast<std::size_t>(ConstElements(from).bytes());
  if (levels.empty()) {
    context.mover().copy(from.data, {to.data, bytes});
  } else {
    levels.front()->ring_shift({from.data, bytes}, {to.data, bytes});
  }
}

namespace {

// The index of the shard of the rank so many places back along some of the axes.
std::int64_t place_back(const LocalSliceAttrs& attrs, Levels levels) {
  std::int64_t place = 0;
  std::size_t level = 0;
  for (const AxisSize& axis : attrs.axes) {
    if (axis.size == 1) {
      continue;
    }
    const auto back = std::ranges::find(attrs.back, axis.name, &AxisSize::name);
    const std::int64_t steps = back == attrs.back.end() ? 0 : back->size;
    place = place * axis.size + (levels[level++]->rank() + axis.size - steps) % axis.size;
  }
  return place;
}

}  // namespace

void run(const LocalSliceAttrs& attrs, CollectiveContext& context, const Views& views) {
  const auto [x, y] = one_to_one(views);
  const Rows whole(x, attrs.dim);
  const Rows shard(y, attrs.dim);
  const auto element = static_cast<std::int64_t>(size_bytes(x.dtype));
  const std::int64_t place = place_back(attrs, context.levels(attrs.axes, TrafficClass::kTensor));
  const Part own = part_of(place, shard.width(), whole.width());
  const Mover& mover = context.mover();
  if (own.size < shard.width()) {
    mover.zero({shard.all().data, static_cast<std::size_t>(shard.row_bytes() * shard.count())});
  }
  mover.copy_rows(whole.all().data + own.begin * element,
                  whole.row_bytes(),
                  shard.all().data,
                  shard.row_bytes(),
                  own.size * element,
                  whole.count());
}

}  // namespace tessera
