#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/passes/program/overlap/code_body.h"

namespace tessera {

// A code, with what is called apart from its work.
struct OverlappedCode {
  CodeBody body;
  std::vector<Instruction> gathers;  // to be called ahead
  // Waits for what its work has left on the comm stream; none where it leaves nothing.
  std::optional<Instruction> fence = {};
  // Where its work is cut, so that calls come in between: the fence of another code after the first
  // blocks, gathers for another before the last ones.
  std::optional<std::int32_t> fence_cut = {};
  std::optional<std::int32_t> gather_cut = {};

  // The instructions of its work at which a piece begins, the first of which is 0.
  std::vector<std::int32_t> pieces() const;

  // Where instruction i of its work is, once it is cut.
  Place place(std::int32_t i) const;
};

// A collective of a code, and up to where what it uses must live: the computation has waited for it
// after this instruction of the code's work; none: with the fence.
struct Finish {
  std::vector<const Instruction*> forms;  // the collective, in every variant
  std::optional<std::int32_t> instruction = {};
};

// By buffer, whether codes other than one's own use it before the update.
struct UsedElsewhere {
  std::vector<bool> any;
  std::vector<bool> later;  // whose life ends with another code than one's own
};

// Has the computation wait for each collective of `code`: where it may not run beside it, or where
// the window of memory ends, `layers` + 1 blocks after the collective's own; what is left at the
// end of the work by its fence, or, of the update, with the step. What makes something of
// `elsewhere` is not left, nor what reads something that other codes use later, which might not
// live until the fence. Gives where each has finished.
std::vector<Finish> place_waits(OverlappedCode& code,
                                std::int64_t layers,
                                const UsedElsewhere& elsewhere,
                                std::int32_t& next_event);

}  // namespace tessera
