#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/collective_context.h"
#include "tessera/comm/wired.h"
#include "tessera/mesh/axes.h"
#include "tessera/mesh/tensor_box.h"
#include "tessera/ops/collective/collective.h"
#include "tessera/ops/in_order.h"

namespace tessera {
namespace {

// The sizes and formats of the axes that have several ranks.
struct Wiring {
  std::vector<std::int64_t> sizes;
  Wire wire;
};

template <class Attrs>
Wiring wiring_of(const Attrs& attrs) {
  const AxisSizes& axes = attrs.axes;
  const WireFormats formats = formats_of_levels(attrs.wire, axes.size());
  Wiring wiring = {.sizes = {}, .wire = {.formats = {}, .block = attrs.block}};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].size > 1) {
      wiring.sizes.push_back(axes[i].size);
      if (!formats.empty()) {
        wiring.wire.formats.push_back(formats[i]);
      }
    }
  }
  return wiring;
}

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

// Copies each rank's shards of all rows from where they lie side by side to their places in
// `whole`, which is cut at its end, or the other way.
void place_shards(const Mover& mover,
                  const Rows& shard,
                  const Rows& whole,
                  std::byte* side_by_side,
                  bool is_gather) {
  const std::int64_t width = shard.row_bytes();
  for (std::int64_t begin = 0; begin < whole.row_bytes(); begin += width) {
    std::byte* const part = whole.all().data + begin;
    const std::int64_t bytes = std::min(width, whole.row_bytes() - begin);
    if (is_gather) {
      mover.copy_rows(side_by_side, width, part, whole.row_bytes(), bytes, whole.count());
    } else {
      mover.copy_rows(part, whole.row_bytes(), side_by_side, width, bytes, whole.count());
    }
    side_by_side += width * whole.count();
  }
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
  const Wiring wiring = wiring_of(attrs);
  return all_reduce_workspace_bytes(wiring.sizes, wiring.wire, in[0].dtype, in[0].num_elements());
}

void run(const AllReduceSlicesAttrs& attrs, CollectiveContext& context, const Views& views) {
  const auto [x, y] = one_to_one(views);
  all_reduce_slices(context.levels(attrs.axes, TrafficClass::kState),
                    wiring_of(attrs).wire,
                    elements_of(x),
                    elements_of(y),
                    views.workspace.data(),
                    context.mover());
}

std::int64_t workspace_bytes(const GatherSlicesAttrs& attrs, Types in) {
  const Wiring wiring = wiring_of(attrs);
  return gather_workspace_bytes(wiring.sizes, wiring.wire, in[0].dtype, in[0].num_elements());
}

void run(const GatherSlicesAttrs& attrs, CollectiveContext& context, const Views& views) {
  const auto [x, y] = one_to_one(views);
  gather_slices(context.levels(attrs.axes, TrafficClass::kState),
                wiring_of(attrs).wire,
                elements_of(x),
                elements_of(y),
                views.workspace.data(),
                context.mover());
}

std::int64_t workspace_bytes(const ReduceSlicesAttrs& attrs, Types in) {
  const Wiring wiring = wiring_of(attrs);
  return reduce_workspace_bytes(wiring.sizes, wiring.wire, in[0].dtype, attrs.slice);
}

void run(const ReduceSlicesAttrs& attrs, CollectiveContext& context, const Views& views) {
  const auto [x, y] = one_to_one(views);
  reduce_slices(context.levels(attrs.axes, TrafficClass::kState),
                wiring_of(attrs).wire,
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
    place_shards(context.mover(), shard, whole, together.shards.data, true);
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
    if (whole.width() < num_ranks(attrs.axes) * shard.width()) {  // the last ones have padding
      mover.zero(
          {together.shards.data, static_cast<std::size_t>(ConstElements(together.shards).bytes())});
    }
    place_shards(mover, shard, whole, together.shards.data, false);
    reduce_slices(Fold::kSum, levels, together.shards, shard.all(), together.scratch, mover);
    return;
  }
  for (std::int64_t row = 0; row < whole.count(); ++row) {
    reduce_slices(
        Fold::kSum, levels, whole[row], shard[row], views.workspace.data(), context.mover());
  }
}

namespace {

// What the ranks deal to each other: equal parts, one for each rank, in memory side by side.
struct Dealt {
  std::int64_t ranks = 1;
  std::vector<std::int64_t> sizes;  // of a part
  std::int64_t part_bytes = 0;

  Dealt(const AllToAllAttrs& attrs, std::vector<std::int64_t> shard, DType dtype)
      : ranks(num_ranks(attrs.axes)), sizes(std::move(shard)) {
    std::int64_t& cut = sizes[static_cast<std::size_t>(attrs.to)];
    cut = (cut + ranks - 1) / ranks;
    part_bytes = static_cast<std::int64_t>(size_bytes(dtype));
    for (const std::int64_t size : sizes) {
      part_bytes *= size;
    }
  }

  std::int64_t bytes() const { return ranks * part_bytes; }
};

std::vector<std::int64_t> sizes_of(const View& view) {
  return {view.sizes.begin(), view.sizes.begin() + view.num_dims};
}

// The box of a tensor that is part `place` of it along dim `dim`.
TensorBox part_box(const View& tensor,
                   const std::vector<std::int64_t>& part,
                   std::int64_t dim,
                   std::int64_t place) {
  std::vector<std::int64_t> offset(part.size(), 0);
  const auto cut = static_cast<std::size_t>(dim);
  offset[cut] = place * part[cut];
  return {sizes_of(tensor), std::move(offset), part};
}

}  // namespace

std::int64_t workspace_bytes(const AllToAllAttrs& attrs, Types in) {
  return 2 * Dealt(attrs, in[0].bounds(), in[0].dtype).bytes();
}

void run(const AllToAllAttrs& attrs, CollectiveContext& context, const Views& views) {
  const auto [x, y] = one_to_one(views);
  const Elements from = elements_of(x);
  const Elements to = elements_of(y);
  const Mover& mover = context.mover();
  const auto element = static_cast<std::int64_t>(size_bytes(x.dtype));
  const Dealt dealt(attrs, sizes_of(x), x.dtype);
  const auto bytes = static_cast<std::size_t>(dealt.bytes());
  const std::span<std::byte> parts = views.workspace.first(bytes);
  const std::span<std::byte> scratch = views.workspace.subspan(bytes, bytes);
  const auto copy = [&](const std::byte* source, std::byte* target, std::int64_t count) {
    mover.copy(source, {target, static_cast<std::size_t>(count * element)});
  };

  if (x.sizes[static_cast<std::size_t>(attrs.to)] % dealt.ranks != 0) {
    mover.zero(parts);  // the end of the last ones is padding
  }
  for (std::int64_t rank = 0; rank < dealt.ranks; ++rank) {
    const TensorBox box = part_box(x, dealt.sizes, attrs.to, rank);
    std::byte* const part = parts.data() + rank * dealt.part_bytes;
    box.for_each_stretch(
        0, box.num_elements(), [&](std::int64_t whole, std::int64_t local, std::int64_t count) {
          copy(from.data + whole * element, part + local * element, count);
        });
  }
  const std::byte* const received =
      exchange_parts(context.levels(attrs.axes, TrafficClass::kTensor), parts, scratch);
  for (std::int64_t rank = 0; rank < dealt.ranks; ++rank) {
    const TensorBox box = part_box(y, dealt.sizes, attrs.from, rank);
    const std::byte* const part = received + rank * dealt.part_bytes;
    box.for_each_stretch(
        0, box.num_elements(), [&](std::int64_t whole, std::int64_t local, std::int64_t count) {
          copy(part + local * element, to.data + whole * element, count);
        });
  }
}

void run(const LocalSliceAttrs& attrs, CollectiveContext& context, const Views& views) {
  const auto [x, y] = one_to_one(views);
  const Rows whole(x, attrs.dim);
  const Rows shard(y, attrs.dim);
  const auto element = static_cast<std::int64_t>(size_bytes(x.dtype));
  const std::int64_t place = place_along(context.levels(attrs.axes, TrafficClass::kTensor));
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
