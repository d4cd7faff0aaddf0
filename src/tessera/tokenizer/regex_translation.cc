#include "tessera/tokenizer/regex_translation.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// One pattern, from front to back.
class Translation {
 public:
  explicit Translation(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      step();
    }
    return std::move(result_);
  }

 private:
  // A part of a set: what `[..]` of PCRE2 can hold, and sets that it cannot, each a group that
  // matches one character.
  struct Union {
    std::string items;
    std::vector<std::string> sets;
    bool after_dash = false;
  };

  // Sets nest in published patterns once or twice; a file may not ask for the whole stack.
  static constexpr int kMaxDepth = 32;

  void require(bool condition, std::string_view what, std::size_t offset) const {
    TESSERA_REQUIRE(condition,
                    ErrorCode::kUnsupported,
                    "{} at offset {} of the pattern is not supported",
                    what,
                    offset);
  }

  bool is_at(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  void step() {
    const std::size_t begin = result_.size();
    switch (pattern_[at_]) {
      case '\\':
        result_ += escape();
        break;
      case '[':
        result_ += set(0);
        break;
      case '(':
        require_known_option();
        groups_.push_back(begin);
        result_ += pattern_[at_++];
        return;
      case ')':
        result_ += pattern_[at_++];
        if (!groups_.empty()) {
          atom_ = groups_.back();
          groups_.pop_back();
        }
        return;
      case '{':
        if (interval()) {
          return;
        }
        result_ += pattern_[at_++];
        break;
      case '^':  // of any line, but no line begins at the text's end
        result_ += "(?:\\A|(?<=\\n)(?!\\z))";
        ++at_;
        break;
      case '$':
        result_ += "(?=\\n|\\z)";
        ++at_;
        break;
      case '*':
      case '+':
      case '?':
        result_ += pattern_[at_++];
        return;
      default:
        literal();
        break;
    }
    atom_ = begin;
  }

  // A whole character: an interval behind it counts all of its bytes.
  void literal() {
    constexpr unsigned kKind = 0xC0;
    constexpr unsigned kContinuation = 0x80;
    do {
      result_ += pattern_[at_++];
    } while (at_ < pattern_.size() &&
             (static_cast<unsigned char>(pattern_[at_]) & kKind) == kContinuation);
  }

  std::string escape() {
    constexpr std::string_view kSameInBoth = "pPdDrntfx";
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\\';
    const std::size_t offset = at_;
    at_ = std::min(at_ + 2, pattern_.size());
    if (c == 's' || c == 'S') {
      // PCRE2's \s has U+180E, which Unicode's White_Space has not.
      return c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    }
    require(!is_word(c) || kSameInBoth.find(c) != std::string_view::npos,
            format("the escape \\{}", c),
            offset);
    std::string text(pattern_.substr(offset, 2));
    if (is_at("{") && (c == 'p' || c == 'P' || c == 'x')) {  // the name is no interval
      const std::size_t end = std::min(pattern_.find('}', at_), pattern_.size() - 1) + 1;
      text += pattern_.substr(at_, end - at_);
      at_ = end;
    }
    return text;
  }

  // "{2,3}+" is the interval repeated to Oniguruma, and an interval that gives nothing back to
  // PCRE2.
  bool interval() {
    const std::size_t end = pattern_.find_first_not_of("0123456789,", at_ + 1);
    if (end == std::string_view::npos || end == at_ + 1 || pattern_[end] != '}') {
      return false;
    }
    const std::string_view bounds = pattern_.substr(at_ + 1, end - at_ - 1);
    if (std::ranges::count(bounds, ',') > 1 || bounds == ",") {
      return false;
    }
    // "{,3}" is text to PCRE2 before version 10.43.
    result_ += format("{{{}{}}}", bounds.starts_with(',') ? "0" : "", bounds);
    at_ = end + 1;
    // One reads "{3}?" as optional, the other as taking little.
    require(
        bounds.find(',') != std::string_view::npos || !is_at("?"), "'?' behind an interval", at_);
    if (is_at("+")) {
      result_.insert(atom_, "(?:");
      result_ += ")+";
      ++at_;
    }
    return true;
  }

  // "(?m:" lets a dot match a line feed there, and lines begin anywhere in PCRE2.
  void require_known_option() const {
    const std::string_view rest = pattern_.substr(at_);
    if (!rest.starts_with("(?")) {
      return;
    }
    const std::size_t end = std::min(rest.find_first_not_of("imsx-", 2), rest.size());
    const bool is_option = end > 2 && end < rest.size() && (rest[end] == ':' || rest[end] == ')');
    require(!is_option || rest.substr(0, end).find_first_of("ms") == std::string_view::npos,
            format("the option \"{}\"", rest.substr(0, end)),
            at_);
  }

  // The set that begins here, with sets inside it and intersections ("&&"), which PCRE2 has not:
  // what matches one of its characters.
  std::string set(int depth) {
    require(depth < kMaxDepth, "a set so deep within others", at_);
    const std::size_t begin = at_++;
    const bool negated = is_at("^");
    at_ += negated ? 1 : 0;
    std::vector<Union> parts(1);
    for (bool is_first = true; is_first || !is_at("]"); is_first = false) {
      TESSERA_REQUIRE(at_ < pattern_.size(),
                      ErrorCode::kInvalidData,
                      "the pattern does not compile: the set at offset {} is not closed",
                      begin);
      if (is_at("&&")) {
        at_ += 2;
        parts.emplace_back();
      } else {
        add_item(parts.back(), depth);
      }
    }
    ++at_;
    return format_set(parts, negated, begin);
  }

  void add_item(Union& part, int depth) {
    const char c = pattern_[at_];
    if (c == '[') {
      require(!is_at("[:"), "the set operation '[:'", at_);
      // "[a-[b]]" and "[[a]-b]" look like ranges.
      require(!part.after_dash, "'-' beside a set", at_);
      const std::string inner = set(depth + 1);
      require(!is_at("-") || is_at("-]"), "'-' beside a set", at_);
      const bool is_plain = inner.starts_with('[') && !inner.starts_with("[^") &&
                            !inner.starts_with("[-") && !inner.ends_with("-]");
      if (is_plain) {
        part.items += inner.substr(1, inner.size() - 2);
      } else {
        part.sets.push_back(inner);
      }
    } else if (c == '\\') {
      part.items += escape();
    } else {
      part.items += c == ']' || c == '^' ? "\\" : "";
      part.items += c;
      ++at_;
    }
    part.after_dash = c == '-';
  }

  std::string format_set(const std::vector<Union>& parts, bool negated, std::size_t offset) const {
    std::vector<std::string> unions;
    for (const Union& part : parts) {
      require(!part.items.empty() || !part.sets.empty(), "an empty set", offset);
      const std::string items = part.items.empty() ? "" : "[" + part.items + "]";
      std::string all = items;
      for (const std::string& inner : part.sets) {
        all += (all.empty() ? "" : "|") + inner;
      }
      unions.push_back(part.sets.empty() ? items : "(?:" + all + ")");
    }
    if (unions.size() == 1 && parts.front().sets.empty()) {
      return negated ? "[^" + parts.front().items + "]" : unions.front();
    }
    // Each of them matches one character, the same one.
    std::string all;
    for (std::size_t i = 0; i + 1 < unions.size(); ++i) {
      all += "(?=" + unions[i] + ")";
    }
    all += unions.back();
    return negated ? "(?:(?!" + all + ")(?s:.))" : "(?:" + all + ")";
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  std::string result_;
  std::size_t atom_ = 0;             // where in it begins what a quantifier behind it repeats
  std::vector<std::size_t> groups_;  // where in it the open ones begin
};

}  // namespace

std::string translate_pattern(std::string_view pattern) {
  return Translation(pattern).run();
}

}  // namespace tessera
