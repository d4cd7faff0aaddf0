#include "tessera/passes/memory/fit_below.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/passes/memory/instants.h"

namespace tessera {
namespace {

using Range = Instants::Range;

// A rectangle of instants and bytes.
struct Piece {
  Range lives;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Cuts a full rectangle into pieces, again and again the one that is next: they are a placement
// without loss.
std::deque<Piece> cut(std::mt19937& random, std::size_t num_pieces) {
  std::deque<Piece> pieces = {{.lives = {.begin = 0, .end = 64}, .begin = 0, .end = 1000}};
  while (pieces.size() < num_pieces) {
    Piece first = pieces.front();
    pieces.pop_front();
    Piece second = first;
    const std::size_t instants = first.lives.end - first.lives.begin;
    const std::int64_t bytes = first.end - first.begin;
    if (random() % 2 == 0 && instants > 1) {
      first.lives.end = second.lives.begin = first.lives.begin + 1 + random() % (instants - 1);
      pieces.push_back(second);
    } else if (bytes > 1) {
      first.end = second.begin =
          first.begin + 1 + static_cast<std::int64_t>(random()) % (bytes - 1);
      pieces.push_back(second);
    }
    pieces.push_back(first);
  }
  return pieces;
}

// One above the other.
std::vector<Occupant> stacked(const std::deque<Piece>& pieces) {
  std::vector<Occupant> occupants;
  std::int64_t offset = 0;
  for (const Piece& piece : pieces) {
    const std::int64_t bytes = piece.end - piece.begin;
    occupants.push_back({.offset = offset, .bytes = bytes, .lives = {&piece.lives, 1}});
    offset += bytes;
  }
  return occupants;
}

bool overlap(const Occupant& a, const Occupant& b) {
  if (a.offset >= b.offset + b.bytes || b.offset >= a.offset + a.bytes) {
    return false;
  }
  for (const Range& first : a.lives) {
    for (const Range& second : b.lives) {
      if (first.begin < second.end && second.begin < first.end) {
        return true;
      }
    }
  }
  return false;
}

std::size_t num_overlaps(const std::vector<Occupant>& occupants) {
  std::size_t result = 0;
  for (std::size_t i = 0; i < occupants.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      result += overlap(occupants[i], occupants[j]) ? 1 : 0;
    }
  }
  return result;
}

// What has a placement without loss gets one that loses little, most of the time; never one where
// anything overlaps.
TEST(FitBelow, FindsRoomWhereThereIs) {
  int found = 0;
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::deque<Piece> pieces = cut(random, 40);
    std::vector<Occupant> occupants = stacked(pieces);
    constexpr std::int64_t kLimit = 1030;
    if (!fit_below(occupants, kLimit, 3000)) {
      continue;
    }
    ++found;
    EXPECT_EQ(num_overlaps(occupants), 0U);
    for (const Occupant& occupant : occupants) {
      EXPECT_GE(occupant.offset, 0);
      EXPECT_LE(occupant.offset + occupant.bytes, kLimit);
    }
  }
  EXPECT_GE(found, 60);
}

// The second lives at two times, between which the third has its place.
TEST(FitBelow, PlacesWhatLivesAgain) {
  const std::vector<Range> always = {{.begin = 0, .end = 3}};
  const std::vector<Range> again = {{.begin = 0, .end = 1}, {.begin = 2, .end = 3}};
  const std::vector<Range> between = {{.begin = 1, .end = 2}};
  std::vector<Occupant> occupants = {{.offset = 256, .bytes = 512, .lives = always},
                                     {.offset = 768, .bytes = 256, .lives = again},
                                     {.offset = 1024, .bytes = 256, .lives = between}};
  ASSERT_TRUE(fit_below(occupants, 768, 100));
  EXPECT_EQ(num_overlaps(occupants), 0U);
  EXPECT_EQ(occupants[1].offset, occupants[2].offset);
}

TEST(FitBelow, LeavesWhatFits) {
  const std::vector<Range> life = {{.begin = 0, .end = 1}};
  std::vector<Occupant> occupants = {{.offset = 512, .bytes = 256, .lives = life},
                                     {.offset = 0, .bytes = 256, .lives = life}};
  ASSERT_TRUE(fit_below(occupants, 768, 0));
  EXPECT_EQ(occupants[0].offset, 512);
  EXPECT_EQ(occupants[1].offset, 0);
}

TEST(FitBelow, GivesUp) {
  const std::vector<Range> life = {{.begin = 0, .end = 1}};
  std::vector<Occupant> occupants;
  for (std::int64_t i = 0; i < 3; ++i) {
    occupants.push_back({.offset = 256 * i, .bytes = 256, .lives = life});
  }
  EXPECT_FALSE(fit_below(occupants, 512, 1000));
}

}  // namespace
}  // namespace tessera
