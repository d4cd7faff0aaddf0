// The order of instructions on several streams, beside the closure of all that one comes after.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/program/issue_order.h"
#include "tessera/program/program.h"
#include "tessera/program/stream_clocks.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// Whatever an instruction comes after, by number in the order of issue.
using Before = std::set<std::size_t>;

// The rules of a step, edge by edge.
class Closure {
 public:
  // The next instruction.
  void issue(std::size_t stream) {
    const std::size_t next = before_.size();
    before_.emplace_back();
    for (const std::size_t earlier : {stream, std::size_t{0}}) {
      if (const auto last = last_.find(earlier); last != last_.end()) {
        add(last->second);
      }
    }
    last_[stream] = next;
  }

  bool wait(std::int32_t event) {
    const auto signal = signals_.find(event);
    if (signal == signals_.end()) {
      return false;
    }
    add(signal->second);
    return true;
  }

  void signal(std::int32_t event) { signals_[event] = before_.size() - 1; }

  std::size_t last() const { return before_.size() - 1; }

  const Before& before(std::size_t i) const { return before_[i]; }

  // Of the stream.
  std::optional<std::size_t> last_on(std::size_t stream) const {
    const auto last = last_.find(stream);
    return last == last_.end() ? std::nullopt : std::optional(last->second);
  }

 private:
  // The last one comes after `earlier`, and after all that comes before that.
  void add(std::size_t earlier) {
    Before& known = before_.back();
    known.insert(earlier);
    const Before more = before_[earlier];
    known.insert(more.begin(), more.end());
  }

  std::vector<Before> before_;
  std::map<std::size_t, std::size_t> last_;      // by stream
  std::map<std::int32_t, std::size_t> signals_;  // by event, the last one
};

// The last instruction with all before it, whose uses these are. Counts what comes before it.
void compare_uses(const StreamClocks& clocks,
                  const Closure& closure,
                  const std::vector<std::optional<Use>>& uses,
                  std::map<bool, int>& found) {
  const Before& before = closure.before(closure.last());
  const auto of_stream_0 = closure.last_on(0);
  for (std::size_t earlier = 0; earlier < uses.size(); ++earlier) {
    const bool ordered = before.contains(earlier);
    ++found[ordered];
    if (!uses[earlier]) {
      EXPECT_TRUE(ordered);
      continue;
    }
    Uses one;
    one.add(*uses[earlier]);
    EXPECT_EQ(clocks.unordered(one), ordered ? std::nullopt : std::optional(uses[earlier]->stream));
    clocks.forget_ordered(one);
    EXPECT_EQ(one.empty(), of_stream_0 && closure.before(*of_stream_0).contains(earlier));
  }
}

// One of up to 5 streams in a few calls; some events have two slots.
Program random_program(std::mt19937& random) {
  constexpr std::uint32_t kEvents = 4;
  const auto event = [&] { return EventId::of(random() % kEvents); };
  Program program;
  program.streams.resize(1 + random() % 5);
  program.pools = {{.name = "pool", .slots = 2}};
  program.event_pools = {{EventId{2}, PoolId{0}}, {EventId{3}, PoolId{0}}};
  Segment& segment = program.segments.emplace_back();
  segment.instructions.resize(13);
  for (Instruction& instruction : segment.instructions) {
    instruction.stream = StreamId::of(random() % program.streams.size());
    for (std::size_t wait = random() % 3; wait > 0; --wait) {
      instruction.waits.push_back(event());
    }
    if (random() % 2 == 0) {
      instruction.signals.push_back(event());
    }
  }
  for (int i = 0; i < 3; ++i) {
    program.calls.push_back(
        {.segment = SegmentId{0}, .slots = {static_cast<std::int32_t>(random() % 2)}});
  }
  return program;
}

void compare_clocks(std::mt19937& random, std::map<bool, int>& found) {
  const Program program = random_program(random);
  const IssueOrder order = issue_order(program);
  StreamClocks clocks(order, program.streams.size());
  Closure closure;
  std::vector<std::optional<Use>> uses;
  std::vector<std::pair<StepIndex, EventId>> unmet;
  std::map<std::uint32_t, StepIndex> left;  // by mark, the last step with it
  for (const IssueStep& step : order.steps) {
    const Instruction& instruction = instruction_of(program, step);
    const auto in_slot = [&](EventId event) {
      return 2 * event.index + Program::slot_of(call_of(program, step), program.pool_of(event));
    };
    clocks.begin(step);
    clocks.tick();
    closure.issue(instruction.stream.at());
    for (const EventId event : instruction.waits) {
      if (!closure.wait(in_slot(event))) {
        unmet.emplace_back(order.index_of(step), event);
      }
    }
    for (const StepIndex awaited : order.waits_of(step)) {
      EXPECT_EQ(left.at(order.steps[awaited].mark), awaited);
    }
    left[step.mark] = order.index_of(step);
    compare_uses(clocks, closure, uses, found);
    uses.push_back(clocks.use());
    EXPECT_EQ(uses.back().has_value(), instruction.stream != StreamId{0});
    for (const EventId event : instruction.signals) {
      closure.signal(in_slot(event));
    }
    clocks.end(step);
  }
  ASSERT_EQ(order.unmet.size(), unmet.size());
  for (std::size_t i = 0; i < unmet.size(); ++i) {
    EXPECT_EQ(std::pair(order.unmet[i].step, order.unmet[i].event), unmet[i]);
  }
}

TEST(StreamClocks, KnowWhatComesBeforeWhat) {
  std::mt19937 random(11);
  std::map<bool, int> found;
  for (int i = 0; i < 300; ++i) {
    compare_clocks(random, found);
  }
  EXPECT_GT(found[true], 20000);
  EXPECT_GT(found[false], 20000);
}

TEST(Uses, KeepTheLastOfEachStream) {
  Uses uses;
  uses.add({.stream = {2}, .count = 3});
  uses.add({.stream = {1}, .count = 9});
  uses.add({.stream = {2}, .count = 5});
  uses.add({.stream = {1}, .count = 4});
  EXPECT_THAT(
      std::vector<Use>(uses.begin(), uses.end()),
      ::testing::ElementsAre(Use{.stream = {1}, .count = 9}, Use{.stream = {2}, .count = 5}));
}

// A buffer of a random step: where it lies, in units of the alignment, and, unless it lives always,
// at which instructions it begins and ends.
struct TestBuffer {
  std::size_t offset = 0;
  std::size_t units = 1;
  bool persistent = false;
  std::size_t begin = 0;
  std::size_t end = 0;
};

// `result` = gelu(`operand`), buffers.
struct Step {
  std::size_t stream = 0;
  std::size_t operand = 0;
  std::size_t result = 0;
  std::int32_t wait = 0;  // events
  std::int32_t signal = 0;
};

constexpr std::int32_t kNumEvents = 3;
constexpr int kNumCalls = 2;  // of all steps

// A start signals all events. Buffer 0 is an input, 1 lives always; the others begin at the step
// that writes them first.
struct TestSteps {
  std::size_t num_streams = 1;
  std::vector<TestBuffer> buffers = {};
  std::vector<Step> steps = {};
};

TestSteps random_steps(std::mt19937& random) {
  TestSteps result = {
      .num_streams = 2 + random() % 3,
      .buffers = {{.offset = 0, .persistent = true}, {.offset = 1, .persistent = true}}};
  std::vector<std::size_t> written = {0};
  for (std::size_t i = 0; i < 7; ++i) {
    Step step = {.stream = random() % result.num_streams,
                 .operand = written[random() % written.size()],
                 .result = 1,
                 .wait = static_cast<std::int32_t>(random() % kNumEvents),
                 .signal = static_cast<std::int32_t>(random() % kNumEvents)};
    if (random() % 4 != 0) {
      step.result = result.buffers.size();
      result.buffers.push_back({.offset = 2 + random() % 4, .units = 1 + random() % 2, .begin = i});
    }
    if (step.operand == step.result) {
      step.operand = 0;
    }
    for (const std::size_t used : {step.operand, step.result}) {
      result.buffers[used].end = i;
    }
    written.push_back(step.result);
    result.steps.push_back(step);
  }
  return result;
}

std::string text_of(const TestSteps& steps) {
  std::string text = format("program \"order\" microbatches {} arena 2048 {{\n", kNumCalls);
  for (std::size_t stream = 0; stream < steps.num_streams; ++stream) {
    text += format("  stream \"s{}\"\n", stream);
  }
  for (std::size_t i = 0; i < steps.buffers.size(); ++i) {
    const TestBuffer& buffer = steps.buffers[i];
    text +=
        format("  buffer {} \"b{}\" {} {} bytes at ({}) {}\n",
               i,
               i,
               i == 0 ? "input" : "activation",
               buffer.units * kArenaAlignment,
               static_cast<std::int64_t>(buffer.offset) * kArenaAlignment,
               buffer.persistent
                   ? "persistent"
                   : format("live (forward 0, {}) .. (forward 0, {})", buffer.begin, buffer.end));
  }
  text += "  input \"x\" = #0+0 f32[n=16] strides(1)\n  segment 0 \"start\" start 0 {\n";
  text +=
      "    fence() stream 0 signal 0 signal 1 signal 2\n  }\n  segment 1 \"forward\" forward 0 {\n";
  for (const Step& step : steps.steps) {
    text += format(
        "    #{}+0 f32[n=16] strides(1) = gelu(#{}+0 f32[n=16] strides(1)) stream {} "
        "wait {} signal {}\n",
        step.result,
        step.operand,
        step.stream,
        step.wait,
        step.signal);
  }
  text += "  }\n  call 0 microbatch 0 slots ()\n";
  for (int call = 0; call < kNumCalls; ++call) {
    text += format("  call 1 microbatch {} slots ()\n", call);
  }
  return text + "}\n";
}

// Does the steps with all that ever used a byte in mind.
class NaiveWalk {
 public:
  explicit NaiveWalk(const TestSteps& steps) : steps_(steps), lives_(steps.buffers.size()) {}

  // What verify() should say first; empty: nothing.
  std::string run() {
    order_.issue(0);
    streams_.push_back(0);
    for (std::int32_t event = 0; event < kNumEvents; ++event) {
      order_.signal(event);
    }
    for (int call = 0; call < kNumCalls && fault_.empty(); ++call) {
      for (std::size_t i = 0; i < steps_.steps.size() && fault_.empty(); ++i) {
        run_step(i);
        if (!fault_.empty()) {
          fault_ += format(" (segment forward, microbatch {}, instruction {}: gelu", call, i);
        }
      }
    }
    return fault_;
  }

 private:
  struct NaiveLife {
    Before writes = {};
    Before reads = {};
    Before before = {};
  };

  void run_step(std::size_t i) {
    const Step& step = steps_.steps[i];
    const std::span<const TestBuffer> buffers = steps_.buffers;
    for (std::size_t b = 0; b < buffers.size(); ++b) {
      if (!buffers[b].persistent && buffers[b].begin == i) {
        lives_[b] = {.before = used_in(buffers[b])};
      }
    }
    order_.issue(step.stream);
    streams_.push_back(step.stream);
    order_.wait(step.wait);
    check(step.operand, lives_[step.operand].writes, "was written");
    lives_[step.operand].reads.insert(order_.last());
    check(step.result, lives_[step.result].writes, "was written");
    check(step.result, lives_[step.result].reads, "was read");
    check(step.result, lives_[step.result].before, "takes bytes that were used before");
    lives_[step.result].writes.insert(order_.last());
    order_.signal(step.signal);
    for (std::size_t b = 0; b < buffers.size(); ++b) {
      if (!buffers[b].persistent && buffers[b].end == i) {
        for (const Before* uses : {&lives_[b].before, &lives_[b].writes, &lives_[b].reads}) {
          for (std::size_t unit = 0; unit < buffers[b].units; ++unit) {
            used_[buffers[b].offset + unit].insert(uses->begin(), uses->end());
          }
        }
      }
    }
  }

  Before used_in(const TestBuffer& buffer) const {
    Before result;
    for (std::size_t unit = 0; unit < buffer.units; ++unit) {
      const Before& uses = used_[buffer.offset + unit];
      result.insert(uses.begin(), uses.end());
    }
    return result;
  }

  void check(std::size_t buffer, const Before& uses, std::string_view what) {
    std::optional<std::size_t> stream;
    for (const std::size_t use : uses) {
      if (use != order_.last() && !order_.before(order_.last()).contains(use)) {
        stream = std::min(stream.value_or(streams_[use]), streams_[use]);
      }
    }
    if (stream && fault_.empty()) {
      fault_ = format("buffer {} \"b{}\" {} on stream s{} without an event in between",
                      buffer,
                      buffer,
                      what,
                      *stream);
    }
  }

  const TestSteps& steps_;
  Closure order_;
  std::vector<std::size_t> streams_;  // of what was issued
  std::vector<NaiveLife> lives_;      // by buffer, its last one
  std::array<Before, 8> used_;        // by unit of the arena, by lives that ended
  std::string fault_;
};

TEST(VerifyOrder, FindsWhatLacksAnEvent) {
  std::mt19937 random(13);
  std::map<std::string_view, int> found;
  for (int i = 0; i < 20000; ++i) {
    const TestSteps steps = random_steps(random);
    const std::string text = text_of(steps);
    const Program program = parse_program(text);
    std::string fault;
    try {
      verify(program);
    } catch (const Error& error) {
      fault = error.what();
    }
    if (fault.find("are alive at one time and overlap") != std::string::npos) {
      continue;
    }
    const std::string expected = NaiveWalk(steps).run();
    ASSERT_EQ(fault.empty(), expected.empty()) << fault << "\n" << expected << "\n" << text;
    for (const std::string_view part : {"was written", "was read", "takes bytes"}) {
      found[part] += expected.find(part) != std::string::npos ? 1 : 0;
    }
    found["nothing"] += expected.empty() ? 1 : 0;
    EXPECT_THAT(fault, HasSubstr(expected)) << text;
  }
  for (const std::string_view part : {"nothing", "was written", "was read", "takes bytes"}) {
    EXPECT_GT(found[part], 100) << part;
  }
}

}  // namespace
}  // namespace tessera
