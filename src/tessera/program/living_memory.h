#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "tessera/program/lives.h"
#include "tessera/program/program.h"

namespace tessera {

// Which buffers hold which bytes of the arena at one instant. They are kept by offset, so that only
// neighbours have to be compared.
class LivingMemory {
 public:
  // Borrows the program for its life.
  explicit LivingMemory(const Program& program) : program_(program) {}

  // Errors: kInternal, naming both, where another one that lives holds one of its bytes.
  void begin(const BufferSlot& of);
  void end(const BufferSlot& of);

 private:
  using Key = std::pair<std::int64_t, BufferSlot>;  // by offset

  Key key(const BufferSlot& of) const;
  void check_apart(const Key& lower, const Key& upper) const;

  const Program& program_;
  std::set<Key> alive_;
};

}  // namespace tessera
