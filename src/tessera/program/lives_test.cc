// When buffers live by the calls of a step, where the planner puts them, and what the verifier says
// of places where they cannot be.

#include "tessera/program/lives.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"
#include "tessera/passes/memory/plan_memory.h"
#include "tessera/passes/program/assign_slots.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

using Changes = std::vector<std::pair<std::string_view, std::string_view>>;

std::string fault(std::string_view right, const Changes& changes) {
  std::string text(right);
  for (const auto& [from, to] : changes) {
    text = replaced(std::move(text), from, to);
  }
  return error_of(ErrorCode::kInternal, [&] { verify(parse_program(text)); });
}

// Two microbatches are in flight: each leaves "stash" for its backward, and "l" lives before that
// in each forward. By the place in the segments the two never meet; by the calls, "l" of the second
// forward lies over the stash of the first.
TEST(Lives, AreThoseOfTheCallsNotOfThePlaces) {
  const std::string text = R"(program "flight" microbatches 2 arena 1536 {
  stream "compute"
  pool 0 "inputs" 2 slots
  pool 1 "stash" 2 slots
  buffer 0 "x" input 64 bytes pool 0 at (0, 256) persistent
  buffer 1 "l" activation 64 bytes at (512) live (forward 0, 0) .. (forward 0, 0)
  buffer 2 "stash" activation 64 bytes pool 1 at (512, 768) live (forward 0, 1) .. (backward 0, 0)
  buffer 3 "out" activation 64 bytes at (1280) persistent
  input "x" = #0+0 f32[n=16] strides(1)
  output "out" = #3+0 f32[n=16] strides(1)
  segment 0 "forward" forward 0 {
    #1+0 f32[n=16] strides(1) = gelu(#0+0 f32[n=16] strides(1)) stream 0
    #2+0 f32[n=16] strides(1) = gelu(#0+0 f32[n=16] strides(1)) stream 0
  }
  segment 1 "backward" backward 0 {
    #3+0 f32[n=16] strides(1) = gelu(#2+0 f32[n=16] strides(1)) stream 0
  }
  call 0 microbatch 0 slots (0, 0)
  call 0 microbatch 1 slots (1, 1)
  call 1 microbatch 0 slots (0, 0)
  call 1 microbatch 1 slots (1, 1)
}
)";
  EXPECT_THAT(fault(text, {}),
              AllOf(HasSubstr("buffers 1 \"l\" and 2 \"stash\" (slot 0) are alive at one time and "
                              "overlap"),
                    HasSubstr("segment forward, microbatch 1, instruction 0: gelu")));
  // The planner knows better.
  const Program planned = plan_memory(parse_program(text));
  verify(planned);
  EXPECT_EQ(planned[BufferId{2}].offsets.size(), 2U);
  EXPECT_EQ(memory_by_category(planned)[5].peak_bytes, 3 * kArenaAlignment);  // out, stash, stash
}

// Two stages of a pipeline, each on a stream beside the first, with three microbatches one forward,
// one backward. Stage 0 has two microbatches in flight. "h" and "dh" go from one stage to the
// other: they have a slot more than are in use at a time, since what makes one waits for no reader
// of the one before.
constexpr std::string_view kOneForwardOneBackward = R"(program "1f1b" microbatches 3 arena 8192 {
  stream "compute"
  stream "stage 0"
  stream "stage 1"
  pool 0 "inputs" 3 slots
  pool 1 "stash.0" 2 slots
  pool 2 "received.1" 2 slots
  pool 3 "stash.1" 1 slots
  pool 4 "gradient.0" 2 slots
  event 0 pool 2
  event 1 pool 4
  buffer 0 "x" input 64 bytes pool 0 at (0, 256, 512) persistent
  buffer 1 "w0" parameter 64 bytes at (768) persistent
  buffer 2 "w1" parameter 64 bytes at (1024) persistent
  buffer 3 "g0" gradient 64 bytes at (1280) persistent
  buffer 4 "g1" gradient 64 bytes at (1536) persistent
  buffer 5 "loss" activation 64 bytes at (1792) persistent
  buffer 6 "l" activation 64 bytes at (2048) live (forward 0, 0) .. (forward 0, 1)
  buffer 7 "u" activation 64 bytes at (2304) live (forward 0, 1) .. (forward 0, 2)
  buffer 8 "s" activation 64 bytes pool 1 at (2560, 2816) live (forward 0, 2) .. (backward 0, 0)
  buffer 9 "h" activation 64 bytes pool 2 at (3072, 3328) live (forward 0, 3) .. (backward 1, 1)
  buffer 10 "t" activation 64 bytes pool 3 at (3584) live (forward 1, 0) .. (backward 1, 0)
  buffer 11 "d" activation 64 bytes at (3840) live (backward 1, 0) .. (backward 1, 2)
  buffer 12 "dh" activation 64 bytes pool 4 at (4096, 4352) live (backward 1, 1) .. (backward 0, 0)
  buffer 13 "e" activation 64 bytes at (2048) live (backward 0, 0) .. (backward 0, 1)
  input "x" = #0+0 f32[n=16] strides(1)
  state "w0" parameter = #1+0 f32[n=16] strides(1)
  state "w1" parameter = #2+0 f32[n=16] strides(1)
  state "g0" gradient of "w0" = #3+0 f32[n=16] strides(1)
  state "g1" gradient of "w1" = #4+0 f32[n=16] strides(1)
  output "loss" = #5+0 f32[n=16] strides(1)
  segment 0 "forward" forward 0 {
    #6+0 f32[n=16] strides(1) = gelu(#0+0 f32[n=16] strides(1)) stream 1
    #7+0 f32[n=16] strides(1) = gelu(#6+0 f32[n=16] strides(1)) stream 1
    #8+0 f32[n=16] strides(1) = gelu(#7+0 f32[n=16] strides(1)) stream 1
    #9+0 f32[n=16] strides(1) = add(#8+0 f32[n=16] strides(1), #1+0 f32[n=16] strides(1)) stream 1 signal 0
  }
  segment 1 "forward.1" forward 1 {
    #10+0 f32[n=16] strides(1) = gelu(#9+0 f32[n=16] strides(1)) stream 2 wait 0
    #5+0 f32[n=16] strides(1) = gelu(#10+0 f32[n=16] strides(1)) stream 2
  }
  segment 2 "backward.1" backward 1 {
    #11+0 f32[n=16] strides(1) = add(#10+0 f32[n=16] strides(1), #2+0 f32[n=16] strides(1)) stream 2
    #12+0 f32[n=16] strides(1) = add(#11+0 f32[n=16] strides(1), #9+0 f32[n=16] strides(1)) stream 2 signal 1
    #4+0 f32[n=16] strides(1) = add(#4+0 f32[n=16] strides(1), #11+0 f32[n=16] strides(1)) stream 2 signal 2
  }
  segment 3 "backward.1_first" backward 1 {
    #11+0 f32[n=16] strides(1) = add(#10+0 f32[n=16] strides(1), #2+0 f32[n=16] strides(1)) stream 2
    #12+0 f32[n=16] strides(1) = add(#11+0 f32[n=16] strides(1), #9+0 f32[n=16] strides(1)) stream 2 signal 1
    #4+0 f32[n=16] strides(1) = gelu(#11+0 f32[n=16] strides(1)) stream 2 signal 2
  }
  segment 4 "backward" backward 0 {
    #13+0 f32[n=16] strides(1) = add(#12+0 f32[n=16] strides(1), #8+0 f32[n=16] strides(1)) stream 1 wait 1
    #3+0 f32[n=16] strides(1) = add(#3+0 f32[n=16] strides(1), #13+0 f32[n=16] strides(1)) stream 1
  }
  segment 5 "backward_first" backward 0 {
    #13+0 f32[n=16] strides(1) = add(#12+0 f32[n=16] strides(1), #8+0 f32[n=16] strides(1)) stream 1 wait 1
    #3+0 f32[n=16] strides(1) = gelu(#13+0 f32[n=16] strides(1)) stream 1
  }
  segment 6 "update" update 0 {
    #1+0 f32[n=16] strides(1) = add(#1+0 f32[n=16] strides(1), #3+0 f32[n=16] strides(1)) stream 1
    #2+0 f32[n=16] strides(1) = add(#2+0 f32[n=16] strides(1), #4+0 f32[n=16] strides(1)) stream 1 wait 2
  }
  call 0 microbatch 0 slots (0, 0, 0, -1, -1)
  call 0 microbatch 1 slots (1, 1, 1, -1, -1)
  call 1 microbatch 0 slots (-1, -1, 0, 0, -1)
  call 3 microbatch 0 slots (-1, -1, 0, 0, 0)
  call 5 microbatch 0 slots (-1, 0, -1, -1, 0)
  call 0 microbatch 2 slots (2, 0, 0, -1, -1)
  call 1 microbatch 1 slots (-1, -1, 1, 0, -1)
  call 2 microbatch 1 slots (-1, -1, 1, 0, 1)
  call 4 microbatch 1 slots (-1, 1, -1, -1, 1)
  call 1 microbatch 2 slots (-1, -1, 0, 0, -1)
  call 2 microbatch 2 slots (-1, -1, 0, 0, 0)
  call 4 microbatch 2 slots (-1, 0, -1, -1, 0)
  call 6 microbatch 0 slots (-1, -1, -1, -1, -1)
}
)";

std::string pipeline_fault(const Changes& changes) {
  return fault(kOneForwardOneBackward, changes);
}

TEST(Lives, OneForwardOneBackwardIsRight) {
  const Program program = parse_program(kOneForwardOneBackward);
  verify(program);
  EXPECT_EQ(to_string(program), kOneForwardOneBackward);
}

TEST(Lives, OneForwardOneBackwardWithoutAWait) {
  EXPECT_THAT(pipeline_fault({{"stream 2 wait 0", "stream 2"}}),
              AllOf(HasSubstr("segment forward.1, microbatch 0, instruction 0"),
                    HasSubstr("\"h\" was written on stream stage 0 without an event")));
  EXPECT_THAT(pipeline_fault({{"stream 1 wait 1\n    #3+0 f32[n=16] strides(1) = gelu",
                               "stream 1\n    #3+0 f32[n=16] strides(1) = gelu"}}),
              AllOf(HasSubstr("segment backward_first, microbatch 0, instruction 0"),
                    HasSubstr("\"dh\" was written on stream stage 1 without an event")));
  EXPECT_THAT(pipeline_fault({{"stream 1 wait 2", "stream 1"}}),
              AllOf(HasSubstr("segment update"),
                    HasSubstr("\"g1\" was written on stream stage 1 without an event")));
  // A signal of another slot is none.
  EXPECT_THAT(pipeline_fault({{"event 1 pool 4", "event 1 pool 0"}}),
              HasSubstr("slot -1 of pool \"inputs\" with 3"));
  EXPECT_THAT(pipeline_fault({{"stream 2 signal 1\n    #4+0 f32[n=16] strides(1) = gelu",
                               "stream 2\n    #4+0 f32[n=16] strides(1) = gelu"}}),
              HasSubstr("waits for event 1, never signalled"));
}

TEST(Lives, OneForwardOneBackwardWithCallsSwapped) {
  EXPECT_THAT(
      pipeline_fault({{"  call 5 microbatch 0 slots (-1, 0, -1, -1, 0)\n"
                       "  call 0 microbatch 2 slots (2, 0, 0, -1, -1)\n",
                       "  call 0 microbatch 2 slots (2, 0, 0, -1, -1)\n"
                       "  call 5 microbatch 0 slots (-1, 0, -1, -1, 0)\n"}}),
      HasSubstr("call 4 (forward, microbatch 2): buffer 8 \"s\" (slot 0) begins again while "
                "it lives"));
  EXPECT_THAT(pipeline_fault({{"  call 1 microbatch 1 slots (-1, -1, 1, 0, -1)\n"
                               "  call 2 microbatch 1 slots (-1, -1, 1, 0, 1)\n",
                               "  call 2 microbatch 1 slots (-1, -1, 1, 0, 1)\n"
                               "  call 1 microbatch 1 slots (-1, -1, 1, 0, -1)\n"}}),
              AllOf(HasSubstr("segment backward.1, microbatch 1, instruction 0"),
                    HasSubstr("buffer 10 \"t\" is used outside its life")));
  EXPECT_THAT(pipeline_fault({{"  call 4 microbatch 2 slots (-1, 0, -1, -1, 0)\n", ""}}),
              HasSubstr("buffer 8 \"s\" (slot 0) is never freed"));
}

TEST(Lives, OneForwardOneBackwardWithTooFewSlots) {
  EXPECT_THAT(pipeline_fault({{"\"stash.0\" 2 slots", "\"stash.0\" 1 slots"}}),
              HasSubstr("\"s\" has 2 offsets for 1 slots"));
  EXPECT_THAT(
      pipeline_fault(
          {{"\"stash.0\" 2 slots", "\"stash.0\" 1 slots"}, {"at (2560, 2816)", "at (2560)"}}),
      HasSubstr("call 1 (forward, microbatch 1): slot 1 of pool \"stash.0\" with 1, in which "
                "buffer \"s\" lives"));
  // The slots that are in use at a time, and none more: stage 1 does not know when stage 0 has read
  // the gradient before.
  EXPECT_THAT(
      pipeline_fault(
          {{"\"gradient.0\" 2 slots", "\"gradient.0\" 1 slots"},
           {"at (4096, 4352)", "at (4096)"},
           {"microbatch 1 slots (-1, -1, 1, 0, 1)", "microbatch 1 slots (-1, -1, 1, 0, 0)"},
           {"microbatch 1 slots (-1, 1, -1, -1, 1)", "microbatch 1 slots (-1, 1, -1, -1, 0)"}}),
      AllOf(HasSubstr("segment backward.1, microbatch 1, instruction 1"),
            HasSubstr("\"dh\" takes bytes that were used before on stream stage 0 without "
                      "an event")));
}

TEST(Lives, OneForwardOneBackwardWithLivesThatEndEarly) {
  EXPECT_THAT(pipeline_fault({{"live (forward 0, 2) .. (backward 0, 0)",
                               "live (forward 0, 2) .. (forward 0, 3)"}}),
              AllOf(HasSubstr("segment backward_first, microbatch 0, instruction 0"),
                    HasSubstr("buffer 8 \"s\" (slot 0) is used outside its life")));
  EXPECT_THAT(pipeline_fault({{"live (forward 0, 3) .. (backward 1, 1)",
                               "live (forward 0, 3) .. (forward 1, 0)"}}),
              AllOf(HasSubstr("segment backward.1_first, microbatch 0, instruction 1"),
                    HasSubstr("buffer 9 \"h\" (slot 0) is used outside its life")));
}

TEST(Lives, OneForwardOneBackwardWithASlotShifted) {
  // Stage 1 would take what stage 0 made for another microbatch.
  EXPECT_THAT(pipeline_fault({{"call 1 microbatch 1 slots (-1, -1, 1, 0, -1)",
                               "call 1 microbatch 1 slots (-1, -1, 0, 0, -1)"}}),
              AllOf(HasSubstr("segment forward.1, microbatch 1, instruction 0"),
                    HasSubstr("buffer 9 \"h\" (slot 0) is of microbatch 2")));
  EXPECT_THAT(pipeline_fault({{"call 4 microbatch 1 slots (-1, 1, -1, -1, 1)",
                               "call 4 microbatch 1 slots (-1, 0, -1, -1, 1)"}}),
              HasSubstr("buffer 8 \"s\" (slot 0) is of microbatch 2"));
  EXPECT_THAT(pipeline_fault({{"at (2560, 2816)", "at (2560, 2048)"}}),
              HasSubstr("buffers 8 \"s\" (slot 1) and 13 \"e\" are alive at one time and overlap"));
  EXPECT_THAT(pipeline_fault({{"at (3072, 3328)", "at (3072, 3072)"}}),
              HasSubstr("buffers 9 \"h\" (slot 0) and 9 \"h\" (slot 1) are alive at one time"));
}

// The fewest that the order of the calls allows: as many as there are microbatches in flight.
TEST(AssignSlots, OfOneForwardOneBackward) {
  Program program = parse_program(kOneForwardOneBackward);
  program.pools[1].slots = program.pools[4].slots = 7;
  const Program assigned = assign_slots(program);
  EXPECT_EQ(assigned.pools[0].slots, 3) << "the host's, for each microbatch";
  EXPECT_EQ(assigned.pools[1].slots, 2);
  EXPECT_EQ(assigned.pools[2].slots, 2);
  EXPECT_EQ(assigned.pools[3].slots, 1);
  EXPECT_EQ(assigned.pools[4].slots, 1);
  EXPECT_EQ(assigned.calls[5].slots, (std::vector<std::int32_t>{2, 0, 0, kNoSlot, kNoSlot}));
  EXPECT_EQ(assigned.calls[8].slots, (std::vector<std::int32_t>{kNoSlot, 1, kNoSlot, kNoSlot, 0}));
  EXPECT_EQ(assigned.calls[12].slots, std::vector<std::int32_t>(5, kNoSlot));
}

// Segments that do nothing of note, called in a random order: of each microbatch the forward comes
// first, and some are in flight together.
constexpr std::int32_t kInstructions = 40;

Program random_calls(std::mt19937& random) {
  Program program = parse_program(R"(program "random" microbatches 6 arena 0 {
  stream "compute"
  pool 0 "stash" 6 slots
  buffer 0 "x" input 64 bytes at () persistent
  buffer 1 "out" activation 64 bytes at () persistent
  input "x" = #0+0 f32[n=16] strides(1)
  segment 0 "forward" forward 0 {
    #1+0 f32[n=16] strides(1) = gelu(#0+0 f32[n=16] strides(1)) stream 0
  }
  segment 1 "backward" backward 0 {
    #1+0 f32[n=16] strides(1) = gelu(#0+0 f32[n=16] strides(1)) stream 0
  }
}
)");
  for (Segment& segment : program.segments) {
    segment.instructions.resize(kInstructions, segment.instructions[0]);
  }
  for (std::int32_t forward = 0, backward = 0; backward < 6;) {
    const bool is_forward = forward < 6 && (forward == backward || random() % 2 == 0);
    program.calls.push_back({.segment = {is_forward ? 0 : 1},
                             .microbatch = is_forward ? forward++ : backward++,
                             .slots = {kNoSlot}});
  }
  return program;
}

// Most live within a call, or always, some from the forward to the backward.
Buffer random_buffer(std::mt19937& random, std::uint32_t most_bytes) {
  const auto place = [&](Action action) {
    return Place{.code = {.action = action},
                 .instruction = static_cast<std::int32_t>(random() % kInstructions)};
  };
  Buffer buffer{.name = "b", .bytes = static_cast<std::int64_t>(random() % most_bytes)};
  buffer.category = static_cast<Category>(random() % 6);
  buffer.persistent = random() % 8 == 0;
  if (!buffer.persistent && random() % 3 == 0) {
    buffer.pool = {0};
    buffer.begin = place(Action::kForward);
    buffer.end = place(Action::kBackward);
  } else if (!buffer.persistent) {
    buffer.begin = place(random() % 2 == 0 ? Action::kForward : Action::kBackward);
    buffer.end = {
        .code = buffer.begin.code,
        .instruction = std::min(buffer.begin.instruction + static_cast<std::int32_t>(random() % 10),
                                kInstructions - 1)};
  }
  return buffer;
}

Program random_program(std::mt19937& random, int num_buffers, std::uint32_t most_bytes) {
  Program program = random_calls(random);
  for (int i = 0; i < num_buffers; ++i) {
    program.buffers.push_back(random_buffer(random, most_bytes));
  }
  return assign_slots(std::move(program));
}

// Both orders of each pair that lives at one instant.
using Together = std::set<std::pair<BufferSlot, BufferSlot>>;

// What lives, as a look at every instant finds it.
class AliveNow {
 public:
  explicit AliveNow(const Program& program) : program_(program) {
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
      if (program.buffers[i].persistent) {
        alive_.insert({.buffer = BufferId::of(i)});
      }
    }
  }

  // Whether any begins.
  bool begin(const Call& call, const Place& now) {
    const std::size_t before = alive_.size();
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
      const Buffer& buffer = program_.buffers[i];
      if (!buffer.persistent && buffer.begin == now) {
        alive_.insert(in_slot(call, i));
      }
    }
    return alive_.size() > before;
  }

  void end(const Call& call, const Place& now) {
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
      const Buffer& buffer = program_.buffers[i];
      if (!buffer.persistent && buffer.end == now) {
        alive_.erase(in_slot(call, i));
      }
    }
  }

  void add_pairs(Together& pairs) const {
    for (const BufferSlot& a : alive_) {
      for (const BufferSlot& b : alive_) {
        pairs.insert({a, b});
      }
    }
  }

 private:
  BufferSlot in_slot(const Call& call, std::size_t i) const {
    return {.buffer = BufferId::of(i),
            .slot = program_.buffers[i].pool.valid() ? call.slots[0] : 0};
  }

  const Program& program_;
  std::set<BufferSlot> alive_;
};

Together live_together(const Program& program) {
  AliveNow alive(program);
  Together pairs;
  alive.add_pairs(pairs);
  for (const Call& call : program.calls) {
    for (std::int32_t k = 0; k < kInstructions; ++k) {
      const Place now = {.code = program[call.segment].code, .instruction = k};
      if (alive.begin(call, now)) {
        alive.add_pairs(pairs);
      }
      alive.end(call, now);
    }
  }
  return pairs;
}

struct Placed {
  BufferSlot of;
  const Buffer* buffer;

  std::int64_t begin() const { return buffer->offsets[static_cast<std::size_t>(of.slot)]; }

  std::int64_t end() const { return begin() + buffer->padded_bytes(); }
};

// What does not live always, in the planner's order: the largest first, of equals that which begins
// first.
std::vector<Placed> temporary(const Program& program) {
  std::vector<Placed> result;
  for (const Category category : kCategories) {
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
      const Buffer& buffer = program.buffers[i];
      for (std::int32_t slot = 0; slot < program.num_slots(buffer.pool); ++slot) {
        if (buffer.category == category && !buffer.persistent) {
          result.push_back({{.buffer = BufferId::of(i), .slot = slot}, &buffer});
        }
      }
    }
  }
  std::map<BufferSlot, Instant> begins;
  for_each_life_event(program,
                      [&](const LifeEvent& event) { begins.try_emplace(event.of, event.at); });
  std::ranges::stable_sort(result, {}, [&](const Placed& placed) {
    return std::pair(-placed.buffer->padded_bytes(), begins[placed.of]);
  });
  return result;
}

// The planner's rule spelled out: each at the lowest place, after what lives always, where nothing
// before it in the order is that lives with it.
std::int64_t lowest_place(const std::vector<Placed>& order,
                          std::size_t i,
                          std::int64_t base,
                          const Together& together) {
  std::set<std::int64_t> candidates = {base};
  for (std::size_t j = 0; j < i; ++j) {
    candidates.insert(order[j].end());
  }
  return *std::ranges::find_if(candidates, [&](std::int64_t at) {
    return std::none_of(
        order.begin(), order.begin() + static_cast<std::ptrdiff_t>(i), [&](const Placed& other) {
          return together.contains({order[i].of, other.of}) && at < other.end() &&
                 other.begin() < at + order[i].buffer->padded_bytes();
        });
  });
}

// Random calls, lives and sizes: each buffer lies where the rule says, nothing that lives together
// overlaps (verify() checks it independently of the planner), and the stash has as many slots as
// there are microbatches in flight.
TEST(PlanMemory, RandomLivesNeverOverlap) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Program program = random_program(random, 60, 5000);
    const Program planned = plan_memory(program);
    verify(planned);
    std::int64_t base = 0;
    for (const Buffer& buffer : planned.buffers) {
      base = buffer.persistent ? std::max(base, buffer.offsets[0] + buffer.padded_bytes()) : base;
    }
    const Together together = live_together(program);
    const std::vector<Placed> order = temporary(planned);
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (together.contains({order[i].of, order[i].of})) {
        ASSERT_EQ(order[i].begin(), lowest_place(order, i, base, together)) << i;
      }
    }
    EXPECT_TRUE(equal(planned, parse_program(to_string(planned))));
    std::int32_t in_flight = 0;
    std::int32_t most = 0;
    for (const Call& call : planned.calls) {
      in_flight += call.segment.index == 0 ? 1 : -1;
      most = std::max(most, in_flight);
    }
    EXPECT_EQ(planned.pools[0].slots, most);
  }
}

// verify() against a look at every pair.
TEST(Program, VerifierFindsOverlapsInTheArena) {
  int num_overlapping = 0;
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Program program = random_program(random, 4, 1000);
    program.arena_bytes = 64 * kArenaAlignment;
    for (Buffer& buffer : program.buffers) {
      for (std::int32_t slot = 0; slot < program.num_slots(buffer.pool); ++slot) {
        buffer.offsets.push_back(static_cast<std::int64_t>(random() % 60) * kArenaAlignment);
      }
    }
    bool expected = false;
    for (const auto& [a, b] : live_together(program)) {
      const Placed first = {a, &program[a.buffer]};
      const Placed second = {b, &program[b.buffer]};
      expected =
          expected || (a != b && first.begin() < second.end() && second.begin() < first.end());
    }
    num_overlapping += expected ? 1 : 0;
    if (expected) {
      EXPECT_THROW(verify(program), Error) << to_string(program);
    } else {
      EXPECT_NO_THROW(verify(program)) << to_string(program);
    }
  }
  EXPECT_GT(num_overlapping, 50);
  EXPECT_LT(num_overlapping, 250);
}

// Many microbatches add no instant that the first ones do not have.
TEST(PlanMemory, ArenaDoesNotGrowWithMicrobatches) {
  std::mt19937 random(5);
  Program program = random_program(random, 60, 5000);
  program.num_microbatches = 600;
  const std::vector<Call> few = program.calls;
  const std::int64_t arena = plan_memory(program).arena_bytes;
  for (std::int32_t i = 1; i < 100; ++i) {
    for (Call call : few) {
      call.microbatch += 6 * i;
      program.calls.push_back(std::move(call));
    }
  }
  const Program planned = plan_memory(program);
  verify(planned);
  EXPECT_EQ(planned.arena_bytes, arena);
}

TEST(PlanMemory, MoreThan64BitsDoNotFit) {
  const auto message = [](std::int64_t bytes, std::int32_t slots, bool persistent) {
    Program program;
    program.pools = {{.name = "p", .slots = slots}};
    for (int i = 0; i < 3; ++i) {
      program.buffers.push_back(
          {.name = "b", .bytes = bytes, .pool = {0}, .persistent = persistent});
    }
    return error_of(ErrorCode::kOutOfMemory, [&] { plan_memory(program); });
  };
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  EXPECT_THAT(message(kHuge, 1, true), HasSubstr("the step needs more than 2^63 bytes"));
  EXPECT_THAT(message(kHuge, 2, true), HasSubstr("the step needs more than 2^63 bytes"));
  EXPECT_THAT(message(std::numeric_limits<std::int64_t>::max(), 1, false),
              HasSubstr("with its padding"));
}

TEST(PlanMemory, ReusesMemoryOfTheDead) {
  std::mt19937 random(1);
  Program program = random_calls(random);
  for (std::int32_t i = 0; i < 10; ++i) {
    Buffer buffer{.name = "b", .bytes = 1024};
    buffer.begin = {.code = {}, .instruction = i};
    buffer.end = {.code = {}, .instruction = i + 1};
    program.buffers.push_back(buffer);
  }
  EXPECT_EQ(plan_memory(assign_slots(program)).arena_bytes, 2 * kArenaAlignment + 2048);
}

}  // namespace
}  // namespace tessera
