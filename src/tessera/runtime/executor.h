#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/program/program.h"

namespace tessera {

// Runs a program's step on a backend. The arena is allocated once, and the views of every segment
// are bound once, however many calls there are; a step allocates nothing.
class Executor {
 public:
  // Borrows both for its life. Errors: kOutOfMemory.
  Executor(const Program& program, Backend& backend);

  // Executes the call list once.
  // Errors: what kernels throw, with segment, microbatch and instruction as context.
  void run_step();

  // Seconds by op over one step, each instruction timed in its place; longest first.
  std::vector<std::pair<std::string, double>> profile_step();

  // The memory of a bound tensor; `instance` is the microbatch of an input. The tensor is
  // contiguous.
  std::span<std::byte> bytes(const Binding& binding, std::int64_t instance = 0);

  // Convenience for scalars.
  void set_scalar(std::string_view scalar, float value);
  float output_scalar(std::string_view output);

  const Program& program() const { return program_; }

  std::int64_t memory_bytes() const { return program_.arena_bytes; }

 private:
  struct Bound {
    const Op* op;
    std::uint32_t first_view;
    std::uint32_t num_operands;
    std::uint32_t num_results;
    std::span<std::byte> workspace;
  };

  // A view of a buffer with several instances: each call moves it to its own.
  struct Moving {
    std::uint32_t view;
    std::byte* first;  // in instance 0
    std::int64_t stride;
  };

  struct BoundSegment {
    std::vector<Bound> instructions;
    std::vector<Moving> moving;
  };

  View bind(const TensorRef& tensor, std::int64_t instance);
  BoundSegment bind_segment(const Segment& segment);
  const BoundSegment& enter(const Call& call);
  void run_call(const Call& call);
  void run_instruction(const Bound& instruction);

  const Program& program_;
  Backend& backend_;
  std::unique_ptr<Arena> arena_;
  std::vector<View> views_;
  std::vector<BoundSegment> segments_;
};

}  // namespace tessera
