#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tessera/ir/op.h"
#include "tessera/ir/tensor_type.h"

namespace tessera {

// Reads the text forms of graphs and programs token by token. Spaces and newlines separate tokens;
// `;` starts a comment that ends with its line.
// Errors: kInvalidArgument with line, column, what was found and what was expected.
class TextScanner {
 public:
  // `custom_ops` are prototypes of ops from outside the list, which text may then name.
  explicit TextScanner(std::string_view text, std::span<const OpRef> custom_ops = {})
      : text_(text), custom_ops_(custom_ops) {}

  std::span<const OpRef> custom_ops() const { return custom_ops_; }

  bool at_end();

  // Whether the text goes on with these characters.
  bool comes(std::string_view text);

  // Consumes `token` if it is next.
  bool accept(std::string_view token);

  void expect(std::string_view token);

  // Like expect(), but letters and digits may follow at once: x16, +64.
  void expect_prefix(std::string_view token);

  // A name: letters, digits and any of _ . + - that do not start with a digit.
  std::string word();

  std::int64_t integer();

  // An integer of 32 bits.
  std::int32_t index();

  double number();

  // A double-quoted string with \" \\ \n escapes.
  std::string quoted();

  // The raw text of an attribute's value: a quoted string, or everything up to , or }.
  std::string attribute();

  // %12
  ValueId value();

  TensorType tensor_type();

  // Throws unless everything was read.
  void end();

  [[noreturn]] void fail_expected(std::string_view expected);

 private:
  void skip_space();

  std::string_view text_;
  std::span<const OpRef> custom_ops_;
  std::size_t position_ = 0;
};

// `text` in double quotes, as TextScanner::quoted() reads it.
std::string quote(std::string_view text);

}  // namespace tessera
