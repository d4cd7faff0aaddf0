#include "tessera/passes/program/overlap/code_body.h"

#include <algorithm>
#include <utility>

#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

bool touches(const std::vector<TensorRef>& tensors, BufferId buffer) {
  return std::ranges::any_of(tensors, [&](const TensorRef& t) { return t.buffer == buffer; });
}

bool writes_what_touches(const Instruction& writer, const Instruction& other) {
  return std::ranges::any_of(writer.results, [&](const TensorRef& result) {
    return touches(other.operands, result.buffer) || touches(other.results, result.buffer);
  });
}

}  // namespace

bool is_gather(const Instruction& instruction) {
  return instruction.op->get_if<GatherSlicesAttrs>() != nullptr;
}

bool is_reduction(const Instruction& instruction) {
  return instruction.op->get_if<ReduceSlicesAttrs>() != nullptr ||
         instruction.op->get_if<AllReduceSlicesAttrs>() != nullptr;
}

bool conflict(const Instruction& a, const Instruction& b) {
  return writes_what_touches(a, b) || writes_what_touches(b, a);
}

void CodeBody::find_blocks() {
  blocks.clear();
  std::int64_t block = -1;
  std::optional<std::int32_t> layer;
  for (std::int32_t i = 0; i < size(); ++i) {
    const Instruction& instruction = (*this)[i];
    if (is_comm(instruction)) {
      layer = code.action == Action::kUpdate ? std::nullopt : layer;
    } else if (layer != instruction.layer) {
      ++block;
      layer = instruction.layer;
    }
    blocks.push_back(std::max<std::int64_t>(block, 0));
  }
}

Instruction CodeBody::extract(std::int32_t i) {
  Instruction result = (*this)[i];
  for (Segment& segment : variants) {
    segment.instructions.erase(segment.instructions.begin() + i);
  }
  return result;
}

void CodeBody::remove(const std::vector<bool>& which) {
  for (Segment& segment : variants) {
    std::vector<Instruction> left;
    for (std::size_t i = 0; i < which.size(); ++i) {
      if (!which[i]) {
        left.push_back(std::move(segment.instructions[i]));
      }
    }
    segment.instructions = std::move(left);
  }
}

void CodeBody::insert(std::int32_t i, const Instruction& instruction) {
  for (Segment& segment : variants) {
    segment.instructions.insert(segment.instructions.begin() + i, instruction);
  }
}

std::optional<std::int32_t> CodeBody::begin_of_block(std::int64_t block, std::int32_t from) const {
  for (std::int32_t i = from; i < size(); ++i) {
    if (!is_comm((*this)[i]) && this->block(i) >= block) {
      return i;
    }
  }
  return std::nullopt;
}

std::optional<std::int32_t> CodeBody::first_conflict(const Instruction& by,
                                                     std::int32_t from,
                                                     std::int32_t end) const {
  for (std::int32_t i = from; i < end; ++i) {
    if (!is_comm((*this)[i]) && conflict((*this)[i], by)) {
      return i;
    }
  }
  return std::nullopt;
}

}  // namespace tessera
