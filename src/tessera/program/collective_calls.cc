#include "tessera/program/collective_calls.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <sstream>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/mesh/mesh.h"
#include "tessera/ops/op.h"

namespace tessera {
namespace {

// Named after the group, with its level where that has several axes (MeshAxis).
bool is_of_pipeline(const AxisSize& axis) {
  const std::string_view group = to_string(AxisGroup::kPipeline);
  return axis.name == group || axis.name.starts_with(format("{}.", group));
}

// By stream, how many of its calls are known to have ended.
using Ended = std::vector<std::size_t>;

void add_ended(Ended& ended, const Ended& more) {
  std::ranges::transform(
      ended, more, ended.begin(), [](std::size_t a, std::size_t b) { return std::max(a, b); });
}

// The axes in the order in which the collective talks along them.
AxisSizes legs(const CollectiveUse& use) {
  AxisSizes inwards(use.axes.rbegin(), use.axes.rend());
  if (use.kind == CollectiveKind::kAllGather) {
    return inwards;
  }
  AxisSizes order = use.axes;
  if (use.kind == CollectiveKind::kAllReduce && order.size() > 1) {
    order.insert(order.end(), inwards.begin(), inwards.end());
  }
  return order;
}

std::string describe(const CollectiveUse& use, const AxisSize& axis) {
  const auto sent = use.sent.find(axis.name);
  const std::int64_t sent_bytes =
      sent == use.sent.end()
          ? 0
          : std::accumulate(sent->second.begin(), sent->second.end(), std::int64_t{0});
  return format("{}{} of {} bytes {} over {} ranks, {} sent, {} times,",
                name(use.kind),
                use.fold ? (*use.fold == PartialOp::kMax ? " max" : " sum") : "",
                use.bytes,
                name(use.dtype),
                axis.size,
                sent_bytes,
                use.count);
}

// What all ranks of a pipeline, which number their tensors apart, know the result of an instruction
// by: as which operand of which op it is read next, or the output that it is; "" where it is
// neither.
std::string use_of(const Program& program, const Segment& segment, std::size_t index) {
  const BufferId result = segment.instructions[index].results[0].buffer;
  for (std::size_t i = index + 1; i < segment.instructions.size(); ++i) {
    const Instruction& reader = segment.instructions[i];
    const auto operand = std::ranges::find(reader.operands, result, &TensorRef::buffer);
    if (operand != reader.operands.end()) {
      return format(
          " of operand {} of {}", operand - reader.operands.begin(), info(*reader.op).name);
    }
  }
  const auto output = std::ranges::find(
      program.outputs, result, [](const Binding& binding) { return binding.tensor.buffer; });
  return output == program.outputs.end() ? "" : format(" of output \"{}\"", output->name);
}

class Walk {
  using EventSlot = std::pair<EventId, std::int32_t>;

 public:
  explicit Walk(const Program& program)
      : program_(program), ended_(program.streams.size(), Ended(program.streams.size(), 0)) {}

  CollectiveSequence run() {
    sequence_.streams = program_.streams;
    for (const Call& call : program_.calls) {
      const std::vector<Instruction>& instructions = program_[call.segment].instructions;
      for (std::size_t i = 0; i < instructions.size(); ++i) {
        run_instruction(call, i, instructions[i]);
      }
    }
    return std::move(sequence_);
  }

 private:
  void run_instruction(const Call& call, std::size_t index, const Instruction& instruction) {
    const std::size_t stream = instruction.stream.at();
    Ended& ended = ended_.at(stream);
    if (stream != 0) {
      add_ended(ended, ended_[0]);  // it is not issued before
    }
    for (const EventId event : instruction.waits) {
      if (const auto found = events_.find(in_slot(call, event)); found != events_.end()) {
        add_ended(ended, found->second);
      }
    }
    if (program_.runs(instruction, call)) {
      add_collectives(call, index, instruction);
    }
    for (const EventId event : instruction.signals) {
      events_[in_slot(call, event)] = ended;
    }
  }

  EventSlot in_slot(const Call& call, EventId event) const {
    return {event, Program::slot_of(call, program_.pool_of(event))};
  }

  void add_collectives(const Call& call, std::size_t index, const Instruction& instruction) {
    const std::size_t stream = instruction.stream.at();
    Ended& ended = ended_.at(stream);
    TensorTypes operands;
    std::string names;
    for (const TensorRef& operand : instruction.operands) {
      operands.push_back(operand.type);
      names += format("{}\"{}\"", names.empty() ? "" : ", ", program_[operand.buffer].name);
    }
    const auto add = [&](CollectiveCall added) {
      added.stream = stream;
      added.after = ended;
      added.place = format("segment {}, microbatch {}, instruction {}: {}",
                           program_[call.segment].name,
                           call.microbatch,
                           index,
                           info(*instruction.op).name);
      sequence_.calls.push_back(std::move(added));
      ++ended[stream];
    };
    for (const CollectiveUse& use : collectives(*instruction.op, operands)) {
      if (use.channel) {
        add(transfer(use, call));
        continue;
      }
      for (const AxisSize& axis : legs(use)) {
        if (axis.size > 1) {
          const std::string of = is_of_pipeline(axis)
                                     ? use_of(program_, program_[call.segment], index)
                                     : format(" of {}", names);
          add({.axis = axis.name,
               .what = format("{}{} in microbatch {}", describe(use, axis), of, call.microbatch)});
        }
      }
    }
  }

  // The ends know the tensor by names of their own.
  static CollectiveCall transfer(const CollectiveUse& use, const Call& call) {
    return {.axis = "",
            .channel = ChannelEnd{.axes = use.axes,
                                  .places = *use.channel,
                                  .sends = use.kind == CollectiveKind::kSend},
            .what = format("transfer {} of {} bytes {} in microbatch {}",
                           use.index,
                           use.bytes,
                           name(use.dtype),
                           call.microbatch)};
  }

  const Program& program_;
  std::vector<Ended> ended_;  // by stream, before its next instruction
  std::map<EventSlot, Ended> events_;
  CollectiveSequence sequence_;
};

// "send 0 1 0 pipeline=4": from, to, number; "" where there is none.
std::string to_string(const std::optional<ChannelEnd>& channel) {
  return channel ? format("{} {} {} {} {}",
                          channel->sends ? "send" : "receive",
                          channel->places.from,
                          channel->places.to,
                          channel->places.number,
                          to_string(channel->axes))
                 : "";
}

// Errors: kInternal quoting the line.
std::optional<ChannelEnd> parse_channel(const std::string& field, const std::string& line) {
  if (field.empty()) {
    return std::nullopt;
  }
  ChannelEnd end;
  std::istringstream in(field);
  std::string kind;
  in >> kind >> end.places.from >> end.places.to >> end.places.number >> std::ws;
  std::string axes;
  std::getline(in, axes);
  TESSERA_CHECK(in.eof() && !axes.empty() && (kind == "send" || kind == "receive"),
                "found \"{}\", expected a channel, in the collective \"{}\"",
                field,
                line);
  end.sends = kind == "send";
  end.axes = parse_axes(axes);
  return end;
}

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream in(line);
  for (std::string field; std::getline(in, field, '\t');) {
    fields.push_back(field);
  }
  return fields;
}

std::size_t parse_count(const std::string& field, const std::string& line) {
  std::size_t count = 0;
  const char* const end = field.data() + field.size();
  const auto [stop, error] = std::from_chars(field.data(), end, count);
  TESSERA_CHECK(error == std::errc() && stop == end,
                "found \"{}\", expected a number, in the collective \"{}\"",
                field,
                line);
  return count;
}

}  // namespace

CollectiveSequence collective_calls(const Program& program) {
  return Walk(program).run();
}

CollectiveSequence in_one_queue(CollectiveSequence sequence) {
  sequence.streams = {"all"};
  for (CollectiveCall& call : sequence.calls) {
    call.stream = 0;
    call.after = {0};
  }
  return sequence;
}

std::string to_string(const CollectiveSequence& sequence) {
  std::string text;
  for (const std::string& stream : sequence.streams) {
    text += stream + '\t';
  }
  text += '\n';
  for (const CollectiveCall& call : sequence.calls) {
    text += format("{}\t{}\t{}\t{}\t{}",
                   call.stream,
                   call.axis,
                   to_string(call.channel),
                   call.what,
                   call.place);
    for (const std::size_t ended : call.after) {
      text += format("\t{}", ended);
    }
    text += '\n';
  }
  return text;
}

CollectiveSequence parse_collective_calls(std::string_view text) {
  constexpr std::size_t kFixedFields = 5;
  std::istringstream in{std::string(text)};
  std::string line;
  std::getline(in, line);
  CollectiveSequence sequence{.streams = fields_of(line), .calls = {}};
  const std::size_t num_streams = sequence.streams.size();
  while (std::getline(in, line)) {
    const std::vector<std::string> fields = fields_of(line);
    TESSERA_CHECK(fields.size() == kFixedFields + num_streams,
                  "a collective of {} fields, expected {}: \"{}\"",
                  fields.size(),
                  kFixedFields + num_streams,
                  line);
    CollectiveCall call{.stream = parse_count(fields[0], line),
                        .axis = fields[1],
                        .channel = parse_channel(fields[2], line),
                        .what = fields[3],
                        .after = {},
                        .place = fields[4]};
    TESSERA_CHECK(
        call.stream < num_streams, "stream {} of {}: \"{}\"", call.stream, num_streams, line);
    for (std::size_t stream = 0; stream < num_streams; ++stream) {
      call.after.push_back(parse_count(fields[kFixedFields + stream], line));
    }
    sequence.calls.push_back(std::move(call));
  }
  return sequence;
}

}  // namespace tessera
