#include "tessera/runtime/program_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ir/dtype.h"

namespace tessera {

ProgramMemory::ProgramMemory(const Program& program,
                             std::shared_ptr<Arena> arena,
                             std::int64_t arena_bytes)
    : program_(program), arena_(std::move(arena)) {
  TESSERA_CHECK(program.arena_bytes <= arena_bytes,
                "program {} needs {} bytes, its arena has {}",
                program.name,
                program.arena_bytes,
                arena_bytes);
  if (arena_->has_mirror()) {
    add_stretches(program.inputs, taken_);
    add_stretches(program.scalars, taken_);
    add_stretches(program.outputs, brought_);
  }
}

std::int64_t ProgramMemory::place_of(const TensorRef& tensor, std::int64_t slot) const {
  const Buffer& buffer = program_[tensor.buffer];
  return buffer.offsets.at(buffer.pool.valid() ? static_cast<std::size_t>(slot) : 0) +
         tensor.offset;
}

// The whole buffers, each once: tensors side by side share one.
void ProgramMemory::add_stretches(std::span<const Binding> bindings,
                                  std::vector<Stretch>& stretches) const {
  std::vector<BufferId> buffers;
  for (const Binding& binding : bindings) {
    const BufferId id = binding.tensor.buffer;
    if (std::ranges::find(buffers, id) == buffers.end()) {
      buffers.push_back(id);
      for (const std::int64_t offset : program_[id].offsets) {
        add_stretch({.offset = offset, .bytes = program_[id].padded_bytes()}, stretches);
      }
    }
  }
}

// One copy of what lies side by side.
void ProgramMemory::add_stretch(const Stretch& stretch, std::vector<Stretch>& stretches) {
  if (!stretches.empty() && stretches.back().offset + stretches.back().bytes == stretch.offset) {
    stretches.back().bytes += stretch.bytes;
  } else {
    stretches.push_back(stretch);
  }
}

View ProgramMemory::view(const TensorRef& tensor) const {
  View view = view_of(tensor);
  view.data = data(tensor, 0);
  return view;
}

std::byte* ProgramMemory::data(const TensorRef& tensor, std::int64_t slot) const {
  return arena_->data() + place_of(tensor, slot);
}

View ProgramMemory::elements(const Binding& state, std::int64_t begin, std::int64_t count) const {
  const TensorRef& tensor = state.tensor;
  TESSERA_CHECK(view_of(tensor).is_contiguous(), "{} is not contiguous", state.name);
  View view = {.dtype = tensor.type.dtype, .num_dims = 1};
  view.data = arena_->data() + place_of(tensor, 0) +
              begin * static_cast<std::int64_t>(size_bytes(tensor.type.dtype));
  view.sizes[0] = count;
  view.strides[0] = 1;
  return view;
}

std::span<std::byte> ProgramMemory::workspace(BufferId id, std::size_t slot) const {
  const Buffer& buffer = program_[id];
  return {arena_->data() + buffer.offsets.at(slot), static_cast<std::size_t>(buffer.bytes)};
}

std::span<std::byte> ProgramMemory::bytes(const Binding& binding, std::int64_t slot) const {
  TESSERA_CHECK(view_of(binding.tensor).is_contiguous(), "{} is not contiguous", binding.name);
  return {arena_->host() + place_of(binding.tensor, slot),
          static_cast<std::size_t>(binding.tensor.type.num_bytes())};
}

void ProgramMemory::inputs_to_device() const {
  for (const Stretch& stretch : taken_) {
    arena_->to_device(stretch.offset, stretch.bytes);
  }
}

void ProgramMemory::outputs_to_host() const {
  for (const Stretch& stretch : brought_) {
    arena_->to_host(stretch.offset, stretch.bytes);
  }
}

void ProgramMemory::state_to_device(const Binding& state) const {
  if (arena_->has_mirror()) {
    arena_->to_device(place_of(state.tensor, 0), static_cast<std::int64_t>(bytes(state, 0).size()));
  }
}

std::span<std::byte> ProgramMemory::state_to_host(const Binding& state,
                                                  std::int64_t first,
                                                  std::int64_t count) const {
  const auto size = static_cast<std::int64_t>(size_bytes(state.tensor.type.dtype));
  const std::span<std::byte> elements = bytes(state, 0).subspan(
      static_cast<std::size_t>(first * size), static_cast<std::size_t>(count * size));
  if (arena_->has_mirror()) {
    arena_->to_host(place_of(state.tensor, 0) + first * size, std::ssize(elements));
  }
  return elements;
}

}  // namespace tessera
