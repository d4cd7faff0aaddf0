#include "tessera/backend/cpu/draw.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/backend/cpu/elements.h"
#include "tessera/base/error.h"
#include "tessera/base/half.h"

namespace tessera::cpu {
namespace {

void draw_floats(const Initial& initial, std::span<float> out, ThreadTeam& team) {
  if (initial.normal.std == 0.0F) {
    std::ranges::fill(out, initial.constant);
  } else {
    fill_normal(initial.key, initial.first, initial.normal, out, &team);
  }
}

}  // namespace

void draw_elements(const Initial& initial, const View& out, ThreadTeam& team) {
  if (out.dtype == DType::kF32) {
    draw_floats(initial, flat<float>(out), team);
    return;
  }
  TESSERA_REQUIRE(out.dtype == DType::kBF16,
                  ErrorCode::kUnsupported,
                  "states are drawn in f32 and bf16, not in {}",
                  name(out.dtype));
  // Rounds through a block, so that a large tensor takes no memory of its size.
  constexpr std::size_t kBlock = std::size_t{1} << 20U;
  const std::span<BFloat16> elements = flat<BFloat16>(out);
  std::vector<float> block;
  Initial part = initial;
  for (std::size_t done = 0; done < elements.size(); done += kBlock) {
    block.resize(std::min(kBlock, elements.size() - done));
    part.first = initial.first + done;
    draw_floats(part, block, team);
    std::ranges::transform(
        block, elements.begin() + static_cast<std::ptrdiff_t>(done), to_bfloat16);
  }
}

}  // namespace tessera::cpu
