#include "tessera/infer/stop_filter.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace tessera {
namespace {

struct Case {
  std::vector<std::string> stops;
  std::string text;
  std::string expected;
  bool stopped = true;
};

const Case kCases[] = {
    {{}, "all of it", "all of it", false},
    {{"\n\n"}, "one\ntwo\n\nthree", "one\ntwo"},
    {{"END"}, "ENEND", "EN"},
    {{"aab"}, "aaaab", "aa"},
    {{"abab"}, "abaabab", "aba"},
    {{"x", "yz"}, "a yz x", "a "},
    {{"abcd", "bc"}, "abcd", "a"},
    {{"bc", "abc"}, "abc", ""},
    {{"stop"}, "sto", "sto", false},
    {{"stop"}, "ststo", "ststo", false},
    {{"wörld"}, "wö wörld", "wö "},
    {{"a"}, "a", ""},
};

// All ways to cut a text in two, and one letter at a time: what is emitted is always the beginning
// of the result, so that nothing has to be taken back.
TEST(StopFilter, HoweverTheTextIsCut) {
  for (const Case& c : kCases) {
    for (std::size_t cut = 0; cut <= c.text.size() + 1; ++cut) {
      StopFilter filter(c.stops);
      std::string found;
      const auto push = [&](std::string_view piece) {
        found += filter.push(piece);
        EXPECT_TRUE(c.expected.starts_with(found)) << c.text << ": " << found;
      };
      if (cut > c.text.size()) {
        for (const char& letter : c.text) {
          push({&letter, 1});
        }
      } else {
        push(std::string_view(c.text).substr(0, cut));
        push(std::string_view(c.text).substr(cut));
      }
      EXPECT_EQ(filter.stopped(), c.stopped) << c.text;
      found += filter.flush();
      EXPECT_EQ(found, c.expected) << c.text << ", cut at " << cut;
      EXPECT_EQ(filter.flush(), "");
    }
  }
}

// What cannot belong to a stop string arrives at once.
TEST(StopFilter, HoldsBackNoMoreThanItMust) {
  StopFilter filter({"stop", "topaz"});
  EXPECT_EQ(filter.push("a s"), "a ");
  EXPECT_EQ(filter.push("to"), "");
  EXPECT_EQ(filter.push("pp"), "");
  EXPECT_TRUE(filter.stopped());
  StopFilter other({"topaz", "zebra"});
  EXPECT_EQ(other.push("a top"), "a ");
  EXPECT_EQ(other.push("pz"), "topp");
  EXPECT_EQ(other.push("oo"), "zoo");
}

}  // namespace
}  // namespace tessera
