#include <array>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ir/text_scanner.h"
#include "tessera/program/program.h"

// The text form of a program:
//   program "llama" microbatches 2 arena 4096 file 8192 {
//     stream "compute"
//     pool 0 "inputs" 2 slots
//     event 3 pool 0
//     buffer 0 "tokens" input 64 bytes pool 0 at (0, 256) persistent
//     buffer 1 "%7" activation 512 bytes at (512) live (forward 0, 1) .. (backward 0, 4)
//     buffer 2 "moment1.w" optimizer 32 bytes in file pages at (0) persistent
//     input "tokens" = #0+0 i32[batch=1, seq=8] strides(8, 1)
//     state "w" parameter = #3+0 f32[embed=8] strides(1)
//     state "moment1.w" moment1 of "w" = #4+0 f32[embed=8] strides(1)
//     segment 0 "forward" forward 0 {
//       #1+0 f32[...] strides(...) = embedding(#3+0 ..., #0+0 ...) workspace 5 stream 0 layer 2
//       wait 1 signal 2
//     }
//     call 0 microbatch 1 slots (1)
//   }
namespace tessera {
namespace {

std::string join_tensors(const std::vector<TensorRef>& tensors) {
  std::string text;
  for (const TensorRef& tensor : tensors) {
    text += (text.empty() ? "" : ", ") + to_string(tensor);
  }
  return text;
}

template <class Number>
std::string numbers_text(const std::vector<Number>& numbers) {
  std::string text;
  for (const Number number : numbers) {
    text += format("{}{}", text.empty() ? "" : ", ", number);
  }
  return "(" + text + ")";
}

std::string code_text(const Code& code) {
  std::string text = format("{} {}", name(code.action), code.chunk);
  if (code.kind != CodeKind::kWork) {
    text += format(" {}", name(code.kind));
  }
  if (code.piece > 0) {
    text += format(" piece {}", code.piece);
  }
  return text;
}

std::string place_text(const Place& place) {
  return format("({}, {})", code_text(place.code), place.instruction);
}

std::string buffer_text(std::size_t index, const Buffer& buffer) {
  return format("buffer {} {} {} {} bytes{}{}{}{} at {} {}",
                index,
                quote(buffer.name),
                name(buffer.category),
                buffer.bytes,
                buffer.space == Space::kDevice ? "" : format(" in {}", name(buffer.space)),
                buffer.pages ? " pages" : "",
                buffer.leaves ? " leaves" : "",
                buffer.pool.valid() ? format(" pool {}", buffer.pool.index) : std::string(),
                numbers_text(buffer.offsets),
                buffer.persistent
                    ? std::string("persistent")
                    : format("live {} .. {}", place_text(buffer.begin), place_text(buffer.end)));
}

std::string instruction_text(const Instruction& instruction) {
  std::string text = format("{}{}{}({})",
                            join_tensors(instruction.results),
                            instruction.results.empty() ? "" : " = ",
                            to_string(*instruction.op),
                            join_tensors(instruction.operands));
  if (instruction.workspace.valid()) {
    text += format(" workspace {}", instruction.workspace.index);
  }
  text += format(" stream {}", instruction.stream.index);
  if (instruction.layer >= 0) {
    text += format(" layer {}", instruction.layer);
  }
  for (const EventId event : instruction.waits) {
    text += format(" wait {}", event.index);
  }
  for (const EventId event : instruction.signals) {
    text += format(" signal {}", event.index);
  }
  text += instruction.only_last ? " only_last" : "";
  return text;
}

using BindingLists = std::array<std::pair<std::string_view, std::vector<Binding> Program::*>, 3>;

constexpr BindingLists kBindingLists = {
    {{"input", &Program::inputs}, {"scalar", &Program::scalars}, {"output", &Program::outputs}}};

std::string bindings_text(std::string_view keyword, const std::vector<Binding>& bindings) {
  std::string text;
  for (const Binding& binding : bindings) {
    text += format("  {} {} = {}\n", keyword, quote(binding.name), to_string(binding.tensor));
  }
  return text;
}

std::string states_text(const std::vector<StateBinding>& states) {
  std::string text;
  for (const StateBinding& binding : states) {
    text += format("  state {} {}{} = {}\n",
                   quote(binding.name),
                   name(binding.state.role),
                   owner_text(binding.state),
                   to_string(binding.tensor));
  }
  return text;
}

class ProgramParser {
 public:
  ProgramParser(std::string_view text, std::span<const OpRef> custom_ops)
      : scanner_(text, custom_ops) {}

  Program parse() {
    scanner_.expect("program");
    program_.name = scanner_.quoted();
    scanner_.expect("microbatches");
    program_.num_microbatches = scanner_.integer();
    scanner_.expect("arena");
    program_.arena_bytes = scanner_.integer();
    for (const Space space : kOtherSpaces) {
      program_.bytes_in(space) = scanner_.accept(name(space)) ? scanner_.integer() : 0;
    }
    scanner_.expect("{");
    program_.streams.clear();
    while (!scanner_.accept("}")) {
      statement();
    }
    scanner_.end();
    return std::move(program_);
  }

 private:
  void statement() {
    if (scanner_.accept("stream")) {
      program_.streams.push_back(scanner_.quoted());
      return;
    }
    if (scanner_.accept("pool")) {
      pool();
      return;
    }
    if (scanner_.accept("event")) {
      const EventId event = {scanner_.index()};
      scanner_.expect("pool");
      program_.event_pools[event] = {scanner_.index()};
      return;
    }
    if (scanner_.accept("buffer")) {
      buffer();
      return;
    }
    if (scanner_.accept("segment")) {
      segment();
      return;
    }
    if (scanner_.accept("call")) {
      call();
      return;
    }
    if (scanner_.accept("state")) {
      state();
      return;
    }
    for (const auto& [keyword, list] : kBindingLists) {
      if (scanner_.accept(keyword)) {
        std::string binding_name = scanner_.quoted();
        scanner_.expect("=");
        (program_.*list).push_back({.name = std::move(binding_name), .tensor = tensor()});
        return;
      }
    }
    scanner_.fail_expected("a statement");
  }

  void state() {
    StateBinding result;
    result.name = scanner_.quoted();
    const auto role = accept_role(scanner_);
    if (!role) {
      scanner_.fail_expected("the role of a state");
    }
    result.state = parse_owner(scanner_, *role, result.name);
    scanner_.expect("=");
    result.tensor = tensor();
    program_.states.push_back(std::move(result));
  }

  void pool() {
    if (scanner_.integer() != static_cast<std::int64_t>(program_.pools.size())) {
      scanner_.fail_expected("pools in order");
    }
    Pool result;
    result.name = scanner_.quoted();
    result.slots = scanner_.index();
    scanner_.expect("slots");
    program_.pools.push_back(std::move(result));
  }

  Code code() {
    Code result;
    result.action = one_of(kActions, "an action");
    result.chunk = scanner_.index();
    for (const CodeKind kind : kCodeKinds) {
      result.kind = scanner_.accept(name(kind)) ? kind : result.kind;
    }
    result.piece = scanner_.accept("piece") ? scanner_.index() : 0;
    return result;
  }

  Place place() {
    scanner_.expect("(");
    Place result = {.code = code()};
    scanner_.expect(",");
    result.instruction = scanner_.index();
    scanner_.expect(")");
    return result;
  }

  template <class Number>
  std::vector<Number> numbers(Number (TextScanner::*read)()) {
    std::vector<Number> result;
    scanner_.expect("(");
    while (!scanner_.accept(")")) {
      if (!result.empty()) {
        scanner_.expect(",");
      }
      result.push_back((scanner_.*read)());
    }
    return result;
  }

  template <class Enum, std::size_t N>
  Enum one_of(const std::array<Enum, N>& candidates, std::string_view what) {
    for (const Enum candidate : candidates) {
      if (scanner_.accept(name(candidate))) {
        return candidate;
      }
    }
    scanner_.fail_expected(what);
  }

  void buffer() {
    if (scanner_.integer() != static_cast<std::int64_t>(program_.buffers.size())) {
      scanner_.fail_expected("buffers in order");
    }
    Buffer result;
    result.name = scanner_.quoted();
    result.category = one_of(kCategories, "a category");
    result.bytes = scanner_.integer();
    scanner_.expect("bytes");
    if (scanner_.accept("in")) {
      result.space = one_of(kOtherSpaces, "a space other than the device's");
    }
    result.pages = scanner_.accept("pages");
    result.leaves = scanner_.accept("leaves");
    if (scanner_.accept("pool")) {
      result.pool = {scanner_.index()};
    }
    scanner_.expect("at");
    result.offsets = numbers(&TextScanner::integer);
    result.persistent = scanner_.accept("persistent");
    if (!result.persistent) {
      scanner_.expect("live");
      result.begin = place();
      scanner_.expect("..");
      result.end = place();
    }
    program_.buffers.push_back(std::move(result));
  }

  TensorRef tensor() {
    scanner_.expect("#");
    return tensor_in(scanner_.index());
  }

  TensorRef tensor_in(std::int32_t buffer) {
    TensorRef result;
    result.buffer = {buffer};
    scanner_.expect_prefix("+");
    result.offset = scanner_.integer();
    result.type = scanner_.tensor_type();
    scanner_.expect("strides");
    result.strides = numbers(&TextScanner::integer);
    return result;
  }

  void segment() {
    if (scanner_.integer() != static_cast<std::int64_t>(program_.segments.size())) {
      scanner_.fail_expected("segments in order");
    }
    Segment result;
    result.name = scanner_.quoted();
    result.code = code();
    scanner_.expect("{");
    while (!scanner_.accept("}")) {
      result.instructions.push_back(instruction());
    }
    program_.segments.push_back(std::move(result));
  }

  Instruction instruction() {
    std::vector<TensorRef> results;
    if (scanner_.accept("#")) {
      results.push_back(tensor_in(scanner_.index()));
      while (scanner_.accept(",")) {
        results.push_back(tensor());
      }
      scanner_.expect("=");
    }
    Instruction result{.op = parse_op(scanner_), .operands = {}, .results = std::move(results)};
    scanner_.expect("(");
    while (!scanner_.accept(")")) {
      if (!result.operands.empty()) {
        scanner_.expect(",");
      }
      result.operands.push_back(tensor());
    }
    if (scanner_.accept("workspace")) {
      result.workspace = {scanner_.index()};
    }
    scanner_.expect("stream");
    result.stream = {scanner_.index()};
    if (scanner_.accept("layer")) {
      result.layer = scanner_.index();
    }
    while (scanner_.accept("wait")) {
      result.waits.push_back({scanner_.index()});
    }
    while (scanner_.accept("signal")) {
      result.signals.push_back({scanner_.index()});
    }
    result.only_last = scanner_.accept("only_last");
    return result;
  }

  void call() {
    Call result;
    result.segment = {scanner_.index()};
    scanner_.expect("microbatch");
    result.microbatch = scanner_.index();
    scanner_.expect("slots");
    result.slots = numbers(&TextScanner::index);
    program_.calls.push_back(result);
  }

  TextScanner scanner_;
  Program program_;
};

}  // namespace

std::string to_string(const TensorRef& tensor) {
  return format("#{}+{} {} strides{}",
                tensor.buffer.index,
                tensor.offset,
                to_string(tensor.type),
                numbers_text(tensor.strides));
}

std::string to_string(const Program& program) {
  std::string text = format("program {} microbatches {} arena {}",
                            quote(program.name),
                            program.num_microbatches,
                            program.arena_bytes);
  for (const Space space : kOtherSpaces) {
    const std::int64_t bytes = program.bytes_in(space);
    text += bytes > 0 ? format(" {} {}", name(space), bytes) : "";
  }
  text += " {\n";
  for (const std::string& stream : program.streams) {
    text += format("  stream {}\n", quote(stream));
  }
  for (std::size_t i = 0; i < program.pools.size(); ++i) {
    text +=
        format("  pool {} {} {} slots\n", i, quote(program.pools[i].name), program.pools[i].slots);
  }
  for (const auto& [event, pool] : program.event_pools) {
    text += format("  event {} pool {}\n", event.index, pool.index);
  }
  for (std::size_t i = 0; i < program.buffers.size(); ++i) {
    text += format("  {}\n", buffer_text(i, program.buffers[i]));
  }
  text += bindings_text("input", program.inputs) + bindings_text("scalar", program.scalars) +
          states_text(program.states) + bindings_text("output", program.outputs);
  for (std::size_t i = 0; i < program.segments.size(); ++i) {
    const Segment& segment = program.segments[i];
    text += format("  segment {} {} {} {{\n", i, quote(segment.name), code_text(segment.code));
    for (const Instruction& instruction : segment.instructions) {
      text += format("    {}\n", instruction_text(instruction));
    }
    text += "  }\n";
  }
  for (const Call& call : program.calls) {
    text += format("  call {} microbatch {} slots {}\n",
                   call.segment.index,
                   call.microbatch,
                   numbers_text(call.slots));
  }
  return text + "}\n";
}

Program parse_program(std::string_view text, std::span<const OpRef> custom_ops) {
  return ProgramParser(text, custom_ops).parse();
}

}  // namespace tessera
