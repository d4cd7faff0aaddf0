#include "tessera/simulate/timed_program.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ops/op.h"
#include "tessera/program/collective_calls.h"
#include "tessera/program/operand_types.h"
#include "tessera/simulate/cache_hits.h"

namespace tessera {
namespace {

// Collectives of an op that run one after the other, from `begin` to before `end`.
struct Calls {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
};

// Those of both.
Calls common(const Calls& a, const Calls& b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {.begin = begin, .end = std::max(begin, std::min(a.end, b.end))};
}

// What the legs of a collective take that goes over all its levels at once: those along the axis
// that takes longest have the time of it all, while the others wait.
struct FlatLegs {
  std::string axis;
  LegTime each;

  LegTime of_leg(const LegWork& leg) const { return leg.axis == axis ? each : LegTime(); }
};

// What collectives of states have in common that a bucket joins: layer, stream, kind and axes.
using BucketKey = std::tuple<std::int32_t, std::size_t, CollectiveKind, std::string>;

BucketKey bucket_of(const Instruction& instruction, const CollectiveUse& use) {
  std::string axes;
  for (const AxisSize& axis : use.axes) {
    axes += axis.name + " ";
  }
  return {instruction.layer, instruction.stream.at(), use.kind, std::move(axes)};
}

// Of the whole, as it crosses the wire.
std::int64_t bytes_on_wire(const CollectiveUse& use) {
  double most = 0.0;
  for (const LegWork& leg : leg_works(use)) {
    most = std::max(most, leg.bytes);
  }
  return static_cast<std::int64_t>(most);
}

bool is_of_states(const CollectiveUse& use) {
  constexpr auto kState = static_cast<std::size_t>(TrafficClass::kState);
  return !use.channel && !is_direct(use.kind) &&
         std::ranges::any_of(use.sent, [](const auto& along) { return along.second[kState] > 0; });
}

class Timing {
 public:
  Timing(const Program& program, const Mesh& mesh, const Cluster& cluster, CollectiveStyle style)
      : mesh_(mesh), cluster_(cluster), style_(style) {
    timed_.program = &program;
    timed_.order = issue_order(program);
    for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      axes_[mesh.axes[axis].name] = axis;
    }
  }

  TimedProgram run(std::int64_t threads) {
    const DeviceTime compute(device_of(cluster_, threads), cluster_.source);
    const DeviceTime beside(device_of(cluster_, 1), cluster_.source);
    const HostSpec& host = cluster_.host;
    const std::vector<double> cached =
        host.cores == 0
            ? std::vector<double>()
            : cached_shares(*timed_.program,
                            timed_.order,
                            host.cache_bytes * static_cast<double>(std::min(threads, host.cores)) /
                                static_cast<double>(host.cores));
    for (const Segment& segment : timed_.program->segments) {
      fill_buckets(segment);
      for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
        timed_.first_piece.push_back(num_pieces());
        cached_ = cached.empty() ? 0.0 : cached[timed_.first_piece.size() - 1];
        instruction_ = &segment.instructions[i];
        device_ = segment.instructions[i].stream == StreamId{0} ? &compute : &beside;
        with_context(
            [&] {
              return format("{}segment {}, instruction {}",
                            cluster_.source.empty() ? "" : cluster_.source + ", ",
                            segment.name,
                            i);
            },
            [&] { add(segment, i); });
      }
    }
    timed_.first_piece.push_back(num_pieces());
    return std::move(timed_);
  }

 private:
  std::uint32_t num_pieces() const { return static_cast<std::uint32_t>(timed_.pieces.size()); }

  // Of what it reads and writes, where some is not in the device's memory.
  Space space_of(const Instruction& instruction) const {
    for (const auto* tensors : {&instruction.operands, &instruction.results}) {
      for (const TensorRef& tensor : *tensors) {
        if (const Space space = (*timed_.program)[tensor.buffer].space; space != Space::kDevice) {
          return space;
        }
      }
    }
    return Space::kDevice;
  }

  void add(const Segment& segment, std::size_t index) {
    const Op& op = *segment.instructions[index].op;
    const TensorTypes operands = operand_types(segment.instructions[index]);
    const Space space = space_of(segment.instructions[index]);
    if (space == Space::kFile || (space == Space::kHost && cluster_.host.cores == 0)) {
      add_move(operands, space);
      return;
    }
    const Works works = work(op, operands);
    const Collectives uses = collectives(op, operands);
    const std::int64_t num_wires = std::ranges::count(works, WorkKind::kWire, &Work::kind);
    std::int64_t num_calls = 0;
    for (const CollectiveUse& use : uses) {
      num_calls += use.count;
    }
    TESSERA_CHECK(uses.empty() || (num_wires > 0 && num_calls % num_wires == 0),
                  "{} has {} collectives and {} wires",
                  info(op).name,
                  num_calls,
                  num_wires);
    const std::vector<std::uint64_t> whats =
        uses.empty() ? std::vector<std::uint64_t>() : whats_of(segment, index);
    std::vector<std::vector<LegWork>> legs;
    std::ranges::transform(uses, std::back_inserter(legs), leg_works);
    Calls calls;
    for (const Work& each : works) {
      if (each.kind == WorkKind::kWire) {
        calls = {.begin = calls.end, .end = calls.end + num_calls / num_wires};
        add_wire(uses, legs, calls, whats);
      } else if (each.kind != WorkKind::kFold || style_ == CollectiveStyle::kOwn) {
        add_kernel(each);
      }
    }
  }

  void add_kernel(const Work& work) {
    const double seconds = device_->seconds(work, cached_);
    const Ticks ticks = to_ticks(seconds);
    if (ticks == 0) {
      return;
    }
    const auto share = [&](double part) {
      return static_cast<std::int64_t>(std::min(1.0, part / seconds) *
                                       static_cast<double>(Piece::kWhole));
    };
    const bool computes = work.kind == WorkKind::kProduct || work.kind == WorkKind::kAttention ||
                          work.kind == WorkKind::kAttentionBackward;
    timed_.pieces.push_back({.kind = work.kind == WorkKind::kProduct ? PieceKind::kProduct
                                     : computes                      ? PieceKind::kAttention
                                                                     : PieceKind::kStream,
                             .ticks = ticks,
                             .compute = computes ? Piece::kWhole : 0,
                             .memory = work.kind == WorkKind::kGather
                                           ? Piece::kWhole
                                           : share(device_->uncached_seconds(work, cached_))});
  }

  // Of tensors between the device's memory and that of another space.
  void add_move(const TensorTypes& tensors, Space space) {
    double bytes = 0.0;
    for (const TensorType& tensor : tensors) {
      bytes += static_cast<double>(tensor.num_bytes());
    }
    const double known =
        space == Space::kFile ? cluster_.disk_bandwidth : cluster_.device.host_link;
    const double usual = space == Space::kFile ? kUsualDisk : kUsualHostLink;
    timed_.pieces.push_back({.kind = PieceKind::kStream,
                             .ticks = to_ticks(bytes / (known > 0.0 ? known : usual)),
                             .disk = space == Space::kFile ? Piece::kWhole : 0});
  }

  // By leg of all uses of an instruction.
  std::vector<std::uint64_t> whats_of(const Segment& segment, std::size_t index) const {
    std::vector<std::uint64_t> whats;
    for (const CollectiveCall& call : instruction_calls(*timed_.program, segment, index)) {
      whats.push_back(std::hash<std::string>()(to_string(call.what)));
    }
    return whats;
  }

  // `legs`: of each use.
  void add_wire(const Collectives& uses,
                std::span<const std::vector<LegWork>> legs,
                const Calls& calls,
                std::span<const std::uint64_t> whats) {
    Calls of_use;
    std::size_t next = 0;  // of the legs
    for (std::size_t i = 0; i < uses.size(); ++i) {
      const CollectiveUse& use = uses[i];
      of_use = {.begin = of_use.end, .end = of_use.end + use.count};
      const std::int64_t count = common(of_use, calls).size();
      if (count == 0) {
        next += legs[i].size();
        continue;
      }
      const std::optional<FlatLegs> flat = flat_legs(use, count);
      for (LegWork leg : legs[i]) {
        const std::uint64_t what = whats[next++];
        leg.count = count;
        Piece piece = use.channel ? transfer(use, *use.channel) : collective(leg);
        const LegTime time =
            flat ? flat->of_leg(leg) : leg_time(cluster_.levels[piece.level], leg, style_);
        piece.native = style_ != CollectiveStyle::kOwn;
        piece.in_bucket = style_ == CollectiveStyle::kBuckets && is_of_states(use);
        piece.ticks = to_ticks(time.latency);
        piece.moving = to_ticks(time.moving);
        piece.sent = leg.sent * static_cast<double>(count);
        piece.what = what;
        timed_.pieces.push_back(piece);
      }
    }
  }

  // How many bytes the buckets of a segment have.
  void fill_buckets(const Segment& segment) {
    buckets_.clear();
    if (style_ != CollectiveStyle::kBuckets) {
      return;
    }
    for (const Instruction& instruction : segment.instructions) {
      for (const CollectiveUse& use : collectives(*instruction.op, operand_types(instruction))) {
        if (is_of_states(use)) {
          buckets_[bucket_of(instruction, use)] += bytes_on_wire(use) * use.count;
        }
      }
    }
  }

  // None where the legs have times of their own: in other styles, along one axis, and where ranks
  // send straight to each other. Of a bucket's time each of its collectives has its share.
  std::optional<FlatLegs> flat_legs(const CollectiveUse& use, std::int64_t count) const {
    const auto has_ranks = [](const AxisSize& axis) { return axis.size > 1; };
    const auto bucket =
        is_of_states(use) ? buckets_.find(bucket_of(*instruction_, use)) : buckets_.end();
    const bool is_flat = style_ == CollectiveStyle::kFlat || style_ == CollectiveStyle::kBuckets;
    const std::ptrdiff_t least = bucket != buckets_.end() ? 1 : 2;
    if (!is_flat || use.channel || count == 0 || is_direct(use.kind) ||
        std::ranges::count_if(use.axes, has_ranks) < least) {
      return std::nullopt;
    }
    CollectiveUse counted = use;
    counted.count = count;
    counted.bytes = bytes_on_wire(use);
    double share = 1.0;
    if (bucket != buckets_.end() && bucket->second > 0) {
      share = static_cast<double>(counted.bytes * count) / static_cast<double>(bucket->second);
      counted.bytes = bucket->second;
      counted.count = 1;
    }
    std::vector<Level> levels;
    for (const AxisSize& axis : use.axes) {
      levels.push_back(cluster_.levels[level_of(mesh_.axes[index_of(axis)])]);
    }
    FlatLegs flat = {.axis = "", .each = flat_time(levels, counted)};
    double longest = -1.0;
    for (const LegWork& leg : leg_works(use)) {
      const MeshAxis& axis = mesh_.axes[index_of({leg.axis, leg.ranks})];
      const double moving = leg_time(cluster_.levels[level_of(axis)], leg, style_).moving;
      if (moving > longest) {
        longest = moving;
        flat.axis = leg.axis;
      }
    }
    const auto legs =
        static_cast<double>(std::ranges::count(leg_works(use), flat.axis, &LegWork::axis));
    flat.each = {.latency = flat.each.latency * share / legs,
                 .moving = flat.each.moving * share / legs};
    return flat;
  }

  std::uint32_t level_of(const MeshAxis& axis) const {
    const auto level = std::ranges::find(cluster_.levels, axis.level, &Level::name);
    TESSERA_CHECK(level != cluster_.levels.end(),
                  "axis {} lies in level {}, which cluster {} lacks",
                  axis.name,
                  axis.level,
                  cluster_.name);
    return static_cast<std::uint32_t>(level - cluster_.levels.begin());
  }

  std::size_t index_of(const AxisSize& axis) const {
    const auto found = axes_.find(axis.name);
    const std::int64_t size = found == axes_.end() ? 1 : mesh_.axes[found->second].size;
    TESSERA_REQUIRE(size == axis.size,
                    ErrorCode::kInvalidArgument,
                    "program \"{}\" talks along axis {} of {} ranks; the mesh has {} there",
                    timed_.program->name,
                    axis.name,
                    axis.size,
                    size);
    return found->second;
  }

  Piece collective(const LegWork& leg) const {
    const std::size_t index = index_of({leg.axis, leg.ranks});
    return {.kind = PieceKind::kCollective,
            .partners = static_cast<std::uint32_t>(index),
            .level = level_of(mesh_.axes[index])};
  }

  // On the level of the outermost axis on which its ends differ.
  Piece transfer(const CollectiveUse& use, const ChannelPlaces& places) {
    const ChannelName name = {use.axes, places};
    const auto found = std::ranges::find(timed_.channels, name);
    Piece piece = {
        .kind = use.kind == CollectiveKind::kSend ? PieceKind::kSend : PieceKind::kReceive,
        .partners = static_cast<std::uint32_t>(found - timed_.channels.begin())};
    if (found == timed_.channels.end()) {
      timed_.channels.push_back(name);
    }
    const auto crossed =
        std::ranges::find(use.axes, crossed_axis(use.axes, places), &AxisSize::name);
    TESSERA_CHECK(crossed != use.axes.end(), "a rank sends to itself, place {}", places.from);
    piece.level = level_of(mesh_.axes[index_of(*crossed)]);
    return piece;
  }

  const Mesh& mesh_;
  const Cluster& cluster_;
  CollectiveStyle style_;
  double cached_ = 0.0;                        // share of the instruction's bytes
  const Instruction* instruction_ = nullptr;   // whose pieces are added
  std::map<BucketKey, std::int64_t> buckets_;  // bytes, of the segment
  const DeviceTime* device_ = nullptr;         // of the instruction
  std::map<std::string, std::size_t> axes_;    // of the mesh, by name
  TimedProgram timed_;
};

}  // namespace

DeviceSpec device_of(const Cluster& cluster, std::int64_t threads) {
  DeviceSpec device = cluster.device;
  if (cluster.host.cores > 0) {
    const auto cores = static_cast<double>(std::min(threads, cluster.host.cores));
    DeviceSpec::PeakFlops& peaks = device.peak_flops;
    peaks = {.f32 = cores * peaks.f32, .bf16 = cores * peaks.bf16, .f8 = cores * peaks.f8};
    const double most = cluster.host.memory_bandwidth;
    device.memory_bandwidth *= cores;
    device.memory_bandwidth =
        most > 0.0 ? std::min(device.memory_bandwidth, most) : device.memory_bandwidth;
    device.is_cores = true;
    device.cache_bandwidth =
        cluster.host.cache_bandwidth * cores / static_cast<double>(cluster.host.cores);
  }
  return device;
}

TimedProgram time_program(const Program& program,
                          const Mesh& mesh,
                          const Cluster& cluster,
                          CollectiveStyle style,
                          std::int64_t threads) {
  return Timing(program, mesh, cluster, style).run(threads);
}

}  // namespace tessera
