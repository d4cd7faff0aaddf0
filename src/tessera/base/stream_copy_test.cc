#include "tessera/base/stream_copy.h"

#include <cstddef>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace tessera {
namespace {

// Of every size around what goes past the caches, from and to every place in a line or nearly so.
TEST(StreamCopy, CopiesTheBytesAndNoOthers) {
  constexpr std::size_t kRoom = 200;
  constexpr std::byte kUntouched{0xee};
  for (const std::size_t size : {0, 1, 63, 64, 65, 16383, 16384, 16385, 16447, 16448, 50'001}) {
    for (std::size_t from_shift = 0; from_shift < 66; from_shift += 13) {
      for (std::size_t to_shift = 0; to_shift < 66; ++to_shift) {
        std::vector<std::byte> from(size + kRoom);
        for (std::size_t i = 0; i < from.size(); ++i) {
          from[i] = static_cast<std::byte>(i * 31 + i / 256);
        }
        const std::span<const std::byte> source = std::span(from).subspan(from_shift, size);
        std::vector<std::byte> to(size + kRoom, kUntouched);
        std::vector<std::byte> expected = to;
        for (std::size_t i = 0; i < size; ++i) {
          expected[to_shift + i] = source[i];
        }
        stream_copy(to.data() + to_shift, source);
        ASSERT_EQ(to, expected) << size << " bytes from " << from_shift << " to " << to_shift;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
