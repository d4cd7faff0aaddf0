#include "tessera/runtime/bound_program.h"

#include <cstddef>
#include <limits>
#include <ranges>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ops/all_ops.h"
#include "tessera/ops/in_order.h"

namespace tessera {

BoundProgram::BoundProgram(const Program& program, const ProgramMemory& memory, Backend& backend)
    : program_(program), backend_(backend) {
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      bound_.push_back(bind(instruction, memory));
      require_workspace(bound_.back());
    }
  }
  if (memory.file() != nullptr) {
    open_queues(*memory.file());
  }
}

// A queue for each stream that moves anything between a file and memory.
void BoundProgram::open_queues(FileArena& file) {
  std::map<StreamId, std::map<std::byte*, std::span<std::byte>>> memory;  // by where it begins
  std::size_t place = 0;
  for (const Segment& segment : program_.segments) {
    for (const Instruction& instruction : segment.instructions) {
      const Bound& bound = bound_[place++];
      if (!bound.is_of_file) {
        continue;
      }
      const bool fetches = instruction.op->get_if<FetchAttrs>() != nullptr;
      const auto& tensors = fetches ? instruction.results : instruction.operands;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const View& view = views_[bound.first_view + (fetches ? bound.num_operands : 0) + i];
        const Buffer& buffer = program_[tensors[i].buffer];
        std::byte* const begin = view.as<std::byte>() - tensors[i].offset;
        memory[instruction.stream][begin] = {begin,
                                             static_cast<std::size_t>(buffer.padded_bytes())};
      }
    }
  }
  for (const auto& [stream, by_begin] : memory) {
    const auto spans = std::views::values(by_begin);
    const std::vector<std::span<std::byte>> known(spans.begin(), spans.end());
    queues_.emplace(stream, std::make_unique<FileArena::Queue>(file, known));
  }
}

template <class Address>
BoundProgram::Moving BoundProgram::moving(const Buffer& buffer, const Address& address_in) {
  TESSERA_CHECK(addresses_.size() <= std::numeric_limits<std::uint32_t>::max(),
                "a program of {} addresses",
                addresses_.size());
  const Moving result = {.view = static_cast<std::uint32_t>(views_.size()),
                         .first_address = static_cast<std::uint32_t>(addresses_.size()),
                         .pool = buffer.pool};
  for (std::size_t slot = 0; slot < buffer.offsets.size(); ++slot) {
    addresses_.push_back(address_in(slot));
  }
  return result;
}

std::byte* BoundProgram::address(const Moving& moving, const Call& call) const {
  const auto slot = static_cast<std::uint32_t>(Program::slot_of(call, moving.pool));
  return addresses_[moving.first_address + slot];
}

BoundProgram::Bound BoundProgram::bind(const Instruction& instruction,
                                       const ProgramMemory& memory) {
  Bound bound{.op = instruction.op.get(),
              .first_view = static_cast<std::uint32_t>(views_.size()),
              .num_operands = static_cast<std::uint32_t>(instruction.operands.size()),
              .num_results = static_cast<std::uint32_t>(instruction.results.size()),
              .first_moving = static_cast<std::uint32_t>(moving_.size()),
              .num_moving = 0,
              .is_of_file = false,
              .workspace = {},
              .moving_workspace = {}};
  for (const auto* tensors : {&instruction.operands, &instruction.results}) {
    for (const TensorRef& tensor : *tensors) {
      bound.is_of_file = bound.is_of_file || program_[tensor.buffer].space == Space::kFile;
      if (const Buffer& buffer = program_[tensor.buffer]; buffer.offsets.size() > 1) {
        moving_.push_back(moving(buffer, [&](std::size_t slot) {
          return memory.data(tensor, static_cast<std::int64_t>(slot));
        }));
        ++bound.num_moving;
      }
      views_.push_back(memory.view(tensor));
    }
  }
  if (instruction.workspace.valid()) {
    bound.workspace = memory.workspace(instruction.workspace, 0);
    if (const Buffer& buffer = program_[instruction.workspace]; buffer.offsets.size() > 1) {
      bound.moving_workspace = moving(buffer, [&](std::size_t slot) {
        return memory.workspace(instruction.workspace, slot).data();
      });
    }
  }
  return bound;
}

// A kernel that has less than it needs writes over what lies beside.
void BoundProgram::require_workspace(const Bound& bound) const {
  const std::span<const View> views = std::span(views_).subspan(bound.first_view);
  const std::int64_t needed =
      backend_.workspace_bytes(*bound.op,
                               views.first(bound.num_operands),
                               views.subspan(bound.num_operands, bound.num_results));
  TESSERA_CHECK(std::cmp_less_equal(needed, bound.workspace.size()),
                "{} needs {} bytes of workspace on this backend and has {}: the program was "
                "compiled for another target, or for another number of threads",
                info(*bound.op).name,
                needed,
                bound.workspace.size());
}

void BoundProgram::execute(const IssueStep& step) {
  if (!step.works) {
    return;
  }
  const Call& call = call_of(program_, step);
  const Bound& bound = bound_[step.place];
  for (std::uint32_t i = 0; i < bound.num_moving; ++i) {
    const Moving& moving = moving_[bound.first_moving + i];
    views_[moving.view].data = address(moving, call);
  }
  std::span<std::byte> workspace = bound.workspace;
  if (bound.moving_workspace.pool.valid()) {
    workspace = {address(bound.moving_workspace, call), workspace.size()};
  }
  const View* views = views_.data() + bound.first_view;
  with_context([&] { return place(step); },
               [&] {
                 if (bound.is_of_file) {
                   move_file(bound, step.stream_id());
                   return;
                 }
                 backend_.run(*bound.op,
                              {.in = {views, bound.num_operands},
                               .out = {views + bound.num_operands, bound.num_results},
                               .workspace = workspace},
                              step.stream_id());
               });
}

void BoundProgram::move_file(const Bound& bound, StreamId stream) {
  const std::span<const View> views = std::span(views_).subspan(bound.first_view);
  const std::span<const View> from = views.first(bound.num_operands);
  const std::span<const View> to = views.subspan(bound.num_operands, bound.num_results);
  FileArena::Queue& queue = *queues_.at(stream);
  bound.op->get_if<FetchAttrs>() != nullptr ? queue.fetch(from, to) : queue.store(from, to);
}

std::span<std::byte> BoundProgram::only_tensor(const IssueStep& step) const {
  const Bound& bound = bound_[step.place];
  TESSERA_CHECK(bound.num_operands + bound.num_results == 1,
                "{} has {} operands and {} results, expected one tensor",
                place(step),
                bound.num_operands,
                bound.num_results);
  View view = views_[bound.first_view];
  if (bound.num_moving > 0) {
    view.data = address(moving_[bound.first_moving], call_of(program_, step));
  }
  return with_context([&] { return place(step); }, [&] { return memory_of(view); });
}

std::string BoundProgram::why_threads() const {
  for (const auto& [stream, queue] : queues_) {
    if (!queue->why_threads().empty()) {
      return queue->why_threads();
    }
  }
  return "";
}

std::string BoundProgram::place(const IssueStep& step) const {
  const Call& call = call_of(program_, step);
  return format("segment {}, microbatch {}, instruction {}: {}",
                program_[call.segment].name,
                call.microbatch,
                step.instruction,
                info(*bound_[step.place].op).name);
}

}  // namespace tessera
