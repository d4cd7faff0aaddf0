#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/ir/text_scanner.h"
#include "tessera/ops/all_ops.h"
#include "tessera/ops/testing/conformance.h"

namespace tessera::conformance {
namespace {

// Changes one field of the attributes, by its place; counts them.
class ChangeField final : public AttrVisitor {
 public:
  explicit ChangeField(int place) : place_(place) {}

  void field(std::string_view name, bool& value) override { value = value != is_next(name); }

  void field(std::string_view name, std::int64_t& value) override {
    value += is_next(name) ? 1 : 0;
  }

  // 1/3 has no short decimal form.
  void field(std::string_view name, double& value) override {
    value += is_next(name) ? 1.0 / 3.0 : 0.0;
  }

  void field(std::string_view name, std::string& value) override {
    value += is_next(name) ? " \"\\{,=}\n" : "";
  }

  void field(std::string_view name, DType& value) override {
    if (is_next(name)) {
      value = value == DType::kBF16 ? DType::kF32 : DType::kBF16;
    }
  }

  void field(std::string_view name, AttrText& value) override {
    if (is_next(name)) {
      change(value);
    }
  }

  int count() const { return count_; }

  const std::string& changed() const { return changed_; }

 private:
  // To the first of these texts that the attribute takes and that is not its own.
  static void change(AttrText& value) {
    const std::string before = value.print();
    for (const std::string_view text : {"changed=2",
                                        "int8",
                                        "int4",
                                        "f32[changed=2]",
                                        "1.25 3",
                                        "bias",
                                        "none",
                                        "values",
                                        "keys"}) {
      try {
        value.parse(text);
      } catch (const Error&) {
        continue;
      }
      if (value.print() != before) {
        return;
      }
    }
  }

  bool is_next(std::string_view name) {
    if (count_++ != place_) {
      return false;
    }
    changed_ = name;
    return true;
  }

  int place_;
  int count_ = 0;
  std::string changed_;
};

// `prototype` gives text of a custom op its kind.
void check_round_trip(const OpRef& op, const OpRef& prototype, Failures& failures) {
  const std::string text = to_string(*op);
  try {
    TextScanner scanner(text, std::span(&prototype, 1));
    const OpRef parsed = parse_op(scanner);
    scanner.end();
    if (!equal(*parsed, *op)) {
      failures.push_back(format("\"{}\" parses back as \"{}\"", text, to_string(*parsed)));
    }
  } catch (const Error& error) {
    failures.push_back(format("\"{}\" does not parse back: {}", text, error.what()));
  }
}

// The op with field `place` changed.
OpVariant with_change(const Op& op, ChangeField& change) {
  OpVariant attrs = op.attrs();
  std::visit([&](auto& fields) { visit(fields, change); }, attrs);
  return attrs;
}

}  // namespace

Failures check_attributes(const Sample& sample) {
  Failures failures;
  check_round_trip(sample.op, sample.op, failures);
  ChangeField count(-1);
  with_change(*sample.op, count);
  for (int place = 0; place < count.count(); ++place) {
    ChangeField change(place);
    const auto changed = std::make_shared<const Op>(with_change(*sample.op, change));
    if (equal(*changed, *sample.op)) {
      failures.push_back(format("ops that differ in {} compare equal", change.changed()));
    }
    check_round_trip(changed, sample.op, failures);
  }
  return failures;
}

}  // namespace tessera::conformance
