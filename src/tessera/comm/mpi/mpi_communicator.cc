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
#include <functional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/agreement.h"
#include "tessera/comm/fold.h"
#include "tessera/comm/mpi/mpi_run.h"
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

// Messages under way, each with a peer.
class Requests {
 public:
  enum class Kind : std::uint8_t { kSend, kReceive };

  Requests() = default;
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  // Takes back the receives that an error has left, so that nobody writes into memory that the
  // caller will free. Those that have begun get a while to end; sends stay, since MPI cannot take
  // them back.
  ~Requests() {
    constexpr double kSeconds = 0.2;
    try {
      withdraw({{.deadline_seconds = kSeconds}, true});
      // NOLINTNEXTLINE(bugprone-empty-catch): the error that led here says more
    } catch (const Error&) {
    }
  }

  // Where MPI puts the handle of a new message.
  MPI_Request* add(std::size_t peer, Kind kind) {
    messages_.push_back({.peer = peer, .kind = kind});
    return &handles_.emplace_back(MPI_REQUEST_NULL);
  }

  // Whether all are done; `some` becomes true where any has been since the last call.
  bool test(bool& some) {
    if (handles_.empty()) {
      return true;
    }
    int count = 0;
    done_.resize(handles_.size());
    check_mpi(MPI_Testsome(static_cast<int>(handles_.size()),
                           handles_.data(),
                           &count,
                           done_.data(),
                           MPI_STATUSES_IGNORE),
              "MPI_Testsome");
    some = count != MPI_UNDEFINED && count > 0;
    const bool all = count == MPI_UNDEFINED || (some && !any([](const Message&) { return true; }));
    if (all) {
      handles_.clear();
      messages_.clear();
    }
    return all;
  }

  bool waits_for(std::size_t peer) const {
    return any([&](const Message& message) { return message.peer == peer; });
  }

 private:
  struct Message {
    std::size_t peer;
    Kind kind;
  };

  void withdraw(Patience patience) {
    const auto is_receive = [](const Message& message) { return message.kind == Kind::kReceive; };
    for (std::size_t i = 0; i < handles_.size(); ++i) {
      if (is_receive(messages_[i]) && handles_[i] != MPI_REQUEST_NULL) {
        MPI_Cancel(&handles_[i]);
      }
    }
    bool some = false;
    while (any(is_receive) && !test(some) && patience.pause()) {
    }
  }

  // Whether any message for which `condition` holds is not done.
  template <class Condition>
  bool any(const Condition& condition) const {
    for (std::size_t i = 0; i < handles_.size(); ++i) {
      if (handles_[i] != MPI_REQUEST_NULL && condition(messages_[i])) {
        return true;
      }
    }
    return false;
  }

  std::vector<MPI_Request> handles_;
  std::vector<Message> messages_;
  std::vector<int> done_;
};

// What goes to and comes from one peer in a stream.
struct Transfer {
  ConstBytes send;
  Bytes receive;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiRun> run,
                  std::span<const std::int64_t> members,
                  std::int64_t generation)
      : run_(std::move(run)),
        members_(members.begin(), members.end()),
        rank_(place_in_group(members, run_->rank(), run_->size())),
        ticket_(run_->announce(members, generation)) {}

  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  ~MpiCommunicator() override {
    run_->retire(ticket_);
    if (run_->aborted()) {
      run_->keep(std::move(outbox_));
      run_->keep(std::move(inbox_));
      run_->keep(std::move(stage_));
    }
  }

  std::int64_t rank() const override { return rank_; }

  std::int64_t size() const override { return static_cast<std::int64_t>(members_.size()); }

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
    copy(part, part_at(all, own(), stride));
  }

  void reduce_scatter(Fold fold,
                      const ConstElements& all,
                      const Elements& part,
                      std::int64_t stride) override {
    const std::size_t stride_bytes = static_cast<std::size_t>(stride) * size_bytes(all.dtype);
    greet({.operation = Operation::kReduceScatter,
           .bytes = all.bytes(),
           .stride_bytes = static_cast<std::int64_t>(stride_bytes)},
          [&](std::size_t peer) { return part_at(bytes(all), peer, stride_bytes); });
    fold_parts(fold, all, part, stride_bytes, kInline);
  }

  void all_reduce(Fold fold, const ConstElements& in, const Elements& out) override {
    const GroupCall call = {.operation = Operation::kAllReduce, .bytes = in.bytes()};
    if (bytes(in).size() <= kInline) {
      greet(call, [&](std::size_t) { return bytes(in); });
      fold_sources(fold, in.data, [&](std::size_t peer) { return inlined(peer); }, out);
      return;
    }
    greet(call, [](std::size_t) { return ConstBytes(); });
    const std::size_t element = size_bytes(in.dtype);
    const std::int64_t stride = all_reduce_stride(in.count, size());
    const std::size_t stride_bytes = static_cast<std::size_t>(stride) * element;
    const Part share = part_of(rank_, stride, in.count);
    const Bytes all(out.data, bytes(in).size());
    const Bytes folded = part_at(all, own(), stride_bytes);
    fold_parts(fold,
               in,
               {.dtype = out.dtype, .data = folded.data(), .count = share.size},
               stride_bytes,
               /*inlined_bytes=*/0);
    stream_in_place([&](std::size_t peer) {
      return Transfer{.send = folded, .receive = part_at(all, peer, stride_bytes)};
    });
  }

  void all_to_all(ConstBytes send, Bytes receive) override {
    const std::size_t part = send.size() / members_.size();
    greet({.operation = Operation::kAllToAll, .bytes = static_cast<std::int64_t>(send.size())},
          [&](std::size_t peer) { return send.subspan(peer * part, part); });
    exchange([&](std::size_t peer) {
      return Transfer{.send = send.subspan(peer * part, part),
                      .receive = receive.subspan(peer * part, part)};
    });
    copy(send.subspan(own() * part, part), receive.subspan(own() * part, part));
  }

 private:
  std::size_t own() const { return static_cast<std::size_t>(rank_); }

  static ConstBytes bytes(const ConstElements& elements) {
    return {elements.data, static_cast<std::size_t>(elements.bytes())};
  }

  template <class Span>
  static Span part_at(Span all, std::size_t rank, std::size_t stride) {
    const Part part = part_of(static_cast<std::int64_t>(rank),
                              static_cast<std::int64_t>(stride),
                              static_cast<std::int64_t>(all.size()));
    return all.subspan(static_cast<std::size_t>(part.begin), static_cast<std::size_t>(part.size));
  }

  static void copy(ConstBytes from, Bytes to) {
    if (from.data() != to.data() && !to.empty()) {
      std::memcpy(to.data(), from.data(), to.size());
    }
  }

  template <class Body>
  void for_each_peer(const Body& body) const {
    for (std::size_t i = 1; i < members_.size(); ++i) {
      body((own() + i) % members_.size());
    }
  }

  // What came with the peer's greeting.
  const std::byte* inlined(std::size_t peer) const {
    return inbox_.data() + peer * kGreetingBytes + sizeof(GroupCall);
  }

  // Tells every peer what this rank does, with `part_for(peer)` where it is small enough, and waits
  // for theirs. Errors: kInternal where a peer does something else.
  template <class PartFor>
  void greet(const GroupCall& call, const PartFor& part_for) {
    call_ = call;
    run_->take_control_messages();
    leave_if_aborted();
    meet();
    Requests requests;
    for_each_peer([&](std::size_t peer) {
      post_receive(requests, peer, Bytes(inbox_).subspan(peer * kGreetingBytes, kGreetingBytes));
    });
    for_each_peer([&](std::size_t peer) {
      const ConstBytes part = part_for(peer);
      const std::size_t with = part.size() <= kInline ? part.size() : 0;
      const Bytes message = Bytes(outbox_).subspan(peer * kGreetingBytes, sizeof(GroupCall) + with);
      std::memcpy(message.data(), &call, sizeof(GroupCall));
      copy(part.first(with), message.subspan(sizeof(GroupCall)));
      post_send(requests, peer, message);
    });
    wait(requests);
    leave_if_aborted();
    for_each_peer([&](std::size_t peer) { compare(peer); });
  }

  // Before the first operation: waits until every peer has told its tag.
  void meet() {
    if (!tags_.empty()) {
      return;
    }
    std::vector<int> tags(members_.size(), -1);
    tags[own()] = ticket_.tag;
    Patience patience = run_->patience();
    const auto unknown = [&](std::size_t peer) { return tags[peer] < 0; };
    while (std::ranges::find(tags, -1) != tags.end()) {
      run_->take_control_messages();
      for_each_peer([&](std::size_t peer) {
        tags[peer] =
            unknown(peer) ? run_->tag_of(ticket_, members_[peer]).value_or(-1) : tags[peer];
      });
      leave_if_aborted(unknown);
      if (!patience.pause()) {
        fail_late(unknown);
      }
    }
    outbox_.resize(members_.size() * kGreetingBytes);
    inbox_.resize(members_.size() * kGreetingBytes);
    tags_ = std::move(tags);
  }

  void compare(std::size_t peer) {
    GroupCall other;
    std::memcpy(&other, inbox_.data() + peer * kGreetingBytes, sizeof other);
    if (other != call_) {
      const std::string message = mismatch_message(members_[own()], call_, members_[peer], other);
      run_->abort(message);
      fail(ErrorCode::kInternal, "{}", message);
    }
  }

  // Receives small parts out of the greetings, larger ones from a stream.
  template <class TransferWith>
  void exchange(const TransferWith& transfer_with) {
    for_each_peer([&](std::size_t peer) {
      const Bytes to = transfer_with(peer).receive;
      if (to.size() <= kInline) {
        copy({inlined(peer), to.size()}, to);
      }
    });
    stream_in_place([&](std::size_t peer) { return without_inlined(transfer_with(peer)); });
  }

  static Transfer without_inlined(const Transfer& transfer) {
    return {.send = transfer.send.size() <= kInline ? ConstBytes() : transfer.send,
            .receive = transfer.receive.size() <= kInline ? Bytes() : transfer.receive};
  }

  // Chunk `index` of `part`.
  template <class Span>
  static Span chunk_of(Span part, std::size_t index, std::size_t chunk) {
    const std::size_t begin = std::min(index * chunk, part.size());
    return part.subspan(begin, std::min(chunk, part.size() - begin));
  }

  // Moves chunks 0 .. num_chunks, chunk_with(peer, i) for each peer, at most two at a time, and
  // calls arrived(i) for each, in order.
  template <class ChunkWith, class Arrived>
  void stream(std::size_t num_chunks, const ChunkWith& chunk_with, const Arrived& arrived) {
    std::array<Requests, 2> under_way;
    for (std::size_t i = 0; i < num_chunks + 2; ++i) {
      Requests& requests = under_way[i % 2];
      wait(requests);
      if (i >= 2) {
        arrived(i - 2);
      }
      if (i < num_chunks) {
        for_each_peer([&](std::size_t peer) {
          const Transfer chunk = chunk_with(peer, i);
          post_receive(requests, peer, chunk.receive);
          post_send(requests, peer, chunk.send);
        });
      }
    }
  }

  template <class TransferWith>
  void stream_in_place(const TransferWith& transfer_with) {
    std::size_t longest = 0;
    for_each_peer([&](std::size_t peer) {
      const Transfer transfer = transfer_with(peer);
      longest = std::max({longest, transfer.send.size(), transfer.receive.size()});
    });
    stream(
        num_chunks(longest, kDirectChunk),
        [&](std::size_t peer, std::size_t i) {
          const Transfer transfer = transfer_with(peer);
          return Transfer{.send = chunk_of(transfer.send, i, kDirectChunk),
                          .receive = chunk_of(transfer.receive, i, kDirectChunk)};
        },
        [](std::size_t) {});
  }

  static std::size_t num_chunks(std::size_t bytes, std::size_t chunk) {
    return (bytes + chunk - 1) / chunk;
  }

  // The same on all members.
  std::size_t stage_chunk() const {
    const std::size_t peers = std::max<std::size_t>(members_.size() - 1, 1);
    const std::size_t chunk = kStageInAll / peers / kLeastStageChunk * kLeastStageChunk;
    return std::clamp(chunk, kLeastStageChunk, kStageChunk);
  }

  // part = the fold of this rank's part of everybody's `all`. Parts of up to `inlined_bytes` came
  // with the greetings.
  void fold_parts(Fold fold,
                  const ConstElements& all,
                  const Elements& part,
                  std::size_t stride_bytes,
                  std::size_t inlined_bytes) {
    const auto streamed = [&](std::size_t rank) {
      const ConstBytes whole = part_at(bytes(all), rank, stride_bytes);
      return whole.size() <= inlined_bytes ? ConstBytes() : whole;
    };
    const ConstBytes mine = streamed(own());
    if (mine.empty()) {
      fold_sources(
          fold,
          part_at(bytes(all), own(), stride_bytes).data(),
          [&](std::size_t peer) { return inlined(peer); },
          part);
    }
    // Two halves, for the chunks under way; in each a place for every member.
    const std::size_t chunk = stage_chunk();
    const std::size_t place = std::min(chunk, mine.size());
    stage_.resize(std::max(stage_.size(), 2 * members_.size() * place));
    const auto staged = [&](std::size_t peer, std::size_t i) {
      return Bytes(stage_).subspan((i % 2 * members_.size() + peer) * place,
                                   chunk_of(mine, i, chunk).size());
    };
    std::size_t longest = mine.size();
    for_each_peer([&](std::size_t peer) { longest = std::max(longest, streamed(peer).size()); });
    stream(
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
    std::vector<const std::byte*> sources(members_.size(), mine);
    for_each_peer([&](std::size_t peer) { sources[peer] = source_of(peer); });
    fold_in_order(fold, sources, out);
  }

  void post_receive(Requests& requests, std::size_t peer, Bytes to) {
    if (!to.empty()) {
      check_mpi(MPI_Irecv(to.data(),
                          static_cast<int>(to.size()),
                          MPI_BYTE,
                          static_cast<int>(members_[peer]),
                          ticket_.tag,
                          run_->data(),
                          requests.add(peer, Requests::Kind::kReceive)),
                "MPI_Irecv");
    }
  }

  void post_send(Requests& requests, std::size_t peer, ConstBytes from) {
    if (!from.empty()) {
      check_mpi(MPI_Isend(from.data(),
                          static_cast<int>(from.size()),
                          MPI_BYTE,
                          static_cast<int>(members_[peer]),
                          tags_[peer],
                          run_->data(),
                          requests.add(peer, Requests::Kind::kSend)),
                "MPI_Isend");
    }
  }

  void wait(Requests& requests) {
    constexpr int kLooksAtControl = 32;
    Patience patience = run_->patience();
    int turn = 0;
    bool some = false;
    const auto is_late = [&](std::size_t peer) { return requests.waits_for(peer); };
    while (!requests.test(some)) {
      if (some) {
        patience.renew();
      }
      if (++turn % kLooksAtControl == 0) {
        run_->take_control_messages();
        leave_if_aborted(is_late);
      }
      if (!patience.pause()) {
        fail_late(is_late);
      }
    }
  }

  void leave_if_aborted() {
    if (run_->aborted()) {
      fail(ErrorCode::kPeerFailure, "{}", run_->abort_reason());
    }
  }

  void leave_if_aborted(const std::function<bool(std::size_t)>& is_missing) {
    with_context(
        [&] {
          const auto [arrived, missing] = attendance(is_missing);
          return attendance_message(to_string(call_), arrived, missing);
        },
        [&] { leave_if_aborted(); });
  }

  struct Attendance {
    std::vector<std::int64_t> arrived;
    std::vector<std::int64_t> missing;
  };

  Attendance attendance(const std::function<bool(std::size_t)>& is_missing) const {
    Attendance found;
    for (std::size_t peer = 0; peer < members_.size(); ++peer) {
      const bool late = peer != own() && is_missing(peer);
      (late ? found.missing : found.arrived).push_back(members_[peer]);
    }
    return found;
  }

  [[noreturn]] void fail_late(const std::function<bool(std::size_t)>& is_missing) {
    const auto [arrived, missing] = attendance(is_missing);
    const std::string message = late_message(to_string(call_), run_->options(), arrived, missing);
    run_->abort(message);
    fail(ErrorCode::kTimeout, "{}", message);
  }

  std::shared_ptr<MpiRun> run_;
  std::vector<std::int64_t> members_;
  std::int64_t rank_;
  MpiRun::Ticket ticket_;
  std::vector<int> tags_;          // by member; empty before the first operation
  GroupCall call_;                 // under way
  std::vector<std::byte> outbox_;  // greetings, by member
  std::vector<std::byte> inbox_;
  std::vector<std::byte> stage_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiRun> run,
                                                    std::span<const std::int64_t> members,
                                                    std::int64_t generation) {
  return std::make_unique<MpiCommunicator>(std::move(run), members, generation);
}

}  // namespace tessera
