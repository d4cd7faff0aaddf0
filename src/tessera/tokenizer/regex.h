#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

namespace tessera {

// A pre-tokenization pattern of a tokenizer.json, matched by PCRE2. Such patterns are written for
// Oniguruma; one with a construct that the two engines read differently is refused.
class Regex {
 public:
  // Errors: kUnsupported naming the construct and its offset; kInvalidData if the pattern does not
  // compile, with the engine's reason and the offset.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&& other) noexcept;
  Regex& operator=(Regex&& other) noexcept;
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  struct Match {
    std::size_t begin;
    std::size_t end;
  };

  // Walks over the matches in one text. One thread uses a Scan; any number of them may share the
  // Regex, which must outlive them.
  class Scan {
   public:
    // `text` must be valid UTF-8 and stay alive.
    Scan(const Regex& regex, std::string_view text);
    ~Scan();
    Scan(const Scan&) = delete;
    Scan& operator=(const Scan&) = delete;
    Scan(Scan&&) = delete;
    Scan& operator=(Scan&&) = delete;

    // The next match, which may be empty, but not right behind the one before. Errors: kInvalidData
    // if the engine gives up.
    std::optional<Match> next();

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace tessera
