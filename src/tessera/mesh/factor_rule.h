#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Which dims of an op's operands and results belong together, from which layouts propagate.
// Text form: "(b t k), (n k) -> (b t n) | reduce k". Each group in parentheses is a tensor, each
// name in it the factor of one dim; a factor is summed over where `reduce` names it, the largest is
// taken over it where `max` does, it must not be split where `whole` names it, and where `rewrite`
// names it may be split only in the form of the op that rewritten() gives (ops/op.h), whose kernel
// knows its place among the shards or talks to them. One that `divide` names is split as far as a
// plan says at all, even if nothing around the op is. Names are letters, digits and '_'.
struct FactorRule {
  using Factors = std::vector<std::string>;  // of one tensor, a name a dim

  std::vector<Factors> operands;
  std::vector<Factors> results;
  Factors reduce;   // splitting one leaves the results partial sums
  Factors max;      // splitting one leaves the results partial maxima
  Factors whole;    // must not be split
  Factors rewrite;  // may be split, by another form of the op
  Factors divide;   // is split weakly (DimCut), too

  friend bool operator==(const FactorRule&, const FactorRule&) = default;
};

std::string to_string(const FactorRule& rule);

// Errors: kInvalidArgument quoting the text.
FactorRule parse_factor_rule(std::string_view text);

// "a b c" with `count` fresh names starting at letter `first`: for ops over any number of dims.
std::string factor_names(std::size_t count, char first = 'a');

// "a b c" -> "a, b, c", as `reduce` and `whole` list them.
std::string factor_list(std::string names);

}  // namespace tessera
