#include "tests/distributed/random_transfers.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "tessera/base/format.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/memory/plan_memory.h"
#include "tessera/passes/program/assign_slots.h"

namespace tessera {
namespace {

// The part of the transfers that is one rank's, as a program. Its work comes before its fence,
// which is called one microbatch later, so that two microbatches of transfers may be under way.
class RankProgram {
 public:
  RankProgram(const RandomTransfers& drawn, std::int64_t rank) : drawn_(drawn), rank_(rank) {}

  Program run() {
    program_.name = format("rank{}", rank_);
    program_.streams = {"compute"};
    for (std::int64_t i = 0; i < drawn_.num_streams; ++i) {
      program_.streams.push_back(format("transfers{}", i));
    }
    program_.pools = {{.name = "inputs"}, {.name = "stash"}};
    program_.num_microbatches = drawn_.num_microbatches;
    sum_now_ = add_buffer("x", Category::kInput, true);
    program_.buffers[sum_now_.at()].pool = PoolId::of(0);
    program_.inputs.push_back({.name = "x", .tensor = tensor(sum_now_)});
    const BufferId sum = add_buffer("sum", category_of(StateRole::kBuffer), true);
    program_.states.push_back(
        {{.name = "sum", .tensor = tensor(sum)}, {.parameter = "sum", .role = StateRole::kBuffer}});
    program_.outputs.push_back({.name = "sum", .tensor = tensor(sum)});
    add_work();
    emit(make_op(AddAttrs{}), {sum, sum_now_}, {sum});
    finish();
    return plan_memory(assign_slots(std::move(program_)));
  }

 private:
  BufferId add_buffer(std::string name, Category category, bool persistent) {
    program_.buffers.push_back({.name = std::move(name),
                                .category = category,
                                .bytes = 4 * drawn_.count,
                                .persistent = persistent});
    if (!persistent) {
      Buffer& buffer = program_.buffers.back();
      buffer.pool = PoolId::of(1);
      buffer.begin = {.code = {}, .instruction = static_cast<std::int32_t>(work_.size())};
      buffer.end = {.code = {.kind = CodeKind::kFence}, .instruction = 0};
    }
    return BufferId::of(program_.buffers.size() - 1);
  }

  TensorRef tensor(BufferId buffer) const {
    return {.buffer = buffer,
            .type = {.dtype = DType::kF32, .dims = {{.name = "n", .bound = drawn_.count}}},
            .strides = {1}};
  }

  Instruction& emit(OpRef op, const std::vector<BufferId>& in, const std::vector<BufferId>& out) {
    Instruction& instruction =
        work_.emplace_back(Instruction{.op = std::move(op), .operands = {}, .results = {}});
    for (const BufferId buffer : in) {
      instruction.operands.push_back(tensor(buffer));
    }
    for (const BufferId buffer : out) {
      instruction.results.push_back(tensor(buffer));
    }
    return instruction;
  }

  // On the stream of the channel's end, where it makes an event happen that the fence waits for.
  EventId transfer(Instruction& instruction, const RandomTransfers::Transfer& transfer) {
    const EventId event = EventId::of(events_.size());
    events_.push_back(event);
    program_.event_pools[event] = PoolId::of(1);
    instruction.stream = StreamId::of(1 + drawn_.stream_of(rank_, transfer));
    instruction.signals = {event};
    return event;
  }

  void add_work() {
    struct Unread {
      BufferId buffer;
      EventId event;
      std::int64_t after;
    };

    const AxisSizes axes = {{.name = "pipeline", .size = drawn_.num_ranks}};
    std::vector<Unread> unread;
    const auto read = [&](bool all) {
      for (Unread& next : unread) {
        if (--next.after < 0 || all) {
          const BufferId more = add_buffer("sum so far", Category::kActivation, false);
          emit(make_op(AddAttrs{}), {sum_now_, next.buffer}, {more}).waits = {next.event};
          sum_now_ = more;
          next.after = -1;
        }
      }
      std::erase_if(unread, [](const Unread& each) { return each.after < 0; });
    };
    std::map<ChannelPlaces, std::int64_t> carried;
    for (const RandomTransfers::Transfer& next : drawn_.transfers) {
      const std::int64_t index =
          carried[{.from = next.from, .to = next.to, .number = next.number}]++;
      if (next.from == rank_) {
        const SendAttrs send = {
            .axes = axes, .from = next.from, .to = next.to, .number = next.number, .index = index};
        transfer(emit(make_op(send), {sum_now_}, {}), next);
      } else if (next.to == rank_) {
        const ReceiveAttrs receive = {.axes = axes,
                                      .from = next.from,
                                      .to = next.to,
                                      .number = next.number,
                                      .index = index,
                                      .type = tensor(sum_now_).type};
        const BufferId buffer = add_buffer("received", Category::kActivation, false);
        const EventId event = transfer(emit(make_op(receive), {}, {buffer}), next);
        unread.push_back({.buffer = buffer, .event = event, .after = next.used_after});
        continue;
      } else {
        continue;
      }
      read(false);
    }
    read(true);
  }

  void finish() {
    const auto add = [&](CodeKind kind, std::vector<Instruction> instructions) {
      const Code code = {.kind = kind};
      program_.segments.push_back(
          {.name = to_string(code), .code = code, .instructions = std::move(instructions)});
    };
    add(CodeKind::kWork, std::move(work_));
    add(CodeKind::kFence,
        {{.op = make_op(FenceAttrs{}), .operands = {}, .results = {}, .waits = events_}});
    const auto call = [&](std::size_t number, std::int64_t microbatch) {
      program_.calls.push_back(
          {.segment = SegmentId::of(number), .microbatch = static_cast<std::int32_t>(microbatch)});
    };
    for (std::int64_t m = 0; m < drawn_.num_microbatches; ++m) {
      call(0, m);
      if (m > 0) {
        call(1, m - 1);
      }
    }
    call(1, drawn_.num_microbatches - 1);
  }

  const RandomTransfers& drawn_;
  std::int64_t rank_;
  Program program_;
  std::vector<Instruction> work_;
  std::vector<EventId> events_;
  BufferId sum_now_;
};

}  // namespace

RandomTransfers RandomTransfers::draw(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
  };
  RandomTransfers drawn = {.num_ranks = 2 + below(3),
                           .num_microbatches = 1 + below(4),
                           .num_streams = 1 + below(4),
                           .count = 1 + below(3) * below(5'000),
                           .seed = random()};
  const std::int64_t count = 1 + below(24);
  for (std::int64_t i = 0; i < count; ++i) {
    Transfer transfer = {.from = below(drawn.num_ranks),
                         .to = below(drawn.num_ranks - 1),
                         .number = below(2),
                         .used_after = below(4)};
    transfer.to += transfer.to >= transfer.from ? 1 : 0;
    drawn.transfers.push_back(transfer);
  }
  return drawn;
}

std::size_t RandomTransfers::stream_of(std::int64_t rank, const Transfer& transfer) const {
  std::mt19937_64 random(seed +
                         static_cast<std::uint64_t>(rank + 10 * transfer.from + 100 * transfer.to +
                                                    1'000 * transfer.number));
  return random() % static_cast<std::uint64_t>(num_streams);
}

std::vector<Program> RandomTransfers::programs() const {
  std::vector<Program> result;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    result.push_back(RankProgram(*this, rank).run());
  }
  return result;
}

// As the programs do it: what a rank receives is added after some transfers more of its own.
void RandomTransfers::add_received(std::vector<float>& now) const {
  struct Unread {
    float value;
    std::int64_t after;
  };

  std::map<std::int64_t, std::vector<Unread>> unread;
  const auto read = [&](std::int64_t rank, bool all) {
    for (Unread& next : unread[rank]) {
      if (--next.after < 0 || all) {
        now[static_cast<std::size_t>(rank)] += next.value;
        next.after = -1;
      }
    }
    std::erase_if(unread[rank], [](const Unread& each) { return each.after < 0; });
  };
  for (const Transfer& next : transfers) {
    unread[next.to].push_back(
        {.value = now[static_cast<std::size_t>(next.from)], .after = next.used_after});
    read(next.from, false);
  }
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    read(rank, true);
  }
}

}  // namespace tessera
