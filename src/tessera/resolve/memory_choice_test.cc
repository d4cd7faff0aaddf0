#include "tessera/resolve/memory_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

TEST(MemoryChoice, IsReadAsItIsWritten) {
  const RecomputeRule one = {.first = 0, .end = 1, .keep = {"add.0", "attention.0"}};
  const RecomputeRule two = {.first = 1, .end = 3};
  const RecomputeRule stored = {
      .first = 4, .end = 5, .keep = {"add.0", "matmul.1"}, .store = {"matmul.1"}};
  const RecomputeRule last = {.first = 30, .end = 32, .keep = {"matmul.2"}};
  for (const MemoryChoice& choice :
       {MemoryChoice{.limit = 6'000'000'000, .all_bytes = 7},
        MemoryChoice{.limit = 1, .all_bytes = 2, .rules = {two}},
        MemoryChoice{.limit = 40, .all_bytes = 50, .rules = {one, two, last}},
        MemoryChoice{.limit = 40,
                     .all_bytes = 50,
                     .moved_states = {{1, 2}},
                     .of = {.recompute = false, .optimizer = true, .activations = true}},
        MemoryChoice{.limit = 40, .all_bytes = 50, .rules = {two, stored}},
        MemoryChoice{.limit = 40,
                     .all_bytes = 50,
                     .rules = {one, stored},
                     .moved_states = {{0, 9}, {7, 0}}}}) {
    EXPECT_EQ(parse_memory_choice(to_string(choice)), choice);
  }
  EXPECT_EQ(to_string(MemoryChoice{.limit = 40, .all_bytes = 50, .rules = {one, two}}),
            "40 of 50: 0-0 add.0 attention.0; 1-2");
  EXPECT_EQ(to_string(MemoryChoice{
                .limit = 40, .all_bytes = 50, .rules = {stored}, .moved_states = {{0, 9}, {7, 0}}}),
            "40 of 50: 4-4 add.0 matmul.1 >matmul.1 | 0 9, 7 0");
  for (const char* const text : {"",
                                 "40",
                                 "40: 0-1",
                                 "x of 50: 0-1",
                                 "-1 of 50: 0-1",
                                 "40 of : 0-1",
                                 "99999999999999999999 of 50: 0-1",
                                 "40 of 50:0-1",
                                 "40 of 50: 0",
                                 "40 of 50: 2-1",
                                 "40 of 50: 0-1;",
                                 "40 of 50: 0-1; ",
                                 "40 of 50: 0-1  add",
                                 "40 of 50: 0-1 add;1-2",
                                 "40 of 50: 0-3; 3-4",
                                 "40 of 50 for: 0-3",
                                 "40 of 50 for optimizer recompute: 0-3",
                                 "40 of 50 for nothing: 0-3",
                                 "40 of 50: 0-3 >",
                                 "40 of 50: 0-3 |",
                                 "40 of 50: |",
                                 "40 of 50: | 1",
                                 "40 of 50: | 1 2,",
                                 "40 of 50: | 1 2 3",
                                 "40 of 50: 0-1 | -1 2",
                                 "40 of 50: 0-99999999999999999999",
                                 "40 of 50: 0-9223372036854775807"}) {
    EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { parse_memory_choice(text); }),
                testing::StartsWith(format(
                    "found \"{}\", expected BYTES of BYTES [for KINDS]: FIRST-LAST OP", text)));
  }
}

}  // namespace
}  // namespace tessera
