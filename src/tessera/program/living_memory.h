#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/program/index_set.h"
#include "tessera/program/lives.h"
#include "tessera/program/program.h"

namespace tessera {

// Which buffers hold which bytes of the arenas at one instant. They are in the order of their
// offsets, so that only neighbours have to be compared.
class LivingMemory {
 public:
  // Borrows both for its life.
  LivingMemory(const Program& program, const SlotNumbers& numbers);

  // Of a buffer in a slot, by number.
  // Errors: kInternal, naming both, where another one that lives holds one of its bytes.
  void begin(std::size_t number);
  void end(std::size_t number);

 private:
  struct Place {
    std::int64_t begin = 0;
    std::int64_t end = 0;  // with what pads it
  };

  void check_apart(std::size_t lower, std::size_t upper) const;
  std::string text(std::size_t place) const;

  const Program& program_;
  const SlotNumbers& numbers_;
  std::vector<std::uint32_t> place_of_;  // by number, into places
  std::vector<Place> places_;            // by begin
  IndexSet alive_;                       // of places
};

}  // namespace tessera
