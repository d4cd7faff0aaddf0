#include "tessera/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utf8proc.h>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/base/test_error.h"
#include "tessera/tokenizer/text_cut.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> pieces(const Split& split, std::string_view text) {
  std::vector<std::string> out;
  PreTokenizer(split).split(text, [&](std::string_view piece) { out.emplace_back(piece); });
  return out;
}

std::vector<std::string> pieces(std::string_view pattern, std::string_view text) {
  return pieces(Split{.pattern = std::string(pattern)}, text);
}

// Ends of the pieces that the regex engine finds in valid text.
std::vector<std::size_t> regex_ends(const Regex& regex, std::string_view text) {
  std::vector<std::size_t> ends;
  Regex::Scan scan(regex, text);
  std::size_t end = 0;
  while (const auto match = scan.next()) {
    if (match->begin > end) {
      ends.push_back(match->begin);
    }
    end = match->end;
    ends.push_back(end);
  }
  if (end < text.size()) {
    ends.push_back(text.size());
  }
  return ends;
}

std::vector<std::size_t> scanner_ends(const char* (*piece_end)(const char*, const char*),
                                      std::string_view text) {
  std::vector<std::size_t> ends;
  const char* end = text.data() + text.size();
  for (const char* at = text.data(); at < end;) {
    at = piece_end(at, end);
    ends.push_back(static_cast<std::size_t>(at - text.data()));
  }
  return ends;
}

std::string utf8(std::int32_t code_point) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto size = utf8proc_encode_char(code_point, bytes.data());
  return {reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(size)};
}

// The scanners against PCRE2, each with the pattern as published.
class Scanners : public ::testing::Test {
 protected:
  void expect_equal(const std::string& text) const {
    ASSERT_EQ(scanner_ends(gpt2_piece_end, text), regex_ends(gpt2_, text)) << text;
    ASSERT_EQ(scanner_ends(llama3_piece_end, text), regex_ends(llama3_, text)) << text;
  }

  Regex gpt2_{kGpt2Pattern};
  Regex llama3_{kLlama3Pattern};
};

// All characters of the planes that have any, a sample of the others.
std::vector<std::int32_t> characters() {
  std::vector<std::int32_t> code_points;
  for (std::int32_t c = 0; c < 0x110000; ++c) {
    const bool is_surrogate = c >= 0xD800 && c < 0xE000;
    const bool is_used_plane = c < 0x40000 || (c >= 0xE0000 && c < 0xE1000);
    if (!is_surrogate && (is_used_plane || c % 257 == 0)) {
      code_points.push_back(c);
    }
  }
  return code_points;
}

// The two libraries may follow different versions of Unicode: characters that only one of them
// knows cannot be compared.
std::vector<std::int32_t> comparable(const std::vector<std::int32_t>& code_points) {
  std::string text;
  std::map<std::size_t, std::int32_t> starts;
  for (const std::int32_t c : code_points) {
    text += '\n';
    starts[text.size()] = c;
    text += utf8(c);
  }
  const Regex before_unassigned(R"(\n(?=\p{Cn}))");
  std::set<std::int32_t> unassigned;
  std::size_t begin = 0;
  for (const std::size_t end : regex_ends(before_unassigned, text)) {
    if (text.substr(begin, end - begin) == "\n") {
      unassigned.insert(starts.at(end));
    }
    begin = end;
  }
  std::vector<std::int32_t> known_alike;
  for (const std::int32_t c : code_points) {
    const bool is_unassigned_here = utf8proc_category(c) == UTF8PROC_CATEGORY_CN;
    if (unassigned.contains(c) == is_unassigned_here) {
      known_alike.push_back(c);
    }
  }
  return known_alike;
}

// Each character beside characters of every class.
TEST_F(Scanners, EveryCharacter) {
  const std::vector<std::int32_t> all = characters();
  const std::vector<std::int32_t> code_points = comparable(all);
  // A few versions of Unicode bring fewer new characters than this.
  EXPECT_GT(code_points.size() + 20000, all.size());
  std::string text;
  for (const std::int32_t c : code_points) {
    const std::string s = utf8(c);
    for (const char* before : {"a", " ", "1", ".", "'", "\n", "\t"}) {
      text += before;
      text += s;
    }
    for (const char* after : {"s", "", " '", "12", ""}) {
      text += s;
      text += after;
    }
    if (text.size() > 4096) {
      expect_equal(text);
      text.clear();
    }
  }
  expect_equal(text);
}

TEST_F(Scanners, RandomText) {
  const std::vector<std::string> units = {
      "a",      "S",         "s",          "t",      "m",
      "d",      "re",        "VE",         "ll",     "l",
      "'",      "'s",        "'T",         "ſ",      "'ſ",
      "é",      "灯",        "א",          "1",      "23",
      "٣",      "Ⅷ",         "½",          " ",      " ",
      "  ",     "\n",        "\r",         "\r\n",   "\t",
      "\v",     "\f",        "\u00A0",     "\u0085", "\u2028",
      "\u3000", "\u180E",    "\u200B",     ".",      "-",
      "_",      "(",         "👩\u200D👧", "\u0301", std::string(1, '\0'),
      "\x1C",   "\U000E0001"};
  const std::uint64_t key = random_key(3, "units");
  std::uint64_t index = 0;
  const auto below = [&](std::size_t n) {
    return static_cast<std::size_t>(uniform(key, index++) * static_cast<double>(n));
  };
  for (int i = 0; i < 40000; ++i) {
    std::string text;
    for (std::size_t left = 1 + below(12); left > 0; --left) {
      text += units[below(units.size())];
    }
    expect_equal(text);
  }
}

TEST(PreTokenizer, KnownPatterns) {
  EXPECT_THAT(pieces(kLlama3Pattern, "It'S 12345  (no)\n\n x"),
              ElementsAre("It", "'S", " ", "123", "45", " ", " (", "no", ")\n\n", " x"));
  EXPECT_THAT(pieces(kGpt2Pattern, "It's 12345  (no)\n\n x"),
              ElementsAre("It", "'s", " 12345", " ", " (", "no", ")", "\n\n", " x"));
  EXPECT_THAT(pieces(kLlama3Pattern, ""), ElementsAre());
}

// Invalid bytes end the text before them, for the lookahead too.
TEST(PreTokenizer, InvalidBytesStandApart) {
  for (const std::string_view pattern : {kGpt2Pattern, kLlama3Pattern}) {
    EXPECT_THAT(pieces(pattern, "ab  \xFF\xE7\x81  cd\x80"),
                ElementsAre("ab", "  ", "\xFF\xE7\x81", " ", " cd", "\x80"));
  }
}

TEST(PreTokenizer, OtherPatterns) {
  EXPECT_THAT(pieces(R"(\d+)",
                     "12 灯34\xFF"
                     "5"),
              ElementsAre("12", " 灯", "34", "\xFF", "5"));
  EXPECT_THAT(pieces(R"(\p{Lu}?\p{Ll}+|\s)", "aBcDE f"), ElementsAre("a", "Bc", "DE", " ", "f"));
  // An empty match cuts, too.
  EXPECT_THAT(pieces("x*", "axx灯x"), ElementsAre("a", "xx", "灯", "x"));
  EXPECT_THAT(pieces("(?=b)", "abab"), ElementsAre("a", "ba", "b"));
  EXPECT_THAT(pieces("(?=灯)|.", "a灯b"), ElementsAre("a", "灯", "b"));
  // Unicode's White_Space, which U+180E left in version 6.3.
  EXPECT_THAT(pieces(R"(\s+)", "a\u180Eb\u3000\u0085c"),
              ElementsAre("a\u180Eb", "\u3000\u0085", "c"));
  EXPECT_THAT(pieces(R"([^\s]+)", "ab cd"), ElementsAre("ab", " ", "cd"));
  EXPECT_THAT(pieces(R"(\S+)", "ab cd"), ElementsAre("ab", " ", "cd"));
}

TEST(PreTokenizer, OtherPatternsOnLongText) {
  const std::string text(1 << 20, 'a');
  EXPECT_THAT(pieces("(?:a|b)+", text), ElementsAre(text));
  EXPECT_EQ(pieces(R"(\s+(?!\S)|a)", text).size(), text.size());
}

void expect_refused(std::string_view pattern, ErrorCode code, const std::string& message) {
  try {
    const Regex regex(pattern);
    FAIL() << pattern;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << pattern;
    EXPECT_THAT(error.message(), HasSubstr(message));
  }
}

TEST(Regex, Refuses) {
  expect_refused("a(b", ErrorCode::kInvalidData, "missing closing parenthesis at offset 3");
  expect_refused("a\\", ErrorCode::kInvalidData, "\\ at end of pattern");
  expect_refused(R"(\p{Nonsense})", ErrorCode::kInvalidData, "unknown property");
  expect_refused(R"(ab\h+)", ErrorCode::kUnsupported, "the escape \\h at offset 2");
  expect_refused(R"(\w+)", ErrorCode::kUnsupported, "the escape \\w at offset 0");
  expect_refused("[a[:alpha:]]", ErrorCode::kUnsupported, "the set operation '[:' at offset 2");
  expect_refused("[a-[b]]", ErrorCode::kUnsupported, "'-' beside a set at offset 3");
  expect_refused("[[a]-z]", ErrorCode::kUnsupported, "'-' beside a set at offset 4");
  expect_refused("[a-z&&]", ErrorCode::kUnsupported, "an empty set at offset 0");
  expect_refused("a{2}?", ErrorCode::kUnsupported, "'?' behind an interval at offset 4");
  expect_refused("a[b", ErrorCode::kInvalidData, "the set at offset 1 is not closed");
  expect_refused(std::string(100, '['), ErrorCode::kUnsupported, "a set so deep within others");
}

// As Oniguruma has them (libonig 6.9): of every line, whatever the text ends with.
TEST(Regex, LinesBeginAndEndAsTheirWritersMeant) {
  const auto split = [](std::string_view pattern, std::string_view text) {
    return pieces(pattern, text);
  };
  EXPECT_THAT(split("^t", "\nthe the"), ElementsAre("\n", "t", "he the"));
  EXPECT_THAT(split("e$", "the\nthe"), ElementsAre("th", "e", "\nth", "e"));
  EXPECT_THAT(split("a^", "a\n"), ElementsAre("a\n"));
  EXPECT_THAT(split("\\s+$", "a \n b  "), ElementsAre("a", " ", "\n b", "  "));
  EXPECT_THAT(split("[$^]", "a^b$"), ElementsAre("a", "^", "b", "$"));
  EXPECT_THAT(error_of(ErrorCode::kUnsupported, [] { Regex("a(?m:.)"); }),
              HasSubstr("the option \"(?m\" at offset 1 of the pattern is not supported"));
  EXPECT_NO_THROW(Regex("(?i:'s)|(?:a)|(?=b)|(?!c)"));
}

// A pattern that backtracks without end is given up with an error.
TEST(Regex, GivesUp) {
  const Regex regex("(?:a+)+(?:b|c)");
  const std::string text(100, 'a');
  Regex::Scan scan(regex, text);
  try {
    scan.next();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_THAT(error.message(), HasSubstr("cannot be matched at byte 0: match limit exceeded"));
  }
}

// What lets a long text be encoded in parts (text_cut.h).
TEST(PreTokenizerCuts, ArePlacesWhereAPieceEndsAnyway) {
  constexpr std::array<std::string_view, 24> kAtoms = {
      "a",      "Zq",     "7",      "42",     " ",       "  ",     "\n",       "\n",
      "\n\n",   "\r\n",   "\t",     ".",      ",\"",     "'s",     "'",        "\u4f60",
      "\u597d", "\u3002", "\uff0c", "\u3000", "e\u0301", "\u00a0", "\xe4\xbd", "\xff"};
  for (const std::string_view pattern :
       {kGpt2Pattern, kLlama3Pattern, kQwenPattern, kO200kPattern}) {
    const PreTokenizer tokenizer(Split{.pattern = std::string(pattern)});
    const auto split = [&](std::string_view text) {
      std::vector<std::string> out;
      tokenizer.split(text, [&](std::string_view piece) { out.emplace_back(piece); });
      return out;
    };
    const std::uint64_t key = random_key(7, "cuts");
    int num_cuts = 0;
    for (std::uint64_t draw = 0; draw < 20'000; ++draw) {
      std::string text;
      for (std::uint64_t i = 0; i < 12; ++i) {
        text += kAtoms[static_cast<std::size_t>(uniform(key, 12 * draw + i) *
                                                static_cast<double>(kAtoms.size()))];
      }
      const std::vector<std::string> whole = split(text);
      for (std::size_t at = 1; at < text.size(); ++at) {
        if (!is_text_cut(text, at)) {
          continue;
        }
        ++num_cuts;
        std::vector<std::string> parts = split(text.substr(0, at));
        std::ranges::move(split(text.substr(at)), std::back_inserter(parts));
        ASSERT_EQ(parts, whole) << pattern << ": " << testing::PrintToString(text) << " at " << at;
      }
    }
    EXPECT_GT(num_cuts, 10'000);
  }
}

}  // namespace
}  // namespace tessera
