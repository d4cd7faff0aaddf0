#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/ir/op.h"
#include "tessera/ir/view.h"
#include "tessera/program/issue_order.h"
#include "tessera/program/program.h"
#include "tessera/runtime/file_arena.h"
#include "tessera/runtime/program_memory.h"

namespace tessera {

// A program's instructions with the addresses of their tensors, made once: the views of every
// segment are bound, however many calls there are. Running a step of one allocates nothing.
class BoundProgram {
 public:
  // Borrows the program and the backend for its life; `memory` is the program's. Errors: kInternal
  // where the backend needs more workspace than the program was compiled with.
  BoundProgram(const Program& program, const ProgramMemory& memory, Backend& backend);

  // Gives the instruction to the backend, where it does its work in this call. One thread at a time
  // executes those of a stream, and several streams may run at once. Errors: what kernels throw,
  // with segment, microbatch and instruction as context.
  void execute(const IssueStep& step);

  // The memory of the only operand or result of a send or receive, in this call.
  std::span<std::byte> only_tensor(const IssueStep& step) const;

  // Why threads read and write the file that things lie in; empty where io_uring does, or where
  // nothing lies in one.
  std::string why_threads() const;

  // "segment forward, microbatch 0, instruction 3: add".
  std::string place(const IssueStep& step) const;

 private:
  // What each call moves to its own slot: the view of a buffer with several, or the workspace.
  struct Moving {
    std::uint32_t view;
    std::uint32_t first_address;  // by slot, into addresses_
    PoolId pool;
  };

  struct Bound {
    const Op* op;
    std::uint32_t first_view;
    std::uint32_t num_operands;
    std::uint32_t num_results;
    std::uint32_t first_moving;
    std::uint32_t num_moving;
    bool is_of_file = false;  // fetches from it or stores to it
    std::span<std::byte> workspace;
    Moving moving_workspace;  // of no pool where it has one slot
  };

  // `address_in(slot)` of a buffer with several slots.
  template <class Address>
  Moving moving(const Buffer& buffer, const Address& address_in);
  std::byte* address(const Moving& moving, const Call& call) const;
  Bound bind(const Instruction& instruction, const ProgramMemory& memory);
  void require_workspace(const Bound& bound) const;
  void open_queues(FileArena& file);
  void move_file(const Bound& bound, StreamId stream);

  const Program& program_;
  Backend& backend_;
  std::vector<View> views_;
  std::vector<Moving> moving_;
  std::vector<std::byte*> addresses_;
  std::vector<Bound> bound_;                                      // by place
  std::map<StreamId, std::unique_ptr<FileArena::Queue>> queues_;  // of streams that move files
};

}  // namespace tessera
