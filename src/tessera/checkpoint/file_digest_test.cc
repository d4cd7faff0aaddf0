#include "tessera/checkpoint/file_digest.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include <gtest/gtest.h>

namespace tessera {
namespace {

// As printed by xxh128sum 0.8.1.
TEST(FileDigest, KnownAnswers) {
  EXPECT_EQ(digest({}).xxh3_128, "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(digest(std::as_bytes(std::span("abc", 3))).xxh3_128,
            "06b05ab6733a618578af5f94892f3950");
}

TEST(FileDigest, PiecesGiveTheDigestOfTheWhole) {
  std::string bytes;
  for (std::size_t i = 0; i < std::size_t{256} * 1700; ++i) {
    bytes += static_cast<char>(i % 256);
  }
  const FileDigest expected{.size_bytes = 435200, .xxh3_128 = "e72e05b860fd0efa400bb6aa587e9ad9"};
  EXPECT_EQ(digest(std::as_bytes(std::span(bytes))), expected);
  for (const std::size_t piece : {std::size_t{1000}, std::size_t{77777}, bytes.size()}) {
    DigestBuilder builder;
    std::span<const std::byte> rest = std::as_bytes(std::span(bytes));
    while (!rest.empty()) {
      const std::size_t count = std::min(piece, rest.size());
      builder.append(rest.first(count));
      rest = rest.subspan(count);
    }
    EXPECT_EQ(builder.digest(), expected);
  }
}

}  // namespace
}  // namespace tessera
