#pragma once

#include <cstddef>
#include <span>

#include "tessera/base/error.h"
#include "tessera/ir/view.h"

namespace tessera {

// The operands, or the results, of an op one by one in their order: what by_name() of an op reads
// them with, so that no kernel needs to know it.
class InOrder {
 public:
  explicit InOrder(std::span<const View> views) : views_(views) {}

  const View& next() { return next(1)[0]; }

  // Those of which only some forms of an op have one: without data where this one has not.
  View next_if(bool has) { return has ? next() : View(); }

  std::span<const View> next(std::size_t count) {
    TESSERA_CHECK(begin_ + count <= views_.size(),
                  "an op has {} operands or results, expected {} or more",
                  views_.size(),
                  begin_ + count);
    begin_ += count;
    return views_.subspan(begin_ - count, count);
  }

 private:
  std::span<const View> views_;
  std::size_t begin_ = 0;
};

// All of a tensor without gaps.
inline std::span<std::byte> memory_of(const View& view) {
  TESSERA_CHECK(view.is_contiguous(), "found gaps in a tensor, expected contiguous memory");
  return {view.as<std::byte>(),
          static_cast<std::size_t>(view.num_elements()) * size_bytes(view.dtype)};
}

// The operand and the result of an op that has one of each.
struct OneToOne {
  const View& x;
  const View& y;
};

inline OneToOne one_to_one(const Views& views) {
  return {.x = InOrder(views.in).next(), .y = InOrder(views.out).next()};
}

}  // namespace tessera
