#include "tessera/program/verify_ranks.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// Members of a group of the mesh, in order.
using Group = std::vector<std::size_t>;

Group group_along(const Mesh& mesh, std::size_t axis, std::size_t rank) {
  const std::array listed = {axis};
  const std::vector<std::int64_t> members = mesh.members(listed, static_cast<std::int64_t>(rank));
  return {members.begin(), members.end()};
}

// Splits the classes until ranks of one class have groups of equal classes along every axis.
std::vector<std::size_t> refine(const Mesh& mesh, std::vector<std::size_t> class_of) {
  for (std::size_t num_classes = 0;;) {
    std::map<std::vector<std::size_t>, std::size_t> by_surroundings;
    std::vector<std::size_t> refined(class_of.size());
    for (std::size_t rank = 0; rank < class_of.size(); ++rank) {
      std::vector<std::size_t> surroundings = {class_of[rank]};
      for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
        Group classes = group_along(mesh, axis, rank);
        std::ranges::transform(
            classes, classes.begin(), [&](std::size_t member) { return class_of[member]; });
        std::ranges::sort(classes);
        surroundings.insert(surroundings.end(), classes.begin(), classes.end());
      }
      refined[rank] = by_surroundings.try_emplace(std::move(surroundings), by_surroundings.size())
                          .first->second;
    }
    class_of = std::move(refined);
    if (by_surroundings.size() == num_classes) {
      return class_of;
    }
    num_classes = by_surroundings.size();
  }
}

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
      : mesh_(mesh), class_of_(refine(mesh, {class_of.begin(), class_of.end()})) {
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
  // How far the ranks of a class are.
  struct State {
    std::size_t rank = 0;  // the first of the class
    const CollectiveSequence* sequence = nullptr;
    std::vector<std::vector<const CollectiveCall*>> calls;  // by stream
    std::vector<std::size_t> num_done;                      // by stream
    std::vector<std::vector<std::size_t>> classes_along;    // by axis: of its group, each once

    // The next call of a stream; null at its end.
    const CollectiveCall* head(std::size_t stream) const {
      return stream < calls.size() && num_done[stream] < calls[stream].size()
                 ? calls[stream][num_done[stream]]
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

    // The next call of `stream`, if the rank has come to it and it goes along `axis`.
    const CollectiveCall* call_along(std::size_t stream, const std::string& axis) const {
      const CollectiveCall* call = head(stream);
      return call != nullptr && call->axis == axis && blocking_stream(*call) == num_done.size()
                 ? call
                 : nullptr;
    }
  };

  void add_class(std::size_t rank, const CollectiveSequence& sequence) {
    State state{.rank = rank,
                .sequence = &sequence,
                .calls = std::vector<std::vector<const CollectiveCall*>>(sequence.streams.size()),
                .num_done = std::vector<std::size_t>(sequence.streams.size(), 0),
                .classes_along = {}};
    for (const CollectiveCall& call : sequence.calls) {
      TESSERA_CHECK(axis_index_.contains(call.axis),
                    "rank {} at {} talks along axis {}, which the mesh lacks",
                    rank,
                    call.place,
                    call.axis);
      state.calls.at(call.stream).push_back(&call);
    }
    for (std::size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
      Group classes = group_along(mesh_, axis, rank);
      std::ranges::transform(
          classes, classes.begin(), [&](std::size_t member) { return class_of_[member]; });
      std::ranges::sort(classes);
      classes.erase(std::ranges::unique(classes).begin(), classes.end());
      state.classes_along.push_back(std::move(classes));
    }
    states_.push_back(std::move(state));
  }

  const State& of_rank(std::size_t rank) const { return states_[class_of_[rank]]; }

  // Completes the next call of a class's stream if all members of its group are there, and lists
  // the classes that are further then.
  bool complete(Queue queue, std::vector<std::size_t>& changed) {
    const CollectiveCall* next = states_[queue.owner].head(queue.stream);
    if (next == nullptr || states_[queue.owner].call_along(queue.stream, next->axis) == nullptr) {
      return false;
    }
    const std::size_t axis = axis_index_.at(next->axis);
    const std::vector<std::size_t>& classes = states_[queue.owner].classes_along[axis];
    bool all_there = true;
    for (const std::size_t member : classes) {
      const CollectiveCall* call = states_[member].call_along(queue.stream, next->axis);
      all_there = all_there && call != nullptr;
      if (call != nullptr && call->what != next->what) {
        report_mismatch(queue, axis);
      }
    }
    if (all_there) {
      for (const std::size_t member : classes) {
        ++states_[member].num_done[queue.stream];
        changed.push_back(member);
      }
    }
    return all_there;
  }

  // What most members of the group are about to do is what is expected of all.
  [[noreturn]] void report_mismatch(Queue queue, std::size_t axis) const {
    const State& state = states_[queue.owner];
    const std::string& axis_name = mesh_.axes[axis].name;
    std::map<std::string, Group> ranks_by_what;
    for (const std::size_t rank : group_along(mesh_, axis, state.rank)) {
      if (const CollectiveCall* call = of_rank(rank).call_along(queue.stream, axis_name)) {
        ranks_by_what[call->what].push_back(rank);
      }
    }
    // Most ranks first; of as many, those with the lowest.
    const auto expected = std::ranges::min_element(ranks_by_what, {}, [](const auto& entry) {
      return std::pair(-static_cast<std::int64_t>(entry.second.size()), entry.second.front());
    });
    const auto found = std::ranges::find_if(
        ranks_by_what, [&](const auto& entry) { return entry.first != expected->first; });
    const Queue wrong{found->second.front(), queue.stream};
    const Queue right{expected->second.front(), queue.stream};
    fail(ErrorCode::kInternal,
         "collectives of the ranks do not match: found {}; expected {}",
         describe(wrong),
         describe(right));
  }

  // "rank 1 on stream comm at segment forward, ...: all_gather along data (all_gather of ...)".
  std::string describe(Queue queue) const {
    const State& state = of_rank(queue.owner);
    const CollectiveCall* call = state.head(queue.stream);
    const std::string stream = queue.stream < state.sequence->streams.size()
                                   ? state.sequence->streams[queue.stream]
                                   : format("{}", queue.stream);
    std::string text = format("rank {} on stream {}", queue.owner, stream);
    if (call != nullptr) {
      text += format(" at {} along {} ({})", call->place, call->axis, call->what);
    } else if (queue.stream < state.calls.size() && !state.calls[queue.stream].empty()) {
      text += format(" at its end, after {}", state.calls[queue.stream].back()->place);
    } else {
      text += " without any collective";
    }
    return text;
  }

  // What a rank's stream that cannot go on waits for: another of its streams, or a member of the
  // group that is elsewhere.
  Queue waits_for(Queue queue) const {
    const State& state = of_rank(queue.owner);
    const CollectiveCall& call = *state.head(queue.stream);
    if (const std::size_t blocking = state.blocking_stream(call);
        blocking != state.num_done.size()) {
      return {queue.owner, blocking};
    }
    const Group group = group_along(mesh_, axis_index_.at(call.axis), queue.owner);
    const auto away = std::ranges::find_if(group, [&](std::size_t member) {
      return of_rank(member).call_along(queue.stream, call.axis) == nullptr;
    });
    TESSERA_CHECK(away != group.end(), "{} waits for nobody", describe(queue));
    return {*away, queue.stream};
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
