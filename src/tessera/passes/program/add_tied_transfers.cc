#include "tessera/passes/program/add_tied_transfers.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/ops/all_ops.h"
#include "tessera/passes/program/new_events.h"

namespace tessera {
namespace {

constexpr Code step_code(Action action, CodeKind kind) {
  return {.action = action, .kind = kind};
}

constexpr Code kStartSend = step_code(Action::kStart, CodeKind::kSend);
constexpr Code kStartReceive = step_code(Action::kStart, CodeKind::kReceive);
constexpr Code kUpdateSend = step_code(Action::kUpdate, CodeKind::kSend);
constexpr Code kUpdateReceive = step_code(Action::kUpdate, CodeKind::kReceive);

bool is_work(const Code& code) {
  return code.kind == CodeKind::kWork;
}

class TiedTransfers {
 public:
  explicit TiedTransfers(Program program) : program_(std::move(program)) {}

  Program run() {
    for (std::size_t i = 0; i < program_.segments.size(); ++i) {
      const Code& code = program_.segments[i].code;
      if (code == kStartSend || code == kStartReceive || code == kUpdateSend ||
          code == kUpdateReceive) {
        segments_[code] = SegmentId::of(i);
      }
    }
    if (segments_.empty()) {
      return std::move(program_);
    }
    next_event_ = first_free_event(program_);
    add_streams();
    add_receives(kStartReceive);
    add_receives(kUpdateReceive);
    add_waits();
    add_sends(kStartSend);
    add_sends(kUpdateSend);
    add_calls();
    return std::move(program_);
  }

 private:
  void add_streams() {
    if (program_.streams.size() == 1) {
      program_.streams.emplace_back("comm");
    }
    send_stream_ = StreamId::of(program_.streams.size());
    program_.streams.emplace_back("send.step");
    receive_stream_ = StreamId::of(program_.streams.size());
    program_.streams.emplace_back("receive.step");
  }

  Buffer& buffer(const TensorRef& tensor) { return program_.buffers[tensor.buffer.at()]; }

  // None where the rank has no such transfers.
  std::vector<Instruction>* instructions(const Code& code) {
    const auto found = segments_.find(code);
    return found == segments_.end() ? nullptr : &program_.segments[found->second.at()].instructions;
  }

  void add_receives(const Code& code) {
    if (std::vector<Instruction>* const receives = instructions(code)) {
      std::int32_t place = 0;
      for (Instruction& receive : *receives) {
        const EventId event = EventId::of(next_event_++);
        receive.stream = receive_stream_;
        receive.signals = {event};
        received_[receive.results[0].buffer] = event;
        if (Buffer& received = buffer(receive.results[0]); !received.persistent) {
          received.begin = {.code = code, .instruction = place};
        }
        ++place;
      }
    }
  }

  // In every segment, the first instruction of each stream that touches what was received.
  void add_waits() {
    for (Segment& segment : program_.segments) {
      std::set<std::pair<StreamId, EventId>> awaited;
      for (Instruction& instruction : segment.instructions) {
        for (const TensorRef& operand : instruction.operands) {
          const auto found = received_.find(operand.buffer);
          if (found != received_.end() &&
              awaited.insert({instruction.stream, found->second}).second) {
            instruction.waits.push_back(found->second);
          }
        }
      }
    }
  }

  void add_sends(const Code& code) {
    if (std::vector<Instruction>* const sends = instructions(code)) {
      const Code sent = step_code(code.action, CodeKind::kSent);
      Instruction fence = {.op = make_op(FenceAttrs{}), .operands = {}, .results = {}};
      for (Instruction& send : *sends) {
        send.stream = send_stream_;
        send.signals = {EventId::of(next_event_++)};
        fence.waits.push_back(send.signals[0]);
        if (Buffer& read = buffer(send.operands[0]); !read.persistent) {
          read.end = {.code = sent, .instruction = 0};
        }
      }
      program_.segments.push_back(
          {.name = to_string(sent), .code = sent, .instructions = {std::move(fence)}});
      segments_[sent] = SegmentId::of(program_.segments.size() - 1);
    }
  }

  const Code& code_of(const Call& call) const { return program_[call.segment].code; }

  // Of the last work of a microbatch.
  std::size_t begin_of_last_work() const {
    const std::vector<Call>& calls = program_.calls;
    const auto is_of_microbatch = [&](const Call& call) {
      return is_work(code_of(call)) && is_of_microbatches(code_of(call).action);
    };
    std::size_t begin = calls.size();
    for (std::size_t i = calls.size(); i-- > 0;) {
      if (!is_of_microbatch(calls[i])) {
        continue;
      }
      const bool is_other =
          begin < calls.size() && (code_of(calls[i]).action != code_of(calls[begin]).action ||
                                   code_of(calls[i]).chunk != code_of(calls[begin]).chunk ||
                                   calls[i].microbatch != calls[begin].microbatch);
      if (is_other) {
        break;
      }
      begin = i;
    }
    return begin;
  }

  std::size_t begin_of_update() const {
    const auto update = std::ranges::find_if(program_.calls, [&](const Call& call) {
      return is_work(code_of(call)) && code_of(call).action == Action::kUpdate;
    });
    return static_cast<std::size_t>(update - program_.calls.begin());
  }

  void add_calls() {
    std::vector<Call> calls;
    const auto add = [&](const Code& code) {
      if (const auto found = segments_.find(code); found != segments_.end()) {
        calls.push_back({.segment = found->second});
      }
    };
    const std::size_t last_work = begin_of_last_work();
    const std::size_t update = begin_of_update();
    add(kStartReceive);
    add(kStartSend);
    for (std::size_t i = 0; i <= program_.calls.size(); ++i) {
      if (i == last_work) {
        add(kUpdateReceive);
      }
      if (i == update) {
        add(kUpdateSend);
        add(step_code(Action::kStart, CodeKind::kSent));
      }
      if (i < program_.calls.size()) {
        calls.push_back(program_.calls[i]);
      }
    }
    add(step_code(Action::kUpdate, CodeKind::kSent));
    program_.calls = std::move(calls);
  }

  Program program_;
  StreamId send_stream_;
  StreamId receive_stream_;
  std::map<Code, SegmentId> segments_;    // of transfers, and of waits for them
  std::map<BufferId, EventId> received_;  // what happens when it is there
  std::size_t next_event_ = 0;
};

}  // namespace

Program add_tied_transfers(Program program) {
  return TiedTransfers(std::move(program)).run();
}

}  // namespace tessera
