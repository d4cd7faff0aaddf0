#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/cost/collective_time.h"
#include "tessera/cost/device_time.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/mesh.h"
#include "tessera/program/channels.h"
#include "tessera/program/issue_order.h"
#include "tessera/program/program.h"
#include "tessera/simulate/ticks.h"

namespace tessera {

enum class PieceKind : std::uint8_t { kProduct, kAttention, kStream, kCollective, kSend, kReceive };

// What an instruction does at a time: a kernel, or a leg of a collective or a transfer.
struct Piece {
  // A resource's whole capacity, of which pieces take shares.
  static constexpr std::int64_t kWhole = std::int64_t{1} << 16;

  PieceKind kind = PieceKind::kStream;
  bool native = false;         // a leg by a library's algorithm, which takes part of the device
  bool in_bucket = false;      // a leg of states that travel with others
  std::uint32_t partners = 0;  // of a collective, its axis in the mesh; of a transfer, a channel
  std::uint32_t level = 0;     // of the cluster, of a leg
  Ticks ticks = 0;             // of a kernel that is alone; of a leg, its latency
  Ticks moving = 0;            // of a leg, for which it keeps a link that is its own busy
  double sent = 0.0;           // bytes, by a rank in a leg
  std::uint64_t what = 0;      // of a leg, a hash of what its ranks do together in a microbatch
  std::int64_t compute = 0;    // share of the device that a kernel keeps busy
  std::int64_t memory = 0;     // share of its memory's speed that it takes
  std::int64_t disk = 0;       // share of the speed of the machine's disk, where it waits for that

  bool is_leg() const { return kind >= PieceKind::kCollective; }

  bool is_transfer() const { return kind >= PieceKind::kSend; }
};

// A rank's step, with what each instruction takes.
struct TimedProgram {
  const Program* program = nullptr;
  IssueOrder order;
  std::vector<Piece> pieces;               // of all places, in the order in which they run
  std::vector<std::uint32_t> first_piece;  // by place, and the end
  std::vector<ChannelName> channels;       // that its transfers go through

  std::span<const Piece> pieces_of(const IssueStep& step) const {
    const std::uint32_t first = first_piece[step.place];
    return {pieces.data() + first, first_piece[step.place + 1] - first};
  }
};

// What `threads` threads have of a cluster's host, of whose cores `device` is one; without a host,
// the device.
DeviceSpec device_of(const Cluster& cluster, std::int64_t threads);

// Borrows the program for its life. Where ranks share a host's cores, the device is one of them, of
// which stream 0 has `threads`, and a rank has as large a part of the cache. Levels of unknown
// bandwidth take no time but their latency. What moves to and from the host's memory does so at the
// speed of DeviceSpec::host_link, or of the memory where ranks share a host's cores; to and from a
// file at Cluster::disk_bandwidth, 2 GB/s where that is not known. Errors: kInvalidConfig where the
// cluster does not say what its device needs (DeviceTime); kInvalidArgument where the program talks
// along axes that are not the mesh's.
TimedProgram time_program(const Program& program,
                          const Mesh& mesh,
                          const Cluster& cluster,
                          CollectiveStyle style,
                          std::int64_t threads = 1);

}  // namespace tessera
