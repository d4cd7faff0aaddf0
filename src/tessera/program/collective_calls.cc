#include "tessera/program/collective_calls.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <sstream>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/mesh/mesh.h"
#include "tessera/ops/collective_legs.h"
#include "tessera/program/issue_order.h"
#include "tessera/program/operand_types.h"
#include "tessera/program/stream_clocks.h"

namespace tessera {
namespace {

// Named after the group, with its level where that has several axes (MeshAxis).
bool is_of_pipeline(const AxisSize& axis) {
  const std::string_view group = to_string(AxisGroup::kPipeline);
  return axis.name == group || axis.name.starts_with(format("{}.", group));
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
      return format("operand {} of {}", operand - reader.operands.begin(), info(*reader.op).name);
    }
  }
  const auto output = std::ranges::find(
      program.outputs, result, [](const Binding& binding) { return binding.tensor.buffer; });
  return output == program.outputs.end() ? "" : format("output \"{}\"", output->name);
}

std::string names_of_operands(const Program& program, const Instruction& instruction) {
  std::string names;
  for (const TensorRef& operand : instruction.operands) {
    names += format("{}\"{}\"", names.empty() ? "" : ", ", program[operand.buffer].name);
  }
  return names;
}

// The ends know the tensor by names of their own.
CollectiveCall transfer(const CollectiveUse& use) {
  return {.axis = "",
          .channel = ChannelEnd{.axes = use.axes,
                                .places = *use.channel,
                                .sends = use.kind == CollectiveKind::kSend},
          .what = {.kind = CollectiveKind::kSend,
                   .dtype = use.dtype,
                   .bytes = use.bytes,
                   .count = use.count,
                   .index = use.index}};
}

constexpr std::array kCollectiveKinds = {CollectiveKind::kAllGather,
                                         CollectiveKind::kReduceScatter,
                                         CollectiveKind::kAllReduce,
                                         CollectiveKind::kAllToAll,
                                         CollectiveKind::kRingShift,
                                         CollectiveKind::kSend};

class Walk {
 public:
  explicit Walk(const Program& program)
      : program_(program), order_(issue_order(program)), clocks_(order_, program.streams.size()) {}

  CollectiveSequence run() {
    find_calls();
    sequence_.streams = program_.streams;
    for (const IssueStep& step : order_.steps) {
      clocks_.begin(step);
      if (step.works && !calls_[step.place].empty()) {
        add_calls(step);
      }
      clocks_.end(step);
    }
    return std::move(sequence_);
  }

 private:
  void find_calls() {
    for (const Segment& segment : program_.segments) {
      for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
        calls_.push_back(instruction_calls(program_, segment, i));
      }
    }
  }

  void add_calls(const IssueStep& step) {
    const Call& call = call_of(program_, step);
    const std::string place = place_text(program_, step);
    for (const CollectiveCall& each : calls_[step.place]) {
      CollectiveCall& added = sequence_.calls.emplace_back(each);
      added.stream = step.stream;
      added.what.microbatch = call.microbatch;
      added.after.assign(clocks_.counts().begin(), clocks_.counts().end());
      added.place = place;
      added.step = order_.index_of(step);
      clocks_.tick();
    }
  }

  const Program& program_;
  const IssueOrder order_;
  StreamClocks clocks_;                             // of calls
  std::vector<std::vector<CollectiveCall>> calls_;  // by place
  CollectiveSequence sequence_;
};

std::string_view name_of(std::optional<PartialOp> fold) {
  return !fold ? "" : *fold == PartialOp::kMax ? "max" : "sum";
}

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

// A line of calls, field by field.
class Fields {
 public:
  explicit Fields(const std::string& line) : line_(line), fields_(fields_of(line)) {}

  std::size_t size() const { return fields_.size(); }

  const std::string& text() { return fields_[next_++]; }

  template <class Number>
  Number number() {
    const std::string& field = text();
    Number number = 0;
    const char* const end = field.data() + field.size();
    const auto [stop, error] = std::from_chars(field.data(), end, number);
    require(error == std::errc() && stop == end, field, "a number");
    return number;
  }

  // The one of `all` with the name.
  template <class Value, class Name>
  Value one_of(std::span<const Value> all, const Name& name_of_value, const char* what) {
    const std::string& field = text();
    const auto found = std::ranges::find(all, field, name_of_value);
    require(found != all.end(), field, what);
    return *found;
  }

  std::optional<ChannelEnd> channel() { return parse_channel(text(), line_); }

  DType dtype() {
    const std::string& field = text();
    const std::optional<DType> dtype = parse_dtype(field);
    require(dtype.has_value(), field, "a dtype");
    return *dtype;
  }

 private:
  void require(bool holds, const std::string& found, const char* expected) const {
    TESSERA_CHECK(
        holds, "found \"{}\", expected {}, in the collective \"{}\"", found, expected, line_);
  }

  const std::string& line_;
  std::vector<std::string> fields_;
  std::size_t next_ = 0;
};

CollectiveWork parse_work(Fields& fields) {
  constexpr std::array kFolds = {
      std::optional<PartialOp>(), std::optional(PartialOp::kSum), std::optional(PartialOp::kMax)};
  CollectiveWork work;
  work.kind = fields.one_of<CollectiveKind>(
      kCollectiveKinds, [](CollectiveKind kind) { return name(kind); }, "a collective");
  work.fold = fields.one_of<std::optional<PartialOp>>(kFolds, name_of, "a fold");
  work.dtype = fields.dtype();
  work.bytes = fields.number<std::int64_t>();
  work.count = fields.number<std::int64_t>();
  work.sent = fields.number<std::int64_t>();
  work.ranks = fields.number<std::int64_t>();
  work.index = fields.number<std::int64_t>();
  work.microbatch = fields.number<std::int32_t>();
  work.of = fields.text();
  return work;
}

std::string text_of(const CollectiveWork& work) {
  return format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
                name(work.kind),
                name_of(work.fold),
                name(work.dtype),
                work.bytes,
                work.count,
                work.sent,
                work.ranks,
                work.index,
                work.microbatch,
                work.of);
}

}  // namespace

std::string to_string(const CollectiveWork& work) {
  if (work.kind == CollectiveKind::kSend) {
    return format("transfer {} of {} bytes {} in microbatch {}",
                  work.index,
                  work.bytes,
                  name(work.dtype),
                  work.microbatch);
  }
  return format("{}{}{} of {} bytes {} over {} ranks, {} sent, {} times,{}{} in microbatch {}",
                name(work.kind),
                work.fold ? " " : "",
                name_of(work.fold),
                work.bytes,
                name(work.dtype),
                work.ranks,
                work.sent,
                work.count,
                work.of.empty() ? "" : " of ",
                work.of,
                work.microbatch);
}

std::vector<CollectiveCall> instruction_calls(const Program& program,
                                              const Segment& segment,
                                              std::size_t index) {
  const Instruction& instruction = segment.instructions[index];
  const Collectives uses = collectives(*instruction.op, operand_types(instruction));
  std::vector<CollectiveCall> calls;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const CollectiveUse& use = uses[i];
    if (use.channel) {
      calls.push_back(transfer(use));
      calls.back().use = static_cast<std::uint32_t>(i);
      continue;
    }
    const AxisSizes axes = legs(use);
    for (std::size_t leg = 0; leg < axes.size(); ++leg) {
      const AxisSize& axis = axes[leg];
      if (axis.size > 1) {
        calls.push_back(
            {.axis = axis.name,
             .what = {.kind = use.kind,
                      .fold = use.fold,
                      .dtype = use.dtype,
                      .bytes = use.bytes,
                      .count = use.count,
                      .sent = sent_along(use, axis),
                      .ranks = axis.size,
                      .of = is_of_pipeline(axis) ? use_of(program, segment, index)
                                                 : names_of_operands(program, instruction)},
             .use = static_cast<std::uint32_t>(i),
             .leg = static_cast<std::uint32_t>(leg)});
      }
    }
  }
  return calls;
}

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
    text += format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
                   call.stream,
                   call.step,
                   call.use,
                   call.leg,
                   call.axis,
                   to_string(call.channel),
                   text_of(call.what),
                   call.place);
    for (const std::size_t ended : call.after) {
      text += format("\t{}", ended);
    }
    text += '\n';
  }
  return text;
}

CollectiveSequence parse_collective_calls(std::string_view text) {
  constexpr std::size_t kFixedFields = 17;
  std::istringstream in{std::string(text)};
  std::string line;
  std::getline(in, line);
  CollectiveSequence sequence{.streams = fields_of(line), .calls = {}};
  const std::size_t num_streams = sequence.streams.size();
  while (std::getline(in, line)) {
    Fields fields(line);
    TESSERA_CHECK(fields.size() == kFixedFields + num_streams,
                  "a collective of {} fields, expected {}: \"{}\"",
                  fields.size(),
                  kFixedFields + num_streams,
                  line);
    CollectiveCall& call = sequence.calls.emplace_back();
    call.stream = fields.number<std::size_t>();
    TESSERA_CHECK(
        call.stream < num_streams, "stream {} of {}: \"{}\"", call.stream, num_streams, line);
    call.step = fields.number<std::uint32_t>();
    call.use = fields.number<std::uint32_t>();
    call.leg = fields.number<std::uint32_t>();
    call.axis = fields.text();
    call.channel = fields.channel();
    call.what = parse_work(fields);
    call.place = fields.text();
    for (std::size_t stream = 0; stream < num_streams; ++stream) {
      call.after.push_back(fields.number<std::size_t>());
    }
  }
  return sequence;
}

}  // namespace tessera
