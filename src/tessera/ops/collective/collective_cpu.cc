#include <cstdint>
#include <vector>

#include "tessera/backend/cpu/context.h"
#include "tessera/base/error.h"
#include "tessera/comm/hierarchical.h"
#include "tessera/mesh/axes.h"
#include "tessera/ops/collective/collective.h"

namespace tessera {
namespace {

std::vector<Communicator*> levels_of(cpu::Context& context, const AxisSizes& axes) {
  std::vector<Communicator*> levels;
  for (const AxisSize& axis : axes) {
    if (axis.size > 1) {
      Communicator& level = context.communicator(axis.name);
      TESSERA_CHECK(level.size() == axis.size,
                    "axis {} has {} ranks, the program was made for {}",
                    axis.name,
                    level.size(),
                    axis.size);
      levels.push_back(&level);
    }
  }
  return levels;
}

Elements elements_of(const View& view) {
  TESSERA_CHECK(view.is_contiguous(), "a collective needs contiguous memory");
  return {.dtype = view.dtype, .data = view.as<std::byte>(), .count = view.num_elements()};
}

// Bytes between the innermost level and the next, for slices of `slice` elements.
std::int64_t scratch_bytes(const std::string& axes, std::int64_t slice, DType dtype) {
  std::vector<std::int64_t> sizes;
  for (const AxisSize& axis : parse_axes(axes)) {
    if (axis.size > 1) {
      sizes.push_back(axis.size);
    }
  }
  return scratch_elements(sizes, slice) * static_cast<std::int64_t>(size_bytes(dtype));
}

}  // namespace

void run(const AllReduceAttrs& attrs, cpu::Context& context, const Views& views) {
  all_reduce(attrs.max ? Fold::kMax : Fold::kSum,
             levels_of(context, parse_axes(attrs.axes)),
             elements_of(views.in[0]),
             elements_of(views.out[0]));
}

std::int64_t workspace_bytes(const GatherSlicesAttrs& attrs, cpu::Context& /*context*/, Types in) {
  return scratch_bytes(attrs.axes, in[0].num_elements(), in[0].dtype);
}

void run(const GatherSlicesAttrs& attrs, cpu::Context& context, const Views& views) {
  gather_slices(levels_of(context, parse_axes(attrs.axes)),
                elements_of(views.in[0]),
                elements_of(views.out[0]),
                views.workspace.data());
}

std::int64_t workspace_bytes(const ReduceSlicesAttrs& attrs, cpu::Context& /*context*/, Types in) {
  return scratch_bytes(attrs.axes, attrs.slice, in[0].dtype);
}

void run(const ReduceSlicesAttrs& attrs, cpu::Context& context, const Views& views) {
  reduce_slices(Fold::kSum,
                levels_of(context, parse_axes(attrs.axes)),
                elements_of(views.in[0]),
                elements_of(views.out[0]),
                views.workspace.data());
}

}  // namespace tessera
