#include "tessera/mesh/factor_rule.h"

#include "tessera/base/error.h"
#include "tessera/ir/text_scanner.h"

namespace tessera {
namespace {

std::string join(const FactorRule::Factors& names, std::string_view separator) {
  std::string text;
  for (const std::string& name : names) {
    text += text.empty() ? name : format("{}{}", separator, name);
  }
  return text;
}

std::string join_groups(const std::vector<FactorRule::Factors>& groups) {
  std::string text;
  for (const FactorRule::Factors& group : groups) {
    text += format("{}({})", text.empty() ? "" : ", ", join(group, " "));
  }
  return text;
}

std::vector<FactorRule::Factors> parse_groups(TextScanner& scanner) {
  std::vector<FactorRule::Factors> groups;
  while (scanner.accept("(")) {
    FactorRule::Factors group;
    while (!scanner.accept(")")) {
      group.push_back(scanner.word());
    }
    groups.push_back(std::move(group));
    if (!scanner.accept(",")) {
      break;
    }
  }
  return groups;
}

// Names up to the next '|', which is consumed, or the end; none at all is a list too (an op without
// leading dims reduces nothing). Returns whether a '|' followed.
bool parse_list(TextScanner& scanner, FactorRule::Factors& names) {
  while (!scanner.accept("|")) {
    if (scanner.at_end()) {
      return false;
    }
    if (!names.empty()) {
      scanner.expect(",");
    }
    names.push_back(scanner.word());
  }
  return true;
}

// The list whose keyword is next, which is consumed.
FactorRule::Factors& next_list(TextScanner& scanner, FactorRule& rule) {
  if (scanner.accept("reduce")) {
    return rule.reduce;
  }
  if (scanner.accept("max")) {
    return rule.max;
  }
  if (scanner.accept("rewrite")) {
    return rule.rewrite;
  }
  if (scanner.accept("divide")) {
    return rule.divide;
  }
  scanner.expect("whole");
  return rule.whole;
}

}  // namespace

std::string to_string(const FactorRule& rule) {
  std::string text = join_groups(rule.operands);
  text += format("{}->{}{}",
                 text.empty() ? "" : " ",
                 rule.results.empty() ? "" : " ",
                 join_groups(rule.results));
  if (!rule.reduce.empty()) {
    text += format(" | reduce {}", join(rule.reduce, ", "));
  }
  if (!rule.max.empty()) {
    text += format(" | max {}", join(rule.max, ", "));
  }
  if (!rule.whole.empty()) {
    text += format(" | whole {}", join(rule.whole, ", "));
  }
  if (!rule.rewrite.empty()) {
    text += format(" | rewrite {}", join(rule.rewrite, ", "));
  }
  if (!rule.divide.empty()) {
    text += format(" | divide {}", join(rule.divide, ", "));
  }
  return text;
}

FactorRule parse_factor_rule(std::string_view text) {
  return with_context([&] { return format("factor rule \"{}\"", text); },
                      [&] {
                        TextScanner scanner(text);
                        FactorRule rule;
                        rule.operands = parse_groups(scanner);
                        scanner.expect("->");
                        rule.results = parse_groups(scanner);
                        bool is_more = scanner.accept("|");
                        while (is_more) {
                          is_more = parse_list(scanner, next_list(scanner, rule));
                        }
                        scanner.end();
                        return rule;
                      });
}

std::string factor_names(std::size_t count, char first) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += i == 0 ? "" : " ";
    text += static_cast<char>(first + static_cast<char>(i));
  }
  return text;
}

std::string factor_list(std::string names) {
  for (std::size_t at = names.find(' '); at != std::string::npos; at = names.find(' ', at + 2)) {
    names.replace(at, 1, ", ");
  }
  return names;
}

}  // namespace tessera
