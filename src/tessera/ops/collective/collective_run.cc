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

  Elements operator[](std::int64_t row) const {
    const auto element = static_cast<std::int64_t>(size_bytes(all_.dtype));
    return {.dtype = all_.dtype, .data = all_.data + row * width_ * element, .count = width_};
  }

 private:
  Elements all_;
  std::int64_t count_ = 1;
  std::int64_t width_ = 0;
};

// Elements of a shard of dim `dim` for one index of the dims before it.
std::int64_t shard_row(const TensorType& shard, std::int64_t dim) {
  return shard.extent(static_cast<std::size_t>(dim), shard.num_dims());
}

}  // namespace

void run(const AllReduceAttrs& attrs, CollectiveContext& context, const Views& views) {
  const Elements in = elements_of(views.in[0]);
  all_reduce(attrs.max ? Fold::kMax : Fold::kSum,
             context.levels(attrs.axes, all_reduce_class(in.dtype, in.count)),
             in,
             elements_of(views.out[0]),
             context.mover());
}

std::int64_t workspace_bytes(const AllReduceSlicesAttrs& attrs, Types in) {
  const Wiring wiring = wiring_of(attrs);
  return all_reduce_workspace_bytes(wiring.sizes, wiring.wire, in[0].dtype, in[0].num_elements());
}

void run(const AllReduceSlicesAttrs& attrs, CollectiveContext& context, const Views& views) {
  all_reduce_slices(context.levels(attrs.axes, TrafficClass::kState),
                    wiring_of(attrs).wire,
                    elements_of(views.in[0]),
                    elements_of(views.out[0]),
                    views.workspace.data(),
                    context.mover());
}

std::int64_t workspace_bytes(const GatherSlicesAttrs& attrs, Types in) {
  const Wiring wiring = wiring_of(attrs);
  return gather_workspace_bytes(wiring.sizes, wiring.wire, in[0].dtype, in[0].num_elements());
}

void run(const GatherSlicesAttrs& attrs, CollectiveContext& context, const Views& views) {
  gather_slices(context.levels(attrs.axes, TrafficClass::kState),
                wiring_of(attrs).wire,
                elements_of(views.in[0]),
                elements_of(views.out[0]),
                views.workspace.data(),
                context.mover());
}

std::int64_t workspace_bytes(const ReduceSlicesAttrs& attrs, Types in) {
  const Wiring wiring = wiring_of(attrs);
  return reduce_workspace_bytes(wiring.sizes, wiring.wire, in[0].dtype, attrs.slice);
}

void run(const ReduceSlicesAttrs& attrs, CollectiveContext& context, const Views& views) {
  reduce_slices(context.levels(attrs.axes, TrafficClass::kState),
                wiring_of(attrs).wire,
                elements_of(views.in[0]),
                elements_of(views.out[0]),
                views.workspace.data(),
                context.mover());
}

std::int64_t workspace_bytes(const AllGatherAttrs& attrs, Types in) {
  return shard_workspace_bytes(attrs.axes, shard_row(in[0], attrs.dim), in[0].dtype);
}

void run(const AllGatherAttrs& attrs, CollectiveContext& context, const Views& views) {
  const Levels levels = context.levels(attrs.axes, TrafficClass::kTensor);
  const Rows shard(views.in[0], attrs.dim);
  const Rows whole(views.out[0], attrs.dim);
  for (std::int64_t row = 0; row < whole.count(); ++row) {
    gather_slices(levels, shard[row], whole[row], views.workspace.data(), context.mover());
  }
}

std::int64_t workspace_bytes(const ReduceScatterAttrs& attrs, Types in) {
  return shard_workspace_bytes(attrs.axes, shard_row(infer(attrs, in)[0], attrs.dim), in[0].dtype);
}

void run(const ReduceScatterAttrs& attrs, CollectiveContext& context, const Views& views) {
  const Levels levels = context.levels(attrs.axes, TrafficClass::kTensor);
  const Rows whole(views.in[0], attrs.dim);
  const Rows shard(views.out[0], attrs.dim);
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
  const View& x = views.in[0];
  const View& y = views.out[0];
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
  const Rows whole(views.in[0], attrs.dim);
  const Rows shard(views.out[0], attrs.dim);
  const auto element = static_cast<std::int64_t>(size_bytes(views.in[0].dtype));
  const std::int64_t place = place_along(context.levels(attrs.axes, TrafficClass::kTensor));
  const Part own = part_of(place, shard.width(), whole.width());
  for (std::int64_t row = 0; row < whole.count(); ++row) {
    const std::span<std::byte> to(shard[row].data,
                                  static_cast<std::size_t>(shard.width() * element));
    const auto bytes = static_cast<std::size_t>(own.size * element);
    context.mover().copy(whole[row].data + own.begin * element, to.first(bytes));
    context.mover().zero(to.subspan(bytes));
  }
}

}  // namespace tessera
