#include "tessera/runtime/program_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ir/dtype.h"

namespace tessera {

ProgramMemory::ProgramMemory(const Program& program, ProgramArenas arenas)
    : program_(program), arenas_(std::move(arenas)) {
  TESSERA_CHECK(program.arena_bytes <= arenas_.device_bytes,
                "program {} needs {} bytes, its arena has {}",
                program.name,
                program.arena_bytes,
                arenas_.device_bytes);
  TESSERA_CHECK((program.host_bytes == 0 || arenas_.host != nullptr) &&
                    (program.file_bytes == 0 ||
                     (arenas_.file != nullptr && program.file_bytes <= arenas_.file->bytes())),
                "program {} needs {} bytes of the host and {} of a file, and has not both",
                program.name,
                program.host_bytes,
                program.file_bytes);
  if (arenas_.device->has_mirror()) {
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

Arena& ProgramMemory::arena_of(const TensorRef& tensor) const {
  switch (program_[tensor.buffer].space) {
    case Space::kDevice:
      break;
    case Space::kHost:
      return *arenas_.host;
    case Space::kFile:
      return *arenas_.file;
  }
  return *arenas_.device;
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
  return arena_of(tensor).data() + place_of(tensor, slot);
}

View ProgramMemory::elements(const Binding& state, std::int64_t begin, std::int64_t count) const {
  const TensorRef& tensor = state.tensor;
  TESSERA_CHECK(view_of(tensor).is_contiguous(), "{} is not contiguous", state.name);
  View view = {.dtype = tensor.type.dtype, .num_dims = 1};
  view.data = data(tensor, 0) + begin * static_cast<std::int64_t>(size_bytes(tensor.type.dtype));
  view.sizes[0] = count;
  view.strides[0] = 1;
  return view;
}

std::span<std::byte> ProgramMemory::workspace(BufferId id, std::size_t slot) const {
  const Buffer& buffer = program_[id];
  return {arenas_.device->data() + buffer.offsets.at(slot), static_cast<std::size_t>(buffer.bytes)};
}

std::span<std::byte> ProgramMemory::bytes(const Binding& binding, std::int64_t slot) const {
  TESSERA_CHECK(view_of(binding.tensor).is_contiguous(), "{} is not contiguous", binding.name);
  return {arena_of(binding.tensor).host() + place_of(binding.tensor, slot),
          static_cast<std::size_t>(binding.tensor.type.num_bytes())};
}

void ProgramMemory::inputs_to_device() const {
  for (const Stretch& stretch : taken_) {
    arenas_.device->to_device(stretch.offset, stretch.bytes);
  }
}

void ProgramMemory::outputs_to_host() const {
  for (const Stretch& stretch : brought_) {
    arenas_.device->to_host(stretch.offset, stretch.bytes);
  }
}

void ProgramMemory::state_to_device(const Binding& state) const {
  arena_of(state.tensor).to_device(place_of(state.tensor, 0), std::ssize(bytes(state, 0)));
}

void ProgramMemory::to_file(const Binding& state, std::span<const std::byte> bytes) const {
  if (program_[state.tensor.buffer].space == Space::kFile) {
    arenas_.file->to_device(bytes.data() - arenas_.file->data(), std::ssize(bytes));
  }
}

std::span<std::byte> ProgramMemory::state_to_host(const Binding& state,
                                                  std::int64_t first,
                                                  std::int64_t count) const {
  const auto size = static_cast<std::int64_t>(size_bytes(state.tensor.type.dtype));
  const std::span<std::byte> elements = bytes(state, 0).subspan(
      static_cast<std::size_t>(first * size), static_cast<std::size_t>(count * size));
  arena_of(state.tensor).to_host(place_of(state.tensor, 0) + first * size, std::ssize(elements));
  return elements;
}

}  // namespace tessera
