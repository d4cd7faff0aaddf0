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

namespace tessera {

// Where the tensors of a program lie in an arena, for kernels and for the host, and what is copied
// between the two where the device has memory of its own.
class ProgramMemory {
 public:
  // Borrows the program for its life. Errors: kInternal where program.arena_bytes are more than
  // `arena_bytes`, those of the arena.
  ProgramMemory(const Program& program, std::shared_ptr<Arena> arena, std::int64_t arena_bytes);

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

  bool has_mirror() const { return arena_->has_mirror(); }

 private:
  // A stretch of the arena that is copied between host and device.
  struct Stretch {
    std::int64_t offset;
    std::int64_t bytes;
  };

  std::int64_t place_of(const TensorRef& tensor, std::int64_t slot) const;
  static void add_stretch(const Stretch& stretch, std::vector<Stretch>& stretches);
  void add_stretches(std::span<const Binding> bindings, std::vector<Stretch>& stretches) const;

  const Program& program_;
  std::shared_ptr<Arena> arena_;  // of all programs that run in it
  // Where the device has memory of its own: what each step takes there, and brings back.
  std::vector<Stretch> taken_;
  std::vector<Stretch> brought_;
};

}  // namespace tessera
