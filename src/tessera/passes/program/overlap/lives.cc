#include "tessera/passes/program/overlap/lives.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "tessera/base/format.h"
#include "tessera/passes/program/lower.h"

namespace tessera {
namespace {

// A place, and where it comes in a microbatch.
struct Ranked {
  std::size_t code = 0;
  CodeKind kind = CodeKind::kWork;
  std::int32_t instruction = 0;  // of the whole work

  // Gathers ahead of a code come before its work, its fence after that.
  std::int32_t order() const {
    return kind == CodeKind::kGather ? -1 : kind == CodeKind::kWork ? 0 : 1;
  }

  bool is_before(const Ranked& other) const {
    return std::tuple(code, order(), instruction) <
           std::tuple(other.code, other.order(), other.instruction);
  }
};

class LivesByUse {
 public:
  LivesByUse(Program& program, std::span<const OverlappedCode> codes)
      : program_(program),
        codes_(codes),
        begins_(program.buffers.size()),
        ends_(program.buffers.size()) {}

  void add_uses(std::size_t code) {
    const OverlappedCode& of = codes_[code];
    for (std::size_t i = 0; i < of.gathers.size(); ++i) {
      use(of.gathers[i], {code, CodeKind::kGather, static_cast<std::int32_t>(i)});
    }
    for (const Segment& segment : of.body.variants) {
      for (std::int32_t i = 0; i < of.body.size(); ++i) {
        use(segment.instructions[static_cast<std::size_t>(i)], {code, CodeKind::kWork, i});
      }
    }
  }

  void extend(std::size_t code, const Finish& finish) {
    const Ranked end = finish.instruction ? Ranked{code, CodeKind::kWork, *finish.instruction}
                                          : Ranked{code, CodeKind::kFence, 0};
    for (const Instruction* const form : finish.forms) {
      for_each_buffer(*form, [&](BufferId id) { touch(id, end); });
    }
  }

  // A fence waits for what its own microbatch has left, not for the one after.
  void add_fence_pools() {
    for (const OverlappedCode& code : codes_) {
      if (code.fence) {
        const PoolId left = pool(to_string(code_of(code.body.code, CodeKind::kFence)));
        for (const EventId event : code.fence->waits) {
          program_.event_pools[event] = left;
        }
      }
    }
  }

  void write() {
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
      if (Buffer& buffer = program_.buffers[i]; !buffer.persistent && begins_[i]) {
        buffer.begin = place(*begins_[i]);
        buffer.end = place(*ends_[i]);
        choose_pool(buffer);
      }
    }
  }

 private:
  void use(const Instruction& instruction, const Ranked& at) {
    for_each_buffer(instruction, [&](BufferId id) { touch(id, at); });
    if (instruction.workspace.valid()) {
      program_.buffers[instruction.workspace.at()].name = workspace_name(place(at));
    }
  }

  void touch(BufferId id, const Ranked& at) {
    std::optional<Ranked>& begin = begins_[id.at()];
    std::optional<Ranked>& end = ends_[id.at()];
    begin = !begin || at.is_before(*begin) ? at : begin;
    end = !end || end->is_before(at) ? at : end;
  }

  Place place(const Ranked& at) const {
    const OverlappedCode& code = codes_[at.code];
    return at.kind == CodeKind::kWork
               ? code.place(at.instruction)
               : Place{.code = code_of(code.body.code, at.kind), .instruction = at.instruction};
  }

  void choose_pool(Buffer& buffer) {
    if (buffer.end.code.kind == CodeKind::kFence) {
      buffer.pool = pool(to_string(buffer.end.code));
    } else if (buffer.begin.code.kind == CodeKind::kGather) {
      buffer.pool = pool(to_string(buffer.begin.code));
    }
  }

  PoolId pool(const std::string& name) {
    const auto found = std::ranges::find(program_.pools, name, &Pool::name);
    const PoolId id = PoolId::of(static_cast<std::size_t>(found - program_.pools.begin()));
    if (found == program_.pools.end()) {
      program_.pools.push_back({.name = name});
    }
    return id;
  }

  Program& program_;
  std::span<const OverlappedCode> codes_;
  std::vector<std::optional<Ranked>> begins_;  // by buffer
  std::vector<std::optional<Ranked>> ends_;
};

}  // namespace

Code code_of(const Code& work, CodeKind kind) {
  Code code = work;
  code.kind = kind;
  code.piece = 0;
  return code;
}

void set_lives(Program& program,
               std::span<const OverlappedCode> codes,
               std::span<const std::vector<Finish>> finishes) {
  LivesByUse lives(program, codes);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    lives.add_uses(i);
  }
  for (std::size_t i = 0; i < codes.size(); ++i) {
    for (const Finish& finish : finishes[i]) {
      lives.extend(i, finish);
    }
  }
  lives.write();
  lives.add_fence_pools();
}

}  // namespace tessera
