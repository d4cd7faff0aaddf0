#include "tessera/passes/program/add_transfers.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/program/new_events.h"

namespace tessera {
namespace {

// How many microbatches of a work may have sends under way.
constexpr std::size_t kSendsUnderWay = 2;

constexpr std::array kTransferKinds = {CodeKind::kSend, CodeKind::kReceive};
constexpr std::array kTransferActions = {Action::kForward, Action::kBackward};

Code with_kind(Code code, CodeKind kind) {
  code.kind = kind;
  code.piece = 0;
  return code;
}

// Where the work of a code stands among those of a microbatch: backwards come to the chunks in
// falling order.
std::pair<Action, std::int32_t> turn_of(const Code& code) {
  return {code.action, code.action == Action::kForward ? code.chunk : -code.chunk};
}

// The calls of one work: its pieces, in one microbatch.
struct Step {
  Code work;
  std::int32_t microbatch = 0;
  std::size_t begin = 0;  // of its calls, in the list
  std::size_t end = 0;
};

class Transfers {
 public:
  Transfers(Program program, std::span<const WorkStep> order, std::int64_t slices)
      : program_(std::move(program)), order_(order), slices_(static_cast<std::int32_t>(slices)) {}

  Program run() {
    for (std::size_t i = 0; i < program_.segments.size(); ++i) {
      const Code& code = program_.segments[i].code;
      const bool is_transfer = code.kind == CodeKind::kReceive || code.kind == CodeKind::kSend;
      if (is_transfer && std::ranges::count(kTransferActions, code.action) > 0) {
        segments_[code] = SegmentId::of(i);
      }
    }
    if (segments_.empty()) {
      return std::move(program_);
    }
    next_event_ = first_free_event(program_);
    add_streams();
    std::vector<Code> codes;
    for (const auto& [code, segment] : segments_) {
      codes.push_back(code);
    }
    std::ranges::stable_sort(codes, {}, turn_of);
    for (const Code& code : codes) {
      code.kind == CodeKind::kReceive ? add_receives(code) : add_sends(code);
    }
    add_waits();
    add_calls();
    return std::move(program_);
  }

 private:
  // For each stage the same, whatever the rank sends and receives.
  void add_streams() {
    if (program_.streams.size() == 1) {
      program_.streams.emplace_back("comm");
    }
    first_stream_ = program_.streams.size();
    for (std::int32_t place = 0; place <= last_chunk() / slices_; ++place) {
      for (const CodeKind kind : kTransferKinds) {
        for (const Action action : kTransferActions) {
          program_.streams.push_back(
              format("{}.{}", name(kind), to_string(Code{.action = action, .chunk = place})));
        }
      }
    }
  }

  std::int32_t last_chunk() const {
    std::int32_t last = 0;
    for (const auto& [code, segment] : segments_) {
      last = std::max(last, code.chunk);
    }
    return last;
  }

  StreamId stream_of(const Code& code) const {
    const auto kind = std::ranges::find(kTransferKinds, code.kind) - kTransferKinds.begin();
    const auto action = std::ranges::find(kTransferActions, code.action) - kTransferActions.begin();
    const auto stage = static_cast<std::size_t>(code.chunk / slices_);
    return StreamId::of(first_stream_ + 4 * stage + static_cast<std::size_t>(2 * kind + action));
  }

  PoolId add_pool(const Code& code) {
    program_.pools.push_back({.name = to_string(code)});
    return PoolId::of(program_.pools.size() - 1);
  }

  EventId add_event(PoolId pool) {
    const EventId event = EventId::of(next_event_++);
    program_.event_pools[event] = pool;
    return event;
  }

  Buffer& buffer(const TensorRef& tensor) { return program_.buffers[tensor.buffer.at()]; }

  std::vector<Instruction>& instructions(const Code& code) {
    return program_.segments[segments_.at(code).at()].instructions;
  }

  void add_receives(const Code& code) {
    const PoolId pool = add_pool(code);
    std::int32_t place = 0;
    for (Instruction& receive : instructions(code)) {
      const EventId event = add_event(pool);
      receive.stream = stream_of(code);
      receive.signals = {event};
      Buffer& received = buffer(receive.results[0]);
      received.pool = pool;
      received.begin = {.code = code, .instruction = place++};
      received_[receive.results[0].buffer] = event;
    }
  }

  void add_sends(const Code& code) {
    const Code sent = with_kind(code, CodeKind::kSent);
    const PoolId pool = add_pool(sent);
    Instruction fence = {.op = make_op(FenceAttrs{}), .operands = {}, .results = {}};
    for (Instruction& send : instructions(code)) {
      send.stream = stream_of(code);
      send.signals = {add_event(pool)};
      fence.waits.push_back(send.signals[0]);
      Buffer& read = buffer(send.operands[0]);
      if (const auto received = received_.find(send.operands[0].buffer);
          received != received_.end()) {
        send.waits = {received->second};
      }
      if (read.persistent) {
        continue;
      }
      if (turn_of(read.end.code) <= turn_of(code)) {
        if (read.end.code.kind == CodeKind::kSent) {
          ended_by_[read.end.code].insert(with_kind(code, CodeKind::kWork));
        }
        read.end = {.code = sent, .instruction = 0};
        read.pool = read.begin.code.kind == CodeKind::kReceive ? read.pool : pool;
      } else {
        ended_by_[sent].insert(with_kind(read.end.code, CodeKind::kWork));
      }
    }
    program_.segments.push_back(
        {.name = to_string(sent), .code = sent, .instructions = {std::move(fence)}});
    segments_[sent] = SegmentId::of(program_.segments.size() - 1);
  }

  // In every segment of work, the first instruction of each stream that touches what was received.
  void add_waits() {
    for (Segment& segment : program_.segments) {
      if (segment.code.kind == CodeKind::kReceive || segment.code.kind == CodeKind::kSend) {
        continue;
      }
      std::set<std::pair<StreamId, EventId>> awaited;
      for (Instruction& instruction : segment.instructions) {
        for (const auto* tensors : {&instruction.operands, &instruction.results}) {
          for (const TensorRef& tensor : *tensors) {
            const auto found = received_.find(tensor.buffer);
            if (found != received_.end() &&
                awaited.insert({instruction.stream, found->second}).second) {
              instruction.waits.push_back(found->second);
            }
          }
        }
      }
    }
  }

  // Stretches of calls of one work and microbatch, with what overlap() has put in between.
  std::vector<Step> steps() const {
    std::vector<Step> steps;
    for (std::size_t i = 0; i < program_.calls.size(); ++i) {
      const Call& call = program_.calls[i];
      const Code& code = program_[call.segment].code;
      if (code.kind != CodeKind::kWork || !is_of_microbatches(code.action)) {
        continue;
      }
      const Code work = with_kind(code, CodeKind::kWork);
      if (steps.empty() || steps.back().work != work ||
          steps.back().microbatch != call.microbatch) {
        steps.push_back({.work = work, .microbatch = call.microbatch, .begin = i});
      }
      steps.back().end = i + 1;
    }
    return steps;
  }

  // What is called before each call of the list, and at its end.
  using Insertions = std::vector<std::vector<Call>>;

  void add(std::vector<Call>& calls, const Code& code, std::int32_t microbatch) const {
    if (const auto found = segments_.find(code); found != segments_.end()) {
      calls.push_back({.segment = found->second, .microbatch = microbatch});
    }
  }

  // Where the calls before step `next` go; what stands before the first one is before all.
  static std::size_t begin_of(const std::vector<Step>& all, std::size_t next) {
    if (next == 0) {
      return 0;
    }
    return next < all.size() ? all[next].begin : all.back().end;
  }

  void add_calls() {
    const std::vector<Step> all = steps();
    Insertions before(program_.calls.size() + 1);
    std::map<Code, std::vector<std::int32_t>> under_way;  // by work, microbatches that it sends
    const auto wait = [&](std::size_t at, const Code& work, std::int32_t microbatch) {
      add(before[at], with_kind(work, CodeKind::kSent), microbatch);
      std::erase(under_way[work], microbatch);
    };
    std::map<Code, std::size_t> num_receives;
    std::size_t next = 0;
    for (const WorkStep& listed : order_) {
      if (listed.code.kind == CodeKind::kReceive) {
        add(before[begin_of(all, next)], listed.code, listed.microbatch);
        ++num_receives[listed.code];
        continue;
      }
      if (next == all.size() || all[next].work != listed.code ||
          all[next].microbatch != listed.microbatch) {
        continue;  // of a code that the program does not have
      }
      const Step& step = all[next++];
      for (const Code& work : works_ended_by(step.work)) {
        if (std::ranges::count(under_way[work], step.microbatch) > 0) {
          wait(step.begin, work, step.microbatch);
        }
      }
      if (under_way[step.work].size() == kSendsUnderWay) {
        wait(step.begin, step.work, under_way[step.work].front());
      }
      add(before[step.end], with_kind(step.work, CodeKind::kSend), step.microbatch);
      under_way[step.work].push_back(step.microbatch);
    }
    require_all(all, next, num_receives);
    const std::size_t end = begin_of(all, all.size());
    for (const auto& [work, microbatches] : std::map(under_way)) {
      std::ranges::for_each(microbatches, [&](std::int32_t m) { wait(end, work, m); });
    }
    insert(before);
  }

  void require_all(const std::vector<Step>& all,
                   std::size_t listed,
                   const std::map<Code, std::size_t>& num_receives) const {
    TESSERA_CHECK(listed == all.size(),
                  "{} of {} works are called in another order than is listed",
                  all.size() - listed,
                  all.size());
    for (const auto& [code, segment] : segments_) {
      const auto found = num_receives.find(code);
      const std::size_t num_listed = found == num_receives.end() ? 0 : found->second;
      TESSERA_CHECK(
          code.kind != CodeKind::kReceive || std::cmp_equal(num_listed, program_.num_microbatches),
          "{} is listed for {} of {} microbatches",
          to_string(code),
          num_listed,
          program_.num_microbatches);
    }
  }

  // The works that send what a call of `work` ends to live.
  std::vector<Code> works_ended_by(const Code& work) const {
    std::vector<Code> works;
    for (const auto& [sent, ends] : ended_by_) {
      if (ends.contains(work)) {
        works.push_back(with_kind(sent, CodeKind::kWork));
      }
    }
    return works;
  }

  void insert(const Insertions& before) {
    std::vector<Call> calls;
    for (std::size_t i = 0; i <= program_.calls.size(); ++i) {
      calls.insert(calls.end(), before[i].begin(), before[i].end());
      if (i < program_.calls.size()) {
        calls.push_back(program_.calls[i]);
      }
    }
    program_.calls = std::move(calls);
  }

  Program program_;
  std::span<const WorkStep> order_;
  std::size_t first_stream_ = 0;             // of transfers
  std::int32_t slices_;                      // chunks of a stage
  std::map<Code, SegmentId> segments_;       // of transfers, and of waits for them
  std::map<BufferId, EventId> received_;     // what happens when it is there
  std::map<Code, std::set<Code>> ended_by_;  // by wait for sends: works that need it before
  std::size_t next_event_ = 0;
};

}  // namespace

Program add_transfers(Program program, std::span<const WorkStep> order, std::int64_t slices) {
  return Transfers(std::move(program), order, slices).run();
}

}  // namespace tessera
