// Programs of every kind of content, drawn at random: text and program are two forms of one thing.

#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/program/program.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// An op from outside with an attribute of every type.
struct LabelAttrs {
  bool flag = false;
  std::int64_t count = 0;
  double factor = 0.0;
  std::string label;
  DType dtype = DType::kF32;

  friend bool operator==(const LabelAttrs&, const LabelAttrs&) = default;
};

OpInfo info(const LabelAttrs&) {
  return {.name = "label", .num_operands = 1};
}

TensorTypes infer(const LabelAttrs& attrs, Types in) {
  return {with_dtype(in[0], attrs.dtype)};
}

FactorRule factors(const LabelAttrs&, Types) {
  return {};
}

Works work(const LabelAttrs&, Types) {
  return {};
}

void backward(const LabelAttrs&, GradBuilder& grad) {
  grad.none("a label");
}

void visit(LabelAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("flag", attrs.flag);
  visitor.field("count", attrs.count);
  visitor.field("factor", attrs.factor);
  visitor.field("label", attrs.label);
  visitor.field("dtype", attrs.dtype);
}

std::int64_t workspace_bytes(const LabelAttrs&, cpu::Context&, Types) {
  return 0;
}

void run(const LabelAttrs&, cpu::Context&, const Views&) {}

// A label with the name of a built-in op.
struct NamesakeAttrs : LabelAttrs {};

OpInfo info(const NamesakeAttrs&) {
  return {.name = "matmul", .num_operands = 1};
}

class RandomProgram {
 public:
  RandomProgram(std::uint32_t seed, const std::vector<conformance::Sample>& samples)
      : random_(seed), samples_(samples) {}

  Program draw() {
    Program program{.name = text(),
                    .streams = {},
                    .pools = {},
                    .event_pools = {},
                    .buffers = {},
                    .segments = {},
                    .calls = {},
                    .inputs = bindings(),
                    .scalars = bindings(),
                    .states = states(),
                    .outputs = bindings(),
                    .num_microbatches = number(8),
                    .arena_bytes = number(std::int64_t{1} << 62)};
    repeat(4, [&] { program.streams.push_back(text()); });
    repeat(3, [&] { program.pools.push_back({.name = text(), .slots = small(9)}); });
    repeat(3, [&] { program.event_pools[{small(50)}] = {small(3)}; });
    repeat(20, [&] { program.buffers.push_back(buffer()); });
    repeat(4, [&] { program.segments.push_back(segment()); });
    repeat(9, [&] {
      program.calls.push_back({.segment = {small(9)}, .microbatch = small(8), .slots = slots()});
    });
    return program;
  }

 private:
  std::int64_t number(std::int64_t below) {
    return std::uniform_int_distribution<std::int64_t>(0, below - 1)(random_);
  }

  std::int32_t small(std::int32_t below) { return static_cast<std::int32_t>(number(below)); }

  bool flip() { return number(2) == 1; }

  template <class Act>
  void repeat(std::int64_t most, Act act) {
    for (std::int64_t left = number(most + 1); left > 0; --left) {
      act();
    }
  }

  // Letters that mean something to the scanner included.
  std::string text() {
    static constexpr std::string_view kLetters = "ab01 \"\\\n;{}()[]#%=,+-.:\t";
    std::string result;
    repeat(8, [&] { result += kLetters[static_cast<std::size_t>(number(kLetters.size()))]; });
    return result;
  }

  Code code() {
    return {.action = static_cast<Action>(number(3)),
            .chunk = small(5),
            .kind = static_cast<CodeKind>(number(3)),
            .piece = small(3)};
  }

  Place place() { return {.code = code(), .instruction = small(1000)}; }

  std::vector<std::int32_t> slots() {
    std::vector<std::int32_t> result;
    repeat(3, [&] { result.push_back(small(4) - 1); });
    return result;
  }

  Buffer buffer() {
    Buffer result{.name = text(),
                  .category = static_cast<Category>(number(6)),
                  .bytes = number(std::int64_t{1} << 50),
                  .pool = {small(4) - 1},
                  .persistent = flip()};
    repeat(3, [&] { result.offsets.push_back(number(1000) - 1); });
    if (!result.persistent) {
      result.begin = place();
      result.end = place();
    }
    return result;
  }

  TensorRef tensor(TensorType type) {
    TensorRef result{.buffer = {small(100)},
                     .offset = number(std::int64_t{1} << 40),
                     .type = std::move(type),
                     .strides = {}};
    for (Dim& dim : result.type.dims) {
      result.strides.push_back(number(1 << 20) - 1000);
      if (number(8) == 0) {
        dim.count = ValueId{small(1000)};
      }
    }
    return result;
  }

  std::vector<TensorRef> tensors(const TensorTypes& types) {
    std::vector<TensorRef> result;
    for (const TensorType& type : types) {
      result.push_back(tensor(type));
    }
    return result;
  }

  std::vector<Binding> bindings() {
    std::vector<Binding> result;
    repeat(4, [&] {
      const TensorTypes& types = sample().operands;
      result.push_back({.name = text(), .tensor = tensor(types.empty() ? TensorType() : types[0])});
    });
    return result;
  }

  std::vector<StateBinding> states() {
    std::vector<StateBinding> result;
    for (Binding& binding : bindings()) {
      State state{.role = static_cast<StateRole>(number(9)),
                  .use = small(3),
                  .wire = {.formats = WireFormats(static_cast<std::size_t>(number(3)),
                                                  static_cast<WireFormat>(number(4))),
                           .block = number(1000)}};
      state.parameter = is_of_model(state.role) ? binding.name : text();
      result.push_back({std::move(binding), std::move(state)});
    }
    return result;
  }

  const conformance::Sample& sample() {
    return samples_[static_cast<std::size_t>(number(static_cast<std::int64_t>(samples_.size())))];
  }

  Instruction instruction() {
    const conformance::Sample& drawn = sample();
    Instruction result{.op = drawn.op,
                       .operands = tensors(drawn.operands),
                       .results = tensors(infer(*drawn.op, drawn.operands)),
                       .stream = {small(4)}};
    if (number(4) == 0) {
      result.op = make_custom_op(
          LabelAttrs{.flag = flip(),
                     .count = number(std::int64_t{1} << 62) - (std::int64_t{1} << 61),
                     .factor = std::normal_distribution<double>(0.0, 1e6)(random_),
                     .label = text(),
                     .dtype = static_cast<DType>(number(7))});
    }
    if (flip()) {
      result.workspace = {small(100)};
    }
    repeat(2, [&] { result.waits.push_back({small(50)}); });
    repeat(2, [&] { result.signals.push_back({small(50)}); });
    result.only_last = flip();
    return result;
  }

  Segment segment() {
    Segment result{.name = text(), .code = code(), .instructions = {}};
    repeat(8, [&] { result.instructions.push_back(instruction()); });
    return result;
  }

  std::mt19937 random_;
  const std::vector<conformance::Sample>& samples_;
};

TEST(ProgramText, RandomProgramsPrintParseAndCompareEqual) {
  const std::vector<conformance::Sample> samples = conformance::all_samples();
  std::vector<OpRef> custom_ops = {make_custom_op(LabelAttrs{})};
  for (const conformance::Sample& sample : samples) {
    if (sample.op->get_if<CustomOp>() != nullptr) {
      custom_ops.push_back(sample.op);
    }
  }
  std::size_t num_instructions = 0;
  for (std::uint32_t seed = 0; seed < 340; ++seed) {
    const Program program = RandomProgram(seed, samples).draw();
    const std::string text = to_string(program);
    const Program parsed = parse_program(text, custom_ops);
    EXPECT_TRUE(equal(program, parsed)) << text;
    EXPECT_EQ(to_string(parsed), text);
    for (const Segment& segment : program.segments) {
      num_instructions += segment.instructions.size();
    }
  }
  EXPECT_GT(num_instructions, samples.size());
}

// equal() sees every field: no two of many random programs are alike, nor one with a change.
TEST(ProgramText, ChangedProgramsDiffer) {
  const std::vector<conformance::Sample> samples = conformance::all_samples();
  const auto changed = [&](auto change) {
    for (std::uint32_t seed = 0;; ++seed) {
      Program program = RandomProgram(seed, samples).draw();
      if (program.segments.empty() || program.segments[0].instructions.empty() ||
          program.calls.empty() || program.buffers.empty() || program.outputs.empty() ||
          program.states.empty() || program.states[0].state.role == StateRole::kParameter) {
        continue;
      }
      const Program before = program;
      change(program);
      return !equal(before, program) && to_string(before) != to_string(program);
    }
  };
  EXPECT_TRUE(changed([](Program& p) { p.streams.emplace_back("s"); }));
  EXPECT_TRUE(changed([](Program& p) { p.pools.push_back({.name = "p"}); }));
  EXPECT_TRUE(changed([](Program& p) { p.event_pools[{77}] = {0}; }));
  EXPECT_TRUE(changed([](Program& p) { ++p.buffers[0].pool.index; }));
  EXPECT_TRUE(changed([](Program& p) { p.buffers[0].offsets.push_back(7); }));
  EXPECT_TRUE(changed([](Program& p) { p.calls[0].slots.push_back(7); }));
  EXPECT_TRUE(changed([](Program& p) { p.outputs.pop_back(); }));
  EXPECT_TRUE(changed([](Program& p) { ++p.outputs[0].tensor.offset; }));
  EXPECT_TRUE(changed([](Program& p) { p.states[0].state.parameter += "x"; }));
  EXPECT_TRUE(changed([](Program& p) { p.states[0].state.role = StateRole::kParameter; }));
  EXPECT_TRUE(changed([](Program& p) { ++p.states[0].state.use; }));
  EXPECT_TRUE(changed([](Program& p) { ++p.states[0].state.wire.block; }));
  EXPECT_TRUE(changed([](Program& p) { p.states[0].state.wire.formats.resize(7); }));
  EXPECT_TRUE(changed([](Program& p) { ++p.segments[0].code.chunk; }));
  EXPECT_TRUE(changed([](Program& p) { ++p.segments[0].instructions[0].stream.index; }));
  EXPECT_TRUE(changed([](Program& p) { p.segments[0].instructions[0].waits.push_back({77}); }));
  EXPECT_TRUE(changed([](Program& p) { p.segments[0].instructions[0].signals.push_back({77}); }));
  EXPECT_TRUE(changed([](Program& p) { p.segments[0].instructions[0].workspace = {777}; }));
  EXPECT_TRUE(changed([](Program& p) { p.segments[0].instructions[0].only_last ^= true; }));
  EXPECT_TRUE(changed([](Program& p) { ++p.segments[0].instructions[0].results[0].offset; }));
  EXPECT_TRUE(changed([](Program& p) {
    p.segments[0].instructions[0].op = make_custom_op(LabelAttrs{.label = "new"});
  }));
}

TEST(ProgramText, RefusesCustomOpsWithTheNameOfABuiltInOne) {
  try {
    make_custom_op(NamesakeAttrs{});
    FAIL() << "made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("op matmul: found the name of a built-in op"));
  }
}

TEST(ProgramText, RefusesNumbersOfMoreThan32Bits) {
  try {
    parse_program("program \"p\" microbatches 1 arena 0 {\n  call 4294967296 microbatch 0\n}\n");
    FAIL() << "parsed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(),
                HasSubstr("line 2, column 8: found '4294967296 microbatch 0', "
                          "expected an integer of 32 bits"));
  }
}

}  // namespace
}  // namespace tessera
