#include "tessera/tokenizer/regex.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tessera/base/error.h"
#include "tessera/base/utf8.h"

namespace tessera {
namespace {

// As far as the just-in-time stack may grow, which bounds backtracking.
constexpr std::size_t kStackStartBytes = std::size_t{32} << 10U;
constexpr std::size_t kStackLimitBytes = std::size_t{32} << 20U;

std::string engine_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Rewrites a pattern for PCRE2 and refuses what it would read differently.
class Translation {
 public:
  explicit Translation(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      if (pattern_[at_] == '\\') {
        escape();
      } else {
        literal();
      }
    }
    return std::move(result_);
  }

 private:
  void escape() {
    constexpr std::string_view kSameInBoth = "pPdDrntfx";
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\\';
    if (c == 's' || c == 'S') {
      // PCRE2's \s has U+180E, which Unicode's White_Space has not.
      result_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    } else {
      TESSERA_REQUIRE(!is_word(c) || kSameInBoth.find(c) != std::string_view::npos,
                      ErrorCode::kUnsupported,
                      "the escape \\{} at offset {} of the pattern is not supported",
                      c,
                      at_);
      result_ += pattern_.substr(at_, 2);
    }
    at_ += 2;
  }

  void literal() {
    const char c = pattern_[at_];
    if (in_class_) {
      const bool is_set_operation = c == '[' || pattern_.substr(at_, 2) == "&&";
      TESSERA_REQUIRE(!is_set_operation,
                      ErrorCode::kUnsupported,
                      "the set operation '{}' at offset {} of the pattern is not supported",
                      c,
                      at_);
    }
    if (!in_class_ && (c == '^' || c == '$')) {
      // Of any line, but no line begins at the text's end.
      result_ += c == '^' ? "(?:\\A|(?<=\\n)(?!\\z))" : "(?=\\n|\\z)";
    } else {
      result_ += c;
    }
    require_known_options();
    in_class_ = in_class_ ? c != ']' : c == '[';
    ++at_;
  }

  // "(?m:" lets a dot match a line feed there, and lines begin anywhere in PCRE2.
  void require_known_options() const {
    const std::string_view rest = pattern_.substr(at_);
    if (in_class_ || !rest.starts_with("(?")) {
      return;
    }
    const std::size_t end = std::min(rest.find_first_not_of("imsx-", 2), rest.size());
    const bool is_option = end > 2 && end < rest.size() && (rest[end] == ':' || rest[end] == ')');
    TESSERA_REQUIRE(!is_option || rest.substr(0, end).find_first_of("ms") == std::string_view::npos,
                    ErrorCode::kUnsupported,
                    "the option \"{}\" at offset {} of the pattern is not supported",
                    rest.substr(0, end),
                    at_);
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string result_;
};

}  // namespace

struct Regex::Code {
  pcre2_code* compiled = nullptr;

  explicit Code(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    compiled = pcre2_compile(
        units(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    TESSERA_REQUIRE(compiled != nullptr,
                    ErrorCode::kInvalidData,
                    "the pattern does not compile: {} at offset {} of \"{}\"",
                    engine_message(error),
                    offset,
                    pattern);
    // Without just-in-time support the interpreter matches: the same result, slower.
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
  }

  ~Code() { pcre2_code_free(compiled); }

  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  Code(Code&&) = delete;
  Code& operator=(Code&&) = delete;
};

Regex::Regex(std::string_view pattern)
    : code_(std::make_unique<Code>(Translation(pattern).run())) {}

Regex::~Regex() = default;
Regex::Regex(Regex&& other) noexcept = default;
Regex& Regex::operator=(Regex&& other) noexcept = default;

struct Regex::Scan::State {
  const pcre2_code* compiled;
  std::string_view text;
  pcre2_match_data* match;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
  std::size_t at = 0;           // the text before it has been handed out
  std::size_t match_begin = 0;  // a match that was found but not handed out yet,
  std::size_t match_end = 0;    // when it ends past `at`

  State(const pcre2_code* code, std::string_view subject)
      : compiled(code),
        text(subject),
        match(pcre2_match_data_create_from_pattern(code, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(kStackStartBytes, kStackLimitBytes, nullptr)) {
    pcre2_jit_stack_assign(context, nullptr, stack);
  }

  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
  }

  State(const State&) = delete;
  State& operator=(const State&) = delete;
  State(State&&) = delete;
  State& operator=(State&&) = delete;

  // Finds the next match that is not empty, or sets both ends to the end of the text.
  void find() {
    std::size_t from = at;
    while (from < text.size()) {
      // The text is known to be valid: checking again at each match would be quadratic.
      const int result =
          pcre2_match(compiled, units(text), text.size(), from, PCRE2_NO_UTF_CHECK, match, context);
      if (result == PCRE2_ERROR_NOMATCH) {
        break;
      }
      TESSERA_REQUIRE(result > 0,
                      ErrorCode::kInvalidData,
                      "the pre-tokenization pattern cannot be matched at byte {}: {}",
                      from,
                      engine_message(result));
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match);
      if (bounds[1] > bounds[0]) {
        match_begin = bounds[0];
        match_end = bounds[1];
        return;
      }
      from = bounds[1];
      from += from < text.size() ? front_utf8(text.substr(from)).size : 1;
    }
    match_begin = text.size();
    match_end = text.size();
  }
};

Regex::Scan::Scan(const Regex& regex, std::string_view text)
    : state_(std::make_unique<State>(regex.code_->compiled, text)) {}

Regex::Scan::~Scan() = default;

std::string_view Regex::Scan::next() {
  State& state = *state_;
  if (state.match_end <= state.at) {
    state.find();
  }
  const std::size_t begin = state.at;
  state.at = begin < state.match_begin ? state.match_begin : state.match_end;
  return state.text.substr(begin, state.at - begin);
}

}  // namespace tessera
