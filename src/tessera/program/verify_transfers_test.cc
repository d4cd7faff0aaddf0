// Sends and receives: what verify_ranks() says of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/mesh.h"
#include "tessera/program/collective_calls.h"
#include "tessera/program/verify_ranks.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The transfers of a step of 1F1B on `ranks` ranks of a pipeline, each stage's compute calls as
// "F0 F1 B0 ..." and its transfers on a stream for each direction.
class OneForwardOneBackward {
 public:
  OneForwardOneBackward(std::int64_t ranks, std::int64_t microbatches)
      : axes_{{.name = "pipeline", .size = ranks}}, microbatches_(microbatches) {}

  // Receives are posted `ahead` compute calls before their use, at most as soon as those of the
  // same direction before.
  std::vector<CollectiveSequence> sequences(std::size_t ahead) const {
    std::vector<CollectiveSequence> result;
    for (std::int64_t rank = 0; rank < axes_[0].size; ++rank) {
      result.push_back(sequence(rank, ahead));
    }
    return result;
  }

  Mesh mesh() const { return make_mesh(local_cluster(axes_[0].size), {.pipeline = axes_[0].size}); }

 private:
  enum Stream : std::size_t { kSendForward = 1, kSendBackward, kReceiveForward, kReceiveBackward };

  struct Step {
    bool is_forward;
    std::int64_t microbatch;
  };

  std::vector<Step> steps(std::int64_t rank) const {
    const std::int64_t in_flight = std::min(microbatches_, axes_[0].size - rank);
    std::vector<Step> steps;
    for (std::int64_t forward = 0, backward = 0; backward < microbatches_;) {
      const bool is_forward = forward < microbatches_ && forward - backward < in_flight;
      steps.push_back({is_forward, is_forward ? forward++ : backward++});
    }
    return steps;
  }

  // Null where the rank has no neighbour there.
  std::optional<CollectiveCall> transfer(std::int64_t rank, Step step, bool sends) const {
    const std::int64_t other = rank + (step.is_forward == sends ? 1 : -1);
    if (other < 0 || other == axes_[0].size) {
      return std::nullopt;
    }
    const ChannelPlaces places = {.from = sends ? rank : other, .to = sends ? other : rank};
    const std::string name = format("{}{}", step.is_forward ? "F" : "B", step.microbatch);
    const Stream forward = sends ? kSendForward : kReceiveForward;
    return CollectiveCall{.stream = static_cast<std::size_t>(forward) + (step.is_forward ? 0 : 1),
                          .axis = "",
                          .channel = ChannelEnd{.axes = axes_, .places = places, .sends = sends},
                          .what = {.kind = CollectiveKind::kSend,
                                   .bytes = step.is_forward ? 1 : 2,
                                   .microbatch = static_cast<std::int32_t>(step.microbatch)},
                          .after = {},
                          .place = name};
  }

  CollectiveSequence sequence(std::int64_t rank, std::size_t ahead) const {
    CollectiveSequence result = {.streams = {"compute",
                                             "send.forward",
                                             "send.backward",
                                             "receive.forward",
                                             "receive.backward"},
                                 .calls = {}};
    std::vector<std::size_t> issued(result.streams.size(), 0);
    std::vector<std::size_t> needed(result.streams.size(), 0);
    const auto add = [&](CollectiveCall call) {
      call.after = needed;  // what compute has waited for
      ++issued[call.stream];
      result.calls.push_back(std::move(call));
    };
    const std::vector<Step> all = steps(rank);
    std::size_t posted = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (; posted < std::min(i + 1 + ahead, all.size()); ++posted) {
        if (const auto receive = transfer(rank, all[posted], false)) {
          add(*receive);
        }
      }
      if (const auto receive = transfer(rank, all[i], false)) {
        needed[receive->stream] += 1;
      }
      if (const auto send = transfer(rank, all[i], true)) {
        add(*send);
      }
    }
    return result;
  }

  AxisSizes axes_;
  std::int64_t microbatches_;
};

std::vector<std::size_t> each_its_class(const std::vector<CollectiveSequence>& classes) {
  std::vector<std::size_t> class_of(classes.size());
  std::iota(class_of.begin(), class_of.end(), std::size_t{0});
  return class_of;
}

std::string transfer_fault(const Mesh& mesh, const std::vector<CollectiveSequence>& classes) {
  return error_of(ErrorCode::kInternal,
                  [&] { verify_ranks(mesh, classes, each_its_class(classes)); });
}

TEST(VerifyTransfers, AcceptsTransfersThatMeetWithoutABuffer) {
  for (const std::int64_t ranks : {2, 3, 4, 8}) {
    for (const std::int64_t microbatches : {1, 2, 5, 16}) {
      const OneForwardOneBackward pipeline(ranks, microbatches);
      for (const std::size_t ahead : {0U, 1U, 3U}) {
        const std::vector<CollectiveSequence> classes = pipeline.sequences(ahead);
        EXPECT_EQ(parse_collective_calls(to_string(classes[0])), classes[0]);
        verify_ranks(pipeline.mesh(), classes, each_its_class(classes));
      }
    }
  }
}

// A pipeline beside data and tensor ranks: they count by their place in the pipeline alone.
TEST(VerifyTransfers, AcceptsTransfersOfManyRanksOfAClass) {
  const std::vector<CollectiveSequence> classes = OneForwardOneBackward(4, 6).sequences(1);
  const Mesh mesh = make_mesh(local_cluster(64), {.data = 8, .tensor = 2, .pipeline = 4});
  std::vector<std::size_t> class_of;
  for (std::size_t rank = 0; rank < 64; ++rank) {
    class_of.push_back(rank / 16);
  }
  verify_ranks(mesh, classes, class_of);
  std::swap(class_of[17], class_of[40]);
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { verify_ranks(mesh, classes, class_of); }),
              HasSubstr("rank 17 at F0 uses the end of a channel that is rank 33's"));
}

// Where a device has one queue for all that its streams launch, both ends must issue the transfers
// of both directions in one order: the second rank posts a receive ahead, the first one none.
TEST(VerifyTransfers, HaveOneOrderInOneQueue) {
  const OneForwardOneBackward pipeline(2, 4);
  const auto queued = [&](std::size_t ahead_on_first, std::size_t ahead_on_second) {
    return std::vector<CollectiveSequence>{in_one_queue(pipeline.sequences(ahead_on_first)[0]),
                                           in_one_queue(pipeline.sequences(ahead_on_second)[1])};
  };
  verify_ranks(pipeline.mesh(), queued(0, 1), std::vector<std::size_t>{0, 1});
  EXPECT_EQ(transfer_fault(pipeline.mesh(), queued(0, 0)),
            "collectives of the ranks wait for each other: rank 0 on stream all at F1 to rank 1 "
            "(transfer 0 of 1 bytes f32 in microbatch 1), waits for rank 1 on stream all at B0 to "
            "rank 0 (transfer 0 of 2 bytes f32 in microbatch 0), "
            "waits for rank 0 again");
  EXPECT_EQ(
      transfer_fault(pipeline.mesh(), queued(1, 1)),
      "collectives of the ranks wait for each other: rank 0 on stream all at B0 from rank 1 "
      "(transfer 0 of 2 bytes f32 in microbatch 0), waits for rank 1 on stream all at F1 from "
      "rank 0 (transfer 0 of 1 bytes f32 in microbatch 1), "
      "waits for rank 0 again");
}

TEST(VerifyTransfers, NamesBothEndsOfTransfersThatDoNotMatch) {
  const OneForwardOneBackward pipeline(3, 4);
  const auto mutated = [&](const auto& mutate) {
    std::vector<CollectiveSequence> classes = pipeline.sequences(1);
    mutate(classes[1].calls);
    return transfer_fault(pipeline.mesh(), classes);
  };
  const auto nth = [](std::vector<CollectiveCall>& calls, std::size_t stream, int n) {
    return std::ranges::find_if(
        calls, [&](const CollectiveCall& call) { return call.stream == stream && n-- == 0; });
  };
  EXPECT_EQ(mutated([&](auto& calls) { std::iter_swap(nth(calls, 1, 1), nth(calls, 1, 2)); }),
            "collectives of the ranks do not match: found rank 2 on stream receive.forward at F1 "
            "from rank 1 (transfer 0 of 1 bytes f32 in microbatch 1); expected rank 1 on stream "
            "send.forward at F2 to rank 2 "
            "(transfer 0 of 1 bytes f32 in microbatch 2)");
  EXPECT_EQ(mutated([&](auto& calls) { calls.erase(nth(calls, 2, 3)); }),
            "a rank misses a collective that others wait in: found rank 1 on stream send.backward "
            "at its end, after B2; expected the collective of rank 0 on stream receive.backward at "
            "B3 from rank 1 (transfer 0 of 2 bytes f32 in microbatch 3)");
  // Its send waits for what only comes after it.
  EXPECT_THAT(mutated([&](auto& calls) { nth(calls, 1, 0)->after[4] = 1; }),
              AllOf(StartsWith("collectives of the ranks wait for each other: rank 1 on stream "
                               "receive.backward at B0 from rank 2"),
                    HasSubstr("waits for rank 2 on stream send.backward at B0 to rank 1"),
                    HasSubstr("waits for rank 2 on stream receive.forward at F0 from rank 1"),
                    HasSubstr("waits for rank 1 on stream send.forward at F0 to rank 2"),
                    HasSubstr("waits for rank 1 again")));
  EXPECT_THAT(
      mutated([&](auto& calls) { nth(calls, 1, 0)->channel->places = {.from = 0, .to = 2}; }),
      HasSubstr("rank 1 at F0 uses the end of a channel that is rank 0's"));
  EXPECT_THAT(mutated([&](auto& calls) { nth(calls, 1, 1)->stream = 2; }),
              HasSubstr("rank 1 at F1 uses a channel on stream send.backward, and before on stream "
                        "send.forward"));
  EXPECT_THAT(mutated([&](auto& calls) { nth(calls, 1, 1)->channel->places.to = 3; }),
              HasSubstr("rank 1 at F1 talks to place 3 of 3"));
}

}  // namespace
}  // namespace tessera
