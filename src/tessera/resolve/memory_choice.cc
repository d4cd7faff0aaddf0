#include "tessera/resolve/memory_choice.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

constexpr char kStored = '>';  // before the name of an op

constexpr std::array kKinds = {std::pair("recompute", &ChosenOf::recompute),
                               std::pair("optimizer", &ChosenOf::optimizer),
                               std::pair("parameters", &ChosenOf::parameters),
                               std::pair("activations", &ChosenOf::activations)};

class ChoiceParser {
 public:
  explicit ChoiceParser(std::string_view text) : text_(text), rest_(text) {}

  MemoryChoice parse() {
    MemoryChoice choice = {.limit = number()};
    expect(" of ");
    choice.all_bytes = number();
    if (accept(" for")) {
      choice.of.recompute = false;
      for (const auto& [word, kind] : kKinds) {
        choice.of.*kind = accept(format(" {}", word));
      }
      require(choice.of != ChosenOf{.recompute = false});
    }
    expect(":");
    while (accept(choice.rules.empty() ? " " : "; ")) {
      if (choice.rules.empty() && rest_.starts_with('|')) {
        break;
      }
      rule(choice.rules);
    }
    if (accept(choice.rules.empty() ? "| " : " | ")) {
      do {
        OffloadedBytes& moved = choice.moved_states.emplace_back();
        moved.optimizer = number();
        expect(" ");
        moved.parameters = number();
      } while (accept(", "));
    }
    require(rest_.empty());
    return choice;
  }

 private:
  void require(bool condition) const {
    TESSERA_REQUIRE(condition,
                    ErrorCode::kInvalidConfig,
                    "found \"{}\", expected BYTES of BYTES [for KINDS]: FIRST-LAST OP >OP ...; "
                    "FIRST-LAST ... | "
                    "BYTES BYTES, ..., layers in their order, as a run writes it into its "
                    "config.toml; leave it out to choose",
                    text_);
  }

  bool accept(std::string_view word) {
    const bool is_there = rest_.starts_with(word);
    rest_.remove_prefix(is_there ? word.size() : 0);
    return is_there;
  }

  void expect(std::string_view word) { require(accept(word)); }

  std::int64_t number() {
    std::int64_t value = -1;
    const auto [place, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    rest_.remove_prefix(static_cast<std::size_t>(place - rest_.data()));
    require(error == std::errc() && value >= 0);
    return value;
  }

  void rule(RecomputeRules& rules) {
    const std::int64_t next = rules.empty() ? 0 : rules.back().end;
    RecomputeRule& rule = rules.emplace_back();
    rule.first = number();
    expect("-");
    const std::int64_t last = number();
    require(next <= rule.first && rule.first <= last && last < RecomputeRule().end);
    rule.end = last + 1;
    while (rest_.starts_with(' ') && !rest_.starts_with(" | ")) {
      expect(" ");
      const bool is_stored = rest_.starts_with(kStored);
      rest_.remove_prefix(is_stored ? 1 : 0);
      const std::string_view op = rest_.substr(0, rest_.find_first_of(" ;"));
      require(!op.empty() && op.front() != '|');
      (is_stored ? rule.store : rule.keep).emplace_back(op);
      rest_.remove_prefix(op.size());
    }
  }

  std::string_view text_;
  std::string_view rest_;
};

}  // namespace

std::string to_string(const MemoryChoice& choice) {
  std::string text = format("{} of {}", choice.limit, choice.all_bytes);
  if (choice.of != ChosenOf()) {
    text += " for";
    for (const auto& [word, kind] : kKinds) {
      text += choice.of.*kind ? format(" {}", word) : "";
    }
  }
  text += ":";
  for (const RecomputeRule& rule : choice.rules) {
    text += format("{} {}-{}", text.back() == ':' ? "" : ";", rule.first, rule.end - 1);
    for (const std::string& op : rule.keep) {
      text += " " + op;
    }
    for (const std::string& op : rule.store) {
      text += format(" {}{}", kStored, op);
    }
  }
  for (std::size_t i = 0; i < choice.moved_states.size(); ++i) {
    const OffloadedBytes& moved = choice.moved_states[i];
    text += format("{}{} {}", i == 0 ? " | " : ", ", moved.optimizer, moved.parameters);
  }
  return text;
}

MemoryChoice parse_memory_choice(std::string_view text) {
  return ChoiceParser(text).parse();
}

}  // namespace tessera
