#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/ir/ids.h"
#include "tessera/ir/view.h"
#include "tessera/program/program.h"
#include "tessera/runtime/file_arena.h"

namespace tessera {

// The memory of a program: the arena of the device, of so many bytes, and those of other spaces
// where anything lies there.
struct ProgramArenas {
  std::shared_ptr<Arena> device;
  std::int64_t device_bytes = 0;
  std::shared_ptr<Arena> host = nullptr;
  std::shared_ptr<FileArena> file = nullptr;
};

// Where the tensors of a program lie in its arenas, for kernels and for the host, and what is
// copied between the two where the device has memory of its own.
class ProgramMemory {
 public:
  // Borrows the program for its life. Errors: kInternal where the program needs more of the
  // device's arena than there is, or a space that has none.
  ProgramMemory(const Program& program, ProgramArenas arenas);

  // For kernels: a tensor (in slot 0), where it is in another slot, elements [begin, begin + count)
  // of a state without gaps, and a workspace in a slot.
  View view(const TensorRef& tensor) const;
  std::byte* data(const TensorRef& tensor, std::int64_t slot) const;
  View elements(const Binding& state, std::int64_t begin, std::int64_t count) const;
  std::span<std::byte> workspace(BufferId id, std::size_t slot) const;

  // For the host; the tensor is contiguous.
  std::span<std::byte> bytes(const Binding& binding, std::int64_t slot) const;

  // Brings what the host writes for each step to the device, and what it reads after it back.
  void inputs_to_device() const;
  void outputs_to_host() const;

  // Brings a state to the device, and `count` of its elements from `first` on back; the second
  // gives where they are. Nothing is moved where the two are one. Errors: kDeviceError.
  void state_to_device(const Binding& state) const;
  std::span<std::byte> state_to_host(const Binding& state,
                                     std::int64_t first,
                                     std::int64_t count) const;

  // Brings what of a state the host has written to its file, where it lies in one: any of `bytes`,
  // which are the state's. Errors: kDeviceError.
  void to_file(const Binding& state, std::span<const std::byte> bytes) const;

  bool has_mirror() const { return arenas_.device->has_mirror(); }

  // Null where nothing lies in a file.
  FileArena* file() const { return arenas_.file.get(); }

 private:
  // A stretch of the arena that is copied between host and device.
  struct Stretch {
    std::int64_t offset;
    std::int64_t bytes;
  };

  std::int64_t place_of(const TensorRef& tensor, std::int64_t slot) const;
  Arena& arena_of(const TensorRef& tensor) const;
  static void add_stretch(const Stretch& stretch, std::vector<Stretch>& stretches);
  void add_stretches(std::span<const Binding> bindings, std::vector<Stretch>& stretches) const;

  const Program& program_;
  ProgramArenas arenas_;  // of all programs that run in them
  // Where the device has memory of its own: what each step takes there, and brings back.
  std::vector<Stretch> taken_;
  std::vector<Stretch> brought_;
};

}  // namespace tessera
