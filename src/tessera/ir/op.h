#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/ir/tensor_type.h"

namespace tessera {

// The closed variant over every op. Complete in ops/all_ops.h; the functions below are defined
// there too, so that graphs can be printed, parsed and verified from this floor.
class Op;

// Immutable, hence shared: copying a graph does not copy its ops.
using OpRef = std::shared_ptr<const Op>;

// Result `result` is written over the memory of operand `operand`. A required alias is part of the
// op's meaning (state updated in place); another one is taken when the operand's value is not
// needed afterwards.
struct Alias {
  std::int32_t result = 0;
  std::int32_t operand = 0;
  bool required = false;

  friend bool operator==(const Alias&, const Alias&) = default;
};

// A view op moves no data: its result is another way to look at its operands' memory.
enum class ViewKind : std::uint8_t { kNone, kSlice, kConcat };

struct OpInfo {
  std::string name;
  std::int32_t num_operands = 0;
  std::int32_t num_results = 1;
  std::vector<Alias> aliases = {};
  ViewKind view = ViewKind::kNone;
};

// An attribute of a type that has a text, as visitors see it.
class AttrText {
 public:
  AttrText() = default;
  virtual ~AttrText() = default;
  AttrText(const AttrText&) = delete;
  AttrText& operator=(const AttrText&) = delete;

  virtual std::string print() const = 0;

  // Errors: kInvalidArgument quoting the text.
  virtual void parse(std::string_view text) = 0;
};

// One of a type with to_string(value) and parse_text(text, value).
template <class T>
class AttrTextOf final : public AttrText {
 public:
  explicit AttrTextOf(T& value) : value_(value) {}

  std::string print() const override { return to_string(value_); }

  void parse(std::string_view text) override { parse_text(text, value_); }

 private:
  T& value_;
};

// Calls back with each attribute of an op: printing reads them, parsing writes them.
class AttrVisitor {
 public:
  AttrVisitor() = default;
  virtual ~AttrVisitor() = default;
  AttrVisitor(const AttrVisitor&) = delete;
  AttrVisitor& operator=(const AttrVisitor&) = delete;

  virtual void field(std::string_view name, bool& value) = 0;
  virtual void field(std::string_view name, std::int64_t& value) = 0;
  virtual void field(std::string_view name, double& value) = 0;
  virtual void field(std::string_view name, std::string& value) = 0;
  virtual void field(std::string_view name, DType& value) = 0;
  virtual void field(std::string_view name, AttrText& value) = 0;

  // Axes, formats, the type of a tensor.
  template <class T>
  void text_field(std::string_view name, T& value) {
    AttrTextOf<T> text(value);
    field(name, text);
  }
};

// Wraps the attributes of any op of the list (or a CustomOp).
template <class Attrs>
OpRef make_op(Attrs attrs);

OpInfo info(const Op& op);
TensorTypes infer(const Op& op, Types operands);
bool equal(const Op& a, const Op& b);

// "matmul", or "matmul {transpose_b=true}" with the attributes that differ from their defaults.
std::string to_string(const Op& op);

class TextScanner;
OpRef parse_op(TextScanner& scanner);

}  // namespace tessera
