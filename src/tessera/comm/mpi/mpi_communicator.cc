// Collectives of a group as messages between every two members. An operation goes like this:
//
//   greet    each member tells every other what it is about to do. Parts of up to kInline bytes
//            travel with the greeting, so that a small operation is one message each way.
//   stream   larger parts follow once everybody has greeted this rank, in chunks, two of them under
//            way at a time. What is folded lands in staging memory, at most 2 * kStageChunk bytes a
//            peer and 2 * kStageInAll in all; the rest in its place.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/comm/agreement.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/fold.h"
#include "tessera/comm/mpi/mpi_group.h"
#include "tessera/comm/mpi/mpi_run.h"
#include "tessera/comm/mpi/requests.h"
#include "tessera/mesh/traffic.h"

namespace tessera {
namespace {

// With what goes before them, small enough that the usual MPI libraries send without waiting for
// the receiver (Open MPI's shared memory: 4096 bytes).
constexpr std::size_t kInline = 3840;
constexpr std::size_t kStageChunk = std::size_t{2} << 20U;
constexpr std::size_t kStageInAll = std::size_t{32} << 20U;
constexpr std::size_t kLeastStageChunk = 4096;
// Messages that land in their place: small enough that each arrives well within the deadline.
constexpr std::size_t kDirectChunk = std::size_t{4} << 20U;

constexpr std::size_t kGreetingBytes = sizeof(GroupCall) + kInline;

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

template <class Span>
Span part_at(Span all, std::size_t rank, std::size_t stride) {
  const Part part = part_of(static_cast<std::int64_t>(rank),
                            static_cast<std::int64_t>(stride),
                            static_cast<std::int64_t>(all.size()));
  return all.subspan(static_cast<std::size_t>(part.begin), static_cast<std::size_t>(part.size));
}

ConstBytes bytes_of(const ConstElements& elements) {
  return {elements.data, static_cast<std::size_t>(elements.bytes())};
}

void copy(ConstBytes from, Bytes to) {
  if (from.data() != to.data() && !to.empty()) {
    std::memcpy(to.data(), from.data(), to.size());
  }
}

// What the members tell each other at the start of an operation.
class Greetings {
 public:
  // Tells every peer what this rank does, with `part_for(peer)` where it is small enough, and waits
  // for theirs. Errors: kInternal where a peer does something else.
  template <class PartFor>
  void exchange(MpiGroup& group, const GroupCall& call, const PartFor& part_for) {
    group.begin(call);
    outbox_.resize(group.size() * kGreetingBytes);
    inbox_.resize(group.size() * kGreetingBytes);
    Requests requests;
    group.for_each_peer([&](std::size_t peer) {
      group.post_receive(
          requests, peer, Bytes(inbox_).subspan(peer * kGreetingBytes, kGreetingBytes));
    });
    group.for_each_peer([&](std::size_t peer) {
      const ConstBytes part = part_for(peer);
      const std::size_t with = part.size() <= kInline ? part.size() : 0;
      const Bytes message = Bytes(outbox_).subspan(peer * kGreetingBytes, sizeof(GroupCall) + with);
      std::memcpy(message.data(), &call, sizeof(GroupCall));
      copy(part.first(with), message.subspan(sizeof(GroupCall)));
      group.post_send(requests, peer, message);
    });
    group.wait(requests);
    group.leave_if_aborted();
    group.for_each_peer([&](std::size_t peer) {
      GroupCall other;
      std::memcpy(&other, inbox_.data() + peer * kGreetingBytes, sizeof other);
      group.compare(peer, other);
    });
  }

  // What came with the peer's.
  const std::byte* inlined(std::size_t peer) const {
    return inbox_.data() + peer * kGreetingBytes + sizeof(GroupCall);
  }

  // Keeps what MPI may still be reading.
  void keep_in(MpiRun& run) && {
    run.keep(std::move(outbox_));
    run.keep(std::move(inbox_));
  }

 private:
  std::vector<std::byte> outbox_;  // by member
  std::vector<std::byte> inbox_;
};

// What goes to and comes from one peer in a stream.
struct Transfer {
  ConstBytes send;
  Bytes receive;
};

Transfer without_inlined(const Transfer& transfer) {
  return {.send = transfer.send.size() <= kInline ? ConstBytes() : transfer.send,
          .receive = transfer.receive.size() <= kInline ? Bytes() : transfer.receive};
}

// Chunk `index` of `part`.
template <class Span>
Span chunk_of(Span part, std::size_t index, std::size_t chunk) {
  const std::size_t begin = std::min(index * chunk, part.size());
  return part.subspan(begin, std::min(chunk, part.size() - begin));
}

std::size_t num_chunks(std::size_t bytes, std::size_t chunk) {
  return (bytes + chunk - 1) / chunk;
}

// Moves chunks 0 .. count, chunk_with(peer, i) for each peer, at most two at a time, and calls
// arrived(i) for each, in order.
template <class ChunkWith, class Arrived>
void stream(MpiGroup& group,
            std::size_t count,
            const ChunkWith& chunk_with,
            const Arrived& arrived) {
  std::array<Requests, 2> under_way;
  for (std::size_t i = 0; i < count + 2; ++i) {
    Requests& requests = under_way[i % 2];
    group.wait(requests);
    if (i >= 2) {
      arrived(i - 2);
    }
    if (i < count) {
      group.for_each_peer([&](std::size_t peer) {
        const Transfer chunk = chunk_with(peer, i);
        group.post_receive(requests, peer, chunk.receive);
        group.post_send(requests, peer, chunk.send);
      });
    }
  }
}

template <class TransferWith>
void stream_in_place(MpiGroup& group, const TransferWith& transfer_with) {
  std::size_t longest = 0;
  group.for_each_peer([&](std::size_t peer) {
    const Transfer transfer = transfer_with(peer);
    longest = std::max({longest, transfer.send.size(), transfer.receive.size()});
  });
  stream(
      group,
      num_chunks(longest, kDirectChunk),
      [&](std::size_t peer, std::size_t i) {
        const Transfer transfer = transfer_with(peer);
        return Transfer{.send = chunk_of(transfer.send, i, kDirectChunk),
                        .receive = chunk_of(transfer.receive, i, kDirectChunk)};
      },
      [](std::size_t) {});
}

// Bytes of a chunk that is folded: the same on all members.
std::size_t stage_chunk(std::size_t num_members) {
  const std::size_t peers = std::max<std::size_t>(num_members - 1, 1);
  const std::size_t chunk = kStageInAll / peers / kLeastStageChunk * kLeastStageChunk;
  return std::clamp(chunk, kLeastStageChunk, kStageChunk);
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiRun> run,
                  std::span<const std::int64_t> members,
                  std::int64_t generation)
      : group_(std::move(run), members, generation) {}

  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  ~MpiCommunicator() override {
    MpiRun& run = group_.run();
    if (run.aborted()) {
      std::move(greetings_).keep_in(run);
      run.keep(std::move(stage_));
    }
  }

  std::int64_t rank() const override { return static_cast<std::int64_t>(group_.own()); }

  std::int64_t size() const override { return static_cast<std::int64_t>(group_.size()); }

  void barrier() override {
    greet({.operation = Operation::kBarrier}, [](std::size_t) { return ConstBytes(); });
  }

  void all_gather(ConstBytes part, Bytes all, std::size_t stride) override {
    const GroupCall call = {.operation = Operation::kAllGather,
                            .bytes = static_cast<std::int64_t>(all.size()),
                            .stride_bytes = static_cast<std::int64_t>(stride)};
    greet(call, [&](std::size_t) { return part; });
    exchange([&](std::size_t peer) {
      return Transfer{.send = part, .receive = part_at(all, peer, stride)};
    });
    copy(part, part_at(all, group_.own(), stride));
  }

  void reduce_scatter(Fold fold,
                      const ConstElements& all,
                      const Elements& part,
                      std::int64_t stride) override {
    const std::size_t stride_bytes = static_cast<std::size_t>(stride) * size_bytes(all.dtype);
    greet({.operation = Operation::kReduceScatter,
           .bytes = all.bytes(),
           .stride_bytes = static_cast<std::int64_t>(stride_bytes)},
          [&](std::size_t peer) { return part_at(bytes_of(all), peer, stride_bytes); });
    fold_parts(fold, all, part, stride_bytes, kInline);
  }

  void all_reduce(Fold fold, const ConstElements& in, const Elements& out) override {
    const GroupCall call = {.operation = Operation::kAllReduce, .bytes = in.bytes()};
    if (bytes_of(in).size() <= kInline) {
      greet(call, [&](std::size_t) { return bytes_of(in); });
      fold_sources(fold, in.data, [&](std::size_t peer) { return greetings_.inlined(peer); }, out);
      return;
    }
    greet(call, [](std::size_t) { return ConstBytes(); });
    const std::size_t element = size_bytes(in.dtype);
    const std::int64_t stride = all_reduce_stride(in.count, size());
    const std::size_t stride_bytes = static_cast<std::size_t>(stride) * element;
    const Part share = part_of(rank(), stride, in.count);
    const Bytes all(out.data, bytes_of(in).size());
    const Bytes folded = part_at(all, group_.own(), stride_bytes);
    fold_parts(fold,
               in,
               {.dtype = out.dtype, .data = folded.data(), .count = share.size},
               stride_bytes,
               /*inlined_bytes=*/0);
    stream_in_place(group_, [&](std::size_t peer) {
      return Transfer{.send = folded, .receive = part_at(all, peer, stride_bytes)};
    });
  }

  void all_to_all(ConstBytes send, Bytes receive) override {
    const std::size_t part = send.size() / group_.size();
    greet({.operation = Operation::kAllToAll, .bytes = static_cast<std::int64_t>(send.size())},
          [&](std::size_t peer) { return send.subspan(peer * part, part); });
    exchange([&](std::size_t peer) {
      return Transfer{.send = send.subspan(peer * part, part),
                      .receive = receive.subspan(peer * part, part)};
    });
    copy(send.subspan(group_.own() * part, part), receive.subspan(group_.own() * part, part));
  }

  void ring_shift(ConstBytes send, Bytes receive) override {
    if (size() == 1) {
      return copy(send, receive);
    }
    const auto to = static_cast<std::size_t>(after_in_ring(rank(), size()));
    const auto from = static_cast<std::size_t>(before_in_ring(rank(), size()));
    greet({.operation = Operation::kRingShift, .bytes = static_cast<std::int64_t>(send.size())},
          [&](std::size_t peer) { return peer == to ? send : ConstBytes(); });
    exchange([&](std::size_t peer) {
      return Transfer{.send = peer == to ? send : ConstBytes(),
                      .receive = peer == from ? receive : Bytes()};
    });
  }

 private:
  template <class PartFor>
  void greet(const GroupCall& call, const PartFor& part_for) {
    greetings_.exchange(group_, call, part_for);
  }

  // Receives small parts out of the greetings, larger ones from a stream.
  template <class TransferWith>
  void exchange(const TransferWith& transfer_with) {
    group_.for_each_peer([&](std::size_t peer) {
      const Bytes to = transfer_with(peer).receive;
      if (to.size() <= kInline) {
        copy({greetings_.inlined(peer), to.size()}, to);
      }
    });
    stream_in_place(group_, [&](std::size_t peer) { return without_inlined(transfer_with(peer)); });
  }

  // part = the fold of this rank's part of everybody's `all`. Parts of up to `inlined_bytes` came
  // with the greetings.
  void fold_parts(Fold fold,
                  const ConstElements& all,
                  const Elements& part,
                  std::size_t stride_bytes,
                  std::size_t inlined_bytes) {
    const auto streamed = [&](std::size_t rank) {
      const ConstBytes whole = part_at(bytes_of(all), rank, stride_bytes);
      return whole.size() <= inlined_bytes ? ConstBytes() : whole;
    };
    const ConstBytes mine = streamed(group_.own());
    if (mine.empty()) {
      fold_sources(
          fold,
          part_at(bytes_of(all), group_.own(), stride_bytes).data(),
          [&](std::size_t peer) { return greetings_.inlined(peer); },
          part);
    }
    // Two halves, for the chunks under way; in each a place for every member.
    const std::size_t chunk = stage_chunk(group_.size());
    const std::size_t place = std::min(chunk, mine.size());
    stage_.resize(std::max(stage_.size(), 2 * group_.size() * place));
    const auto staged = [&](std::size_t peer, std::size_t i) {
      return Bytes(stage_).subspan((i % 2 * group_.size() + peer) * place,
                                   chunk_of(mine, i, chunk).size());
    };
    std::size_t longest = mine.size();
    group_.for_each_peer(
        [&](std::size_t peer) { longest = std::max(longest, streamed(peer).size()); });
    stream(
        group_,
        num_chunks(longest, chunk),
        [&](std::size_t peer, std::size_t i) {
          return Transfer{.send = chunk_of(streamed(peer), i, chunk), .receive = staged(peer, i)};
        },
        [&](std::size_t i) {
          const ConstBytes source = chunk_of(mine, i, chunk);
          fold_sources(
              fold,
              source.data(),
              [&](std::size_t peer) { return staged(peer, i).data(); },
              {.dtype = part.dtype,
               .data = part.data + i * chunk,
               .count = static_cast<std::int64_t>(source.size() / size_bytes(part.dtype))});
        });
  }

  // out = the fold of `mine` and the sources of the others, in rank order.
  template <class SourceOf>
  void fold_sources(Fold fold,
                    const std::byte* mine,
                    const SourceOf& source_of,
                    const Elements& out) {
    sources_.assign(group_.size(), mine);
    group_.for_each_peer([&](std::size_t peer) { sources_[peer] = source_of(peer); });
    fold_in_order(fold, sources_, out);
  }

  MpiGroup group_;
  Greetings greetings_;
  // Kept, so that operations of one size allocate nothing.
  std::vector<std::byte> stage_;
  std::vector<const std::byte*> sources_;  // of a fold
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiRun> run,
                                                    std::span<const std::int64_t> members,
                                                    std::int64_t generation) {
  return std::make_unique<MpiCommunicator>(std::move(run), members, generation);
}

}  // namespace tessera
