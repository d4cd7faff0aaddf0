// What a rank's own device does around the wire, as comm/hierarchical.cc, comm/wired.cc and
// collective_run.cc do it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tessera/ops/collective/collective.h"
#include "tessera/ops/collective/collective_slices.h"

namespace tessera {
namespace {

// The axes that have several ranks.
struct WorkLevels {
  std::vector<std::int64_t> sizes;
  WireFormats formats;  // by level; none where elements travel as they are
  std::int64_t block = kWireBlock;

  explicit WorkLevels(const AxisSizes& axes) {
    for (const AxisSize& axis : axes) {
      if (axis.size > 1) {
        sizes.push_back(axis.size);
      }
    }
  }

  // Of slices of `dtype`.
  template <class Attrs>
  WorkLevels(const Attrs& attrs, DType dtype) : WorkLevels(attrs.axes) {
    block = attrs.block;
    const WireFormats all = formats_of(attrs);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (attrs.axes[i].size > 1) {
        formats.push_back(all[i]);
      }
    }
    if (std::ranges::all_of(formats,
                            [&](WireFormat format) { return format == wire_format_of(dtype); })) {
      formats.clear();
    }
  }

  std::int64_t ranks() const {
    std::int64_t product = 1;
    for (const std::int64_t size : sizes) {
      product *= size;
    }
    return product;
  }
};

double bytes_of(DType dtype, std::int64_t elements) {
  return static_cast<double>(elements * static_cast<std::int64_t>(size_bytes(dtype)));
}

Work wire_work(DType dtype) {
  return {.kind = WorkKind::kWire, .dtype = dtype};
}

// A kernel that reads and writes so many bytes of workspaces.
Work pass_work(DType dtype, double from, double to) {
  return {.dtype = dtype, .bytes_again = from + to};
}

// A copy of a shard for each of `parts` ranks.
Work copies_work(DType dtype, std::int64_t parts, double from, double to) {
  Work copies = pass_work(dtype, from, to);
  copies.times = std::max<std::int64_t>(parts, 1);
  return copies;
}

// Of what it moves, `bytes` are an operand, or a result.
void read_operand(Work& work, double bytes) {
  work.bytes_read += bytes;
  work.bytes_again -= bytes;
}

void write_result(Work& work, double bytes) {
  work.bytes_written += bytes;
  work.bytes_again -= bytes;
}

// Elements that a reduction folds, and those with the padding of slices.
struct FoldedElements {
  std::int64_t count;
  std::int64_t padded;
};

// The folds of a reduction, level by level: each reads what that before it left, the first one
// `read` bytes; the last one leaves `left`.
Works folds_work(const WorkLevels& levels,
                 DType dtype,
                 const FoldedElements& elements,
                 double read,
                 double left) {
  Works folds;
  auto count = static_cast<double>(elements.count);
  std::int64_t stage = elements.padded;
  for (std::size_t i = 0; i < levels.sizes.size(); ++i) {
    const std::int64_t size = levels.sizes[i];
    stage /= size;
    const double to = i + 1 == levels.sizes.size() ? left : bytes_of(dtype, stage);
    Work fold = pass_work(dtype, read, to);
    fold.kind = WorkKind::kFold;
    fold.elementwise_flop = count - count / static_cast<double>(size);
    folds.push_back(fold);
    count /= static_cast<double>(size);
    read = to;
  }
  return folds;
}

// Along no axis.
Works copied_work(Types in, Types results) {
  Works works = {wire_work(in[0].dtype)};
  works.push_back(streaming_work(0.0, in, results)[0]);
  return works;
}

// The wire alone.
Works moved_work(const WorkLevels& levels, Types in, Types results) {
  if (levels.sizes.empty()) {
    return copied_work(in, results);
  }
  Works works = {wire_work(in[0].dtype)};
  count_bytes(works[0], in, results);
  return works;
}

// The wire, and then folds of the operand to this rank's part.
Works reduced_work(const WorkLevels& levels, Types in, Types results) {
  if (levels.sizes.empty()) {
    return copied_work(in, results);
  }
  const auto read = static_cast<double>(in[0].num_bytes());
  const auto left = static_cast<double>(results[0].num_bytes());
  const FoldedElements elements = {.count = in[0].num_elements(),
                                   .padded = levels.ranks() * results[0].num_elements()};
  Works works = folds_work(levels, in[0].dtype, elements, read, left);
  read_operand(works.front(), read);
  write_result(works.back(), left);
  works.insert(works.begin(), wire_work(in[0].dtype));
  return works;
}

// A reduce-scatter and an all-gather: what others fold arrives as it is.
Works all_reduced_work(const WorkLevels& levels, Types in) {
  if (levels.sizes.empty()) {
    return copied_work(in, in);
  }
  const auto all = static_cast<double>(in[0].num_bytes());
  const double others = std::ceil(all * (1.0 - 1.0 / static_cast<double>(levels.ranks())));
  const FoldedElements elements = {.count = in[0].num_elements(), .padded = in[0].num_elements()};
  Works works = folds_work(levels, in[0].dtype, elements, all, all - others);
  read_operand(works.front(), all);
  write_result(works.back(), all - others);
  works.insert(works.begin(), wire_work(in[0].dtype));
  works[0].bytes_written = others;
  return works;
}

// Hops of slices of which not all levels move elements as they are.
class CodedHops {
 public:
  CodedHops(WorkLevels levels, DType dtype) : levels_(std::move(levels)), dtype_(dtype) {}

  // Of the operand to this rank's slice, of `slice` elements. Levels of other formats than f32 make
  // codes of all parts, this rank's too, and sum what arrives in f32.
  void reduce(const TensorType& operand, std::int64_t slice) {
    const auto operand_bytes = static_cast<double>(operand.num_bytes());
    auto elements = static_cast<double>(operand.num_elements());  // without padding
    std::int64_t stage = slice * levels_.ranks();
    double read = operand_bytes;
    for (std::size_t i = 0; i < levels_.sizes.size(); ++i) {
      const std::int64_t part = stage / levels_.sizes[i];
      const bool is_last = i + 1 == levels_.sizes.size();
      const double to = bytes_of(is_last ? dtype_ : DType::kF32, part);
      const bool folds = levels_.formats[i] == WireFormat::kF32 && dtype_ == DType::kF32;
      if (folds) {
        arrive();
        works_.push_back(pass_work(dtype_, read, to));
        works_.back().kind = WorkKind::kFold;
      } else {
        const double codes = coded(i, stage);
        works_.push_back(pass_work(dtype_, read, codes));
        arrive();
        works_.push_back(pass_work(dtype_, codes, to));
      }
      const double left = elements / static_cast<double>(levels_.sizes[i]);
      works_.back().elementwise_flop = elements - left;
      elements = left;
      stage = part;
      read = to;
    }
    read_operand(works_[works_.front().kind == WorkKind::kWire ? 1 : 0], operand_bytes);
  }

  // Of slices of `slice` elements to the result. Neighbouring levels of one format move the same
  // codes: each rank makes those of what it has and reads those of all.
  void gather(std::int64_t slice, const TensorType& result) {
    const std::span<const WireFormat> formats(levels_.formats);
    std::size_t end = formats.size();
    while (end > 0) {
      const WireFormat format = formats[end - 1];
      std::int64_t gathered = slice;
      const std::size_t last = end - 1;
      while (end > 0 && formats[end - 1] == format) {
        gathered *= levels_.sizes[--end];
      }
      if (format == wire_format_of(dtype_)) {
        arrive();
      } else {
        works_.push_back(pass_work(dtype_, bytes_of(dtype_, slice), coded(last, slice)));
        arrive();
        const double to =
            end == 0 ? static_cast<double>(result.num_bytes()) : bytes_of(dtype_, gathered);
        works_.push_back(pass_work(dtype_, coded(last, gathered), to));
      }
      slice = gathered;
    }
    // The innermost level writes the result.
    if (formats[0] == wire_format_of(dtype_)) {
      wire().bytes_written = static_cast<double>(result.num_bytes());
    } else {
      write_result(works_.back(), static_cast<double>(result.num_bytes()));
    }
  }

  Works& works() { return works_; }

 private:
  // Puts the wire before the first pass over what arrives.
  void arrive() {
    if (!has_wire_) {
      works_.push_back(wire_work(dtype_));
      has_wire_ = true;
    }
  }

  Work& wire() { return *std::ranges::find(works_, WorkKind::kWire, &Work::kind); }

  // Bytes of elements in the format of a level.
  double coded(std::size_t level, std::int64_t elements) const {
    return static_cast<double>(
        wire_bytes({.format = levels_.formats[level], .block = levels_.block}, elements));
  }

  WorkLevels levels_;
  DType dtype_;
  bool has_wire_ = false;
  Works works_;
};

// Shards that lie side by side are copied to, or from, their places in a tensor of which dim `dim`
// has `bound`.
std::int64_t num_shards(std::int64_t bound, std::int64_t dim, const TensorType& shard) {
  const std::int64_t of_each =
      std::max<std::int64_t>(shard.dims[static_cast<std::size_t>(dim)].bound, 1);
  return (bound + of_each - 1) / of_each;
}

// The copies that cut `whole`, of which dim `dim` is cut, into `shards` bytes of shards, with zeros
// where they reach over its end.
Works cut_work(const TensorType& whole, std::int64_t dim, const TensorType& shard, double shards) {
  const auto bytes = static_cast<double>(whole.num_bytes());
  Works works;
  if (shards > bytes) {
    works.push_back(pass_work(whole.dtype, 0.0, shards));
  }
  const std::int64_t bound = whole.dims[static_cast<std::size_t>(dim)].bound;
  works.push_back(copies_work(whole.dtype, num_shards(bound, dim, shard), bytes, bytes));
  read_operand(works.back(), bytes);
  return works;
}

// Those that put shards in their places in `whole`.
Work placed_work(const TensorType& whole, std::int64_t dim, const TensorType& shard) {
  const auto bytes = static_cast<double>(whole.num_bytes());
  const std::int64_t bound = whole.dims[static_cast<std::size_t>(dim)].bound;
  Work copies = copies_work(whole.dtype, num_shards(bound, dim, shard), bytes, bytes);
  write_result(copies, bytes);
  return copies;
}

}  // namespace

Works work(const AllReduceAttrs& attrs, Types in) {
  return all_reduced_work(WorkLevels(attrs.axes), in);
}

Works work(const AllReduceSlicesAttrs& attrs, Types in) {
  const DType dtype = in[0].dtype;
  const WorkLevels levels(attrs, dtype);
  if (levels.formats.empty()) {
    return all_reduced_work(levels, in);
  }
  const std::int64_t slice = reduced_slice(attrs, in[0]);
  CodedHops hops(levels, dtype);
  hops.reduce(in[0], slice);
  hops.gather(slice, in[0]);
  return std::move(hops.works());
}

Works work(const GatherSlicesAttrs& attrs, Types in) {
  const TensorTypes results = infer(attrs, in);
  const WorkLevels levels(attrs, in[0].dtype);
  if (levels.formats.empty()) {
    return moved_work(levels, in, results);
  }
  CodedHops hops(levels, in[0].dtype);
  hops.gather(in[0].num_elements(), results[0]);
  Work& first = hops.works().front();
  if (first.kind == WorkKind::kWire) {
    first.bytes_read = static_cast<double>(in[0].num_bytes());
  } else {
    read_operand(first, static_cast<double>(in[0].num_bytes()));
  }
  return std::move(hops.works());
}

Works work(const ReduceSlicesAttrs& attrs, Types in) {
  const TensorTypes results = infer(attrs, in);
  const WorkLevels levels(attrs, in[0].dtype);
  if (levels.formats.empty()) {
    return reduced_work(levels, in, results);
  }
  CodedHops hops(levels, in[0].dtype);
  hops.reduce(in[0], attrs.slice);
  write_result(hops.works().back(), static_cast<double>(results[0].num_bytes()));
  return std::move(hops.works());
}

Works work(const AllGatherAttrs& attrs, Types in) {
  const TensorTypes results = infer(attrs, in);
  const WorkLevels levels(attrs.axes);
  if (levels.sizes.empty() || !shards_move_together(attrs.dim, in[0])) {
    return moved_work(levels, in, results);
  }
  Works works = {wire_work(in[0].dtype), placed_work(results[0], attrs.dim, in[0])};
  works[0].bytes_read = static_cast<double>(in[0].num_bytes());
  return works;
}

Works work(const ReduceScatterAttrs& attrs, Types in) {
  const TensorTypes results = infer(attrs, in);
  const TensorType& shard = results[0];
  const WorkLevels levels(attrs.axes);
  if (levels.sizes.empty() || !shards_move_together(attrs.dim, shard)) {
    Works works = reduced_work(levels, in, results);
    for (std::size_t i = 1; i < works.size(); ++i) {
      works[i].times =
          std::max<std::int64_t>(in[0].extent(0, static_cast<std::size_t>(attrs.dim)), 1);
    }
    return works;
  }
  const auto shards = static_cast<double>(levels.ranks() * shard.num_bytes());
  const auto own = static_cast<double>(shard.num_bytes());
  Works works = cut_work(in[0], attrs.dim, shard, shards);
  works.push_back(wire_work(in[0].dtype));
  const FoldedElements elements = {.count = in[0].num_elements(),
                                   .padded = levels.ranks() * shard.num_elements()};
  const Works folds = folds_work(levels, in[0].dtype, elements, shards, own);
  works.insert(works.end(), folds.begin(), folds.end());
  write_result(works.back(), own);
  return works;
}

Works work(const AllToAllAttrs& attrs, Types in) {
  const TensorTypes results = infer(attrs, in);
  TensorType part = in[0];
  part.dims[static_cast<std::size_t>(attrs.to)] =
      results[0].dims[static_cast<std::size_t>(attrs.to)];
  const auto parts = static_cast<double>(num_ranks(attrs.axes) * part.num_bytes());
  Works works = cut_work(in[0], attrs.to, part, parts);
  works.push_back(wire_work(in[0].dtype));
  works.push_back(placed_work(results[0], attrs.from, in[0]));
  return works;
}

Works work(const RingShiftAttrs& attrs, Types in) {
  return moved_work(WorkLevels(attrs.axes), in, in);
}

Works work(const LocalSliceAttrs& attrs, Types in) {
  const TensorTypes results = infer(attrs, in);
  return streaming_work(0, results, results);
}

}  // namespace tessera
