#include "tessera/program/verify_ranks.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/program/rank_classes.h"

namespace tessera {
namespace {

// By channel, as its ends name it; those of one rank and another may have the same name.
using ChannelNames = std::map<std::pair<AxisSizes, ChannelPlaces>, std::size_t>;

// A stream of a rank, or of the class of ranks that it stands for.
struct Queue {
  std::size_t owner = 0;
  std::size_t stream = 0;

  friend bool operator==(const Queue&, const Queue&) = default;
};

class SymbolicStep {
 public:
  SymbolicStep(const Mesh& mesh,
               std::span<const CollectiveSequence> classes,
               std::span<const std::size_t> class_of)
      : mesh_(mesh),
        class_of_(refine_classes({class_of.begin(), class_of.end()}, groups_of(mesh, classes))) {
    for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      axis_index_[mesh.axes[axis].name] = axis;
    }
    for (std::size_t rank = 0; rank < class_of_.size(); ++rank) {
      if (class_of_[rank] == states_.size()) {
        add_class(rank, classes[class_of[rank]]);
      }
    }
  }

  void run() {
    std::vector<std::size_t> changed(states_.size());
    for (std::size_t i = 0; i < changed.size(); ++i) {
      changed[i] = i;
    }
    while (!changed.empty()) {
      const std::size_t next = changed.back();
      changed.pop_back();
      for (std::size_t stream = 0; stream < states_[next].calls.size(); ++stream) {
        while (complete({next, stream}, changed)) {
        }
      }
    }
    for (std::size_t rank = 0; rank < class_of_.size(); ++rank) {
      for (std::size_t stream = 0; stream < of_rank(rank).calls.size(); ++stream) {
        if (of_rank(rank).head(stream) != nullptr) {
          report_stuck({rank, stream});
        }
      }
    }
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  // A call, and whom it meets.
  struct Meeting {
    const CollectiveCall* call = nullptr;
    std::size_t axis = 0;            // of a collective, in the mesh
    std::size_t channel = kNone;     // of a transfer, in channels_
    std::int64_t peer_distance = 0;  // of a transfer, in ranks

    bool meets(const Meeting& other) const {
      return channel == other.channel && (channel != kNone || axis == other.axis);
    }
  };

  // How far the ranks of a class are.
  struct State {
    std::size_t rank = 0;  // the first of the class
    const CollectiveSequence* sequence = nullptr;
    std::vector<std::vector<Meeting>> calls;              // by stream
    std::vector<std::size_t> num_done;                    // by stream
    std::vector<std::vector<std::size_t>> classes_along;  // by axis: of its group, each once
    std::map<std::size_t, std::size_t> stream_of_channel;

    // The next call of a stream; null at its end.
    const Meeting* head(std::size_t stream) const {
      return stream < calls.size() && num_done[stream] < calls[stream].size()
                 ? &calls[stream][num_done[stream]]
                 : nullptr;
    }

    // A stream that `call` still waits for; none: the number of streams.
    std::size_t blocking_stream(const CollectiveCall& call) const {
      std::size_t stream = 0;
      while (stream < num_done.size() && num_done[stream] >= call.after[stream]) {
        ++stream;
      }
      return stream;
    }

    // The next call of `stream`, if the rank has come to it and it meets `other`.
    const Meeting* arrived(std::size_t stream, const Meeting& other) const {
      const Meeting* next = head(stream);
      return next != nullptr && next->meets(other) &&
                     blocking_stream(*next->call) == num_done.size()
                 ? next
                 : nullptr;
    }
  };

  void add_class(std::size_t rank, const CollectiveSequence& sequence) {
    State state{.rank = rank,
                .sequence = &sequence,
                .calls = std::vector<std::vector<Meeting>>(sequence.streams.size()),
                .num_done = std::vector<std::size_t>(sequence.streams.size(), 0),
                .classes_along = {},
                .stream_of_channel = {}};
    for (const CollectiveCall& call : sequence.calls) {
      state.calls.at(call.stream)
          .push_back(call.channel ? transfer(state, call) : collective(rank, call));
    }
    for (std::size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
      RankGroup classes = group_along(mesh_, axis, rank);
      std::ranges::transform(
          classes, classes.begin(), [&](std::size_t member) { return class_of_[member]; });
      std::ranges::sort(classes);
      classes.erase(std::ranges::unique(classes).begin(), classes.end());
      state.classes_along.push_back(std::move(classes));
    }
    states_.push_back(std::move(state));
  }

  std::size_t index_of(const std::string& axis,
                       std::size_t rank,
                       const CollectiveCall& call) const {
    const auto found = axis_index_.find(axis);
    TESSERA_CHECK(found != axis_index_.end(),
                  "rank {} at {} talks along axis {}, which the mesh lacks",
                  rank,
                  call.place,
                  axis);
    return found->second;
  }

  Meeting collective(std::size_t rank, const CollectiveCall& call) const {
    return {.call = &call, .axis = index_of(call.axis, rank, call)};
  }

  Meeting transfer(State& state, const CollectiveCall& call) {
    const ChannelEnd& end = *call.channel;
    std::vector<std::size_t> listed;
    for (const AxisSize& axis : end.axes) {
      listed.push_back(index_of(axis.name, state.rank, call));
    }
    const std::vector<std::int64_t> members =
        mesh_.members(listed, static_cast<std::int64_t>(state.rank));
    const auto member = [&](std::int64_t place) {
      TESSERA_CHECK(place >= 0 && place < std::ssize(members),
                    "rank {} at {} talks to place {} of {}",
                    state.rank,
                    call.place,
                    place,
                    members.size());
      return members[static_cast<std::size_t>(place)];
    };
    const std::int64_t own = member(end.sends ? end.places.from : end.places.to);
    const std::int64_t peer = member(end.sends ? end.places.to : end.places.from);
    TESSERA_CHECK(own == static_cast<std::int64_t>(state.rank),
                  "rank {} at {} uses the end of a channel that is rank {}'s",
                  state.rank,
                  call.place,
                  own);
    const std::size_t channel =
        channels_.try_emplace({end.axes, end.places}, channels_.size()).first->second;
    const std::size_t stream =
        state.stream_of_channel.try_emplace(channel, call.stream).first->second;
    TESSERA_CHECK(stream == call.stream,
                  "rank {} at {} uses a channel on stream {}, and before on stream {}",
                  state.rank,
                  call.place,
                  state.sequence->streams[call.stream],
                  state.sequence->streams[stream]);
    return {.call = &call, .axis = 0, .channel = channel, .peer_distance = peer - own};
  }

  const State& of_rank(std::size_t rank) const { return states_[class_of_[rank]]; }

  static std::size_t peer_of(std::size_t rank, const Meeting& meeting) {
    return static_cast<std::size_t>(static_cast<std::int64_t>(rank) + meeting.peer_distance);
  }

  // Where a rank's other end of the channel is; past its streams where it has none.
  Queue end_of(std::size_t rank, std::size_t channel) const {
    const State& state = of_rank(rank);
    const auto found = state.stream_of_channel.find(channel);
    return {rank, found == state.stream_of_channel.end() ? state.calls.size() : found->second};
  }

  // The streams of the ranks that meet in the next call of a rank's stream, itself among them.
  std::vector<Queue> members_of(Queue queue, const Meeting& meeting) const {
    if (meeting.channel != kNone) {
      return {queue, end_of(peer_of(queue.owner, meeting), meeting.channel)};
    }
    std::vector<Queue> members;
    for (const std::size_t rank : group_along(mesh_, meeting.axis, queue.owner)) {
      members.push_back({rank, queue.stream});
    }
    return members;
  }

  // The same by classes, each once.
  std::vector<Queue> classes_of(Queue queue, const Meeting& meeting) const {
    const State& state = states_[queue.owner];
    std::vector<Queue> classes;
    if (meeting.channel == kNone) {
      for (const std::size_t member : state.classes_along[meeting.axis]) {
        classes.push_back({member, queue.stream});
      }
      return classes;
    }
    for (const Queue& member : members_of({state.rank, queue.stream}, meeting)) {
      classes.push_back({class_of_[member.owner], member.stream});
    }
    return classes;
  }

  // Completes the next call of a class's stream if all that meet in it are there, and lists the
  // classes that are further then.
  bool complete(Queue queue, std::vector<std::size_t>& changed) {
    const Meeting* next = states_[queue.owner].head(queue.stream);
    if (next == nullptr || states_[queue.owner].arrived(queue.stream, *next) == nullptr) {
      return false;
    }
    const std::vector<Queue> classes = classes_of(queue, *next);
    bool all_there = true;
    for (const Queue& member : classes) {
      const Meeting* arrived = states_[member.owner].arrived(member.stream, *next);
      all_there = all_there && arrived != nullptr;
      if (arrived != nullptr && arrived->call->what != next->call->what) {
        report_mismatch({states_[queue.owner].rank, queue.stream}, *next);
      }
    }
    if (all_there) {
      for (const Queue& member : classes) {
        ++states_[member.owner].num_done[member.stream];
        changed.push_back(member.owner);
      }
    }
    return all_there;
  }

  // What most of those that meet are about to do is what is expected of all.
  [[noreturn]] void report_mismatch(Queue queue, const Meeting& meeting) const {
    std::map<CollectiveWork, std::vector<Queue>> by_what;
    for (const Queue& member : members_of(queue, meeting)) {
      if (const Meeting* arrived = of_rank(member.owner).arrived(member.stream, meeting)) {
        by_what[arrived->call->what].push_back(member);
      }
    }
    // Most ranks first; of as many, those with the lowest.
    const auto expected = std::ranges::min_element(by_what, {}, [](const auto& entry) {
      return std::pair(-static_cast<std::int64_t>(entry.second.size()), entry.second.front().owner);
    });
    const auto found = std::ranges::find_if(
        by_what, [&](const auto& entry) { return entry.first != expected->first; });
    fail(ErrorCode::kInternal,
         "collectives of the ranks do not match: found {}; expected {}",
         describe(found->second.front()),
         describe(expected->second.front()));
  }

  // "rank 1 on stream comm at segment forward, ...: all_gather along data (all_gather of ...)".
  std::string describe(Queue queue) const {
    const State& state = of_rank(queue.owner);
    const Meeting* next = state.head(queue.stream);
    const std::string stream = queue.stream < state.sequence->streams.size()
                                   ? state.sequence->streams[queue.stream]
                                   : format("{}", queue.stream);
    std::string text = format("rank {} on stream {}", queue.owner, stream);
    if (next != nullptr && next->channel != kNone) {
      text += format(" at {} {} rank {} ({})",
                     next->call->place,
                     next->call->channel->sends ? "to" : "from",
                     peer_of(queue.owner, *next),
                     to_string(next->call->what));
    } else if (next != nullptr) {
      text += format(
          " at {} along {} ({})", next->call->place, next->call->axis, to_string(next->call->what));
    } else if (queue.stream < state.calls.size() && !state.calls[queue.stream].empty()) {
      text += format(" at its end, after {}", state.calls[queue.stream].back().call->place);
    } else {
      text += " without any collective";
    }
    return text;
  }

  // What a rank's stream that cannot go on waits for: another of its streams, or one of those that
  // it meets that is elsewhere.
  Queue waits_for(Queue queue) const {
    const State& state = of_rank(queue.owner);
    const Meeting& next = *state.head(queue.stream);
    if (const std::size_t blocking = state.blocking_stream(*next.call);
        blocking != state.num_done.size()) {
      return {queue.owner, blocking};
    }
    const std::vector<Queue> members = members_of(queue, next);
    const auto away = std::ranges::find_if(members, [&](const Queue& member) {
      return of_rank(member.owner).arrived(member.stream, next) == nullptr;
    });
    TESSERA_CHECK(away != members.end(), "{} waits for nobody", describe(queue));
    return *away;
  }

  // Follows who waits for whom to a stream that has ended, or around a cycle.
  [[noreturn]] void report_stuck(Queue start) const {
    std::vector<Queue> chain = {start};
    for (;;) {
      const Queue last = chain.back();
      const Queue next = waits_for(last);
      if (of_rank(next.owner).head(next.stream) == nullptr) {
        fail(ErrorCode::kInternal,
             "a rank misses a collective that others wait in: found {}; expected the collective of "
             "{}",
             describe(next),
             describe(last));
      }
      if (const auto seen = std::ranges::find(chain, next); seen != chain.end()) {
        std::string cycle;
        for (auto it = seen; it != chain.end(); ++it) {
          cycle += format("{}{}", it == seen ? "" : ", waits for ", describe(*it));
        }
        fail(ErrorCode::kInternal,
             "collectives of the ranks wait for each other: {}, waits for rank {} again",
             cycle,
             next.owner);
      }
      chain.push_back(next);
    }
  }

  const Mesh& mesh_;
  std::vector<std::size_t> class_of_;  // by rank, in states_
  std::map<std::string, std::size_t> axis_index_;
  ChannelNames channels_;
  std::vector<State> states_;
};

}  // namespace

void verify_ranks(const Mesh& mesh,
                  std::span<const CollectiveSequence> classes,
                  std::span<const std::size_t> class_of) {
  TESSERA_CHECK(static_cast<std::int64_t>(class_of.size()) == mesh.num_ranks(),
                "{} ranks with a class, expected {}",
                class_of.size(),
                mesh.num_ranks());
  SymbolicStep(mesh, classes, class_of).run();
}

}  // namespace tessera
