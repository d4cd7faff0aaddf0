#include "tessera/tokenizer/regex.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tessera/base/error.h"
#include "tessera/base/utf8.h"
#include "tessera/tokenizer/regex_translation.h"

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
    : code_(std::make_unique<Code>(translate_pattern(pattern))) {}

Regex::~Regex() = default;
Regex::Regex(Regex&& other) noexcept = default;
Regex& Regex::operator=(Regex&& other) noexcept = default;

struct Regex::Scan::State {
  const pcre2_code* compiled;
  std::string_view text;
  pcre2_match_data* match;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
  std::size_t at = 0;                             // where the search goes on
  std::size_t last_end = std::string_view::npos;  // of the match that was handed out

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

  // Where the next match begins and ends. Errors: kInvalidData if the engine gives up.
  std::optional<Match> search() {
    // The text is known to be valid: checking again at each match would be quadratic.
    const int result =
        pcre2_match(compiled, units(text), text.size(), at, PCRE2_NO_UTF_CHECK, match, context);
    if (result == PCRE2_ERROR_NOMATCH) {
      return std::nullopt;
    }
    TESSERA_REQUIRE(result > 0,
                    ErrorCode::kInvalidData,
                    "the pre-tokenization pattern cannot be matched at byte {}: {}",
                    at,
                    engine_message(result));
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match);
    return Match{.begin = bounds[0], .end = bounds[1]};
  }
};

Regex::Scan::Scan(const Regex& regex, std::string_view text)
    : state_(std::make_unique<State>(regex.code_->compiled, text)) {}

Regex::Scan::~Scan() = default;

std::optional<Regex::Match> Regex::Scan::next() {
  State& state = *state_;
  while (state.at <= state.text.size()) {
    const auto found = state.search();
    if (!found) {
      return std::nullopt;
    }
    if (found->begin < found->end || found->end != state.last_end) {
      state.at = found->end;
      state.last_end = found->end;
      return found;
    }
    state.at += state.at < state.text.size() ? front_utf8(state.text.substr(state.at)).size : 1;
  }
  return std::nullopt;
}

}  // namespace tessera
