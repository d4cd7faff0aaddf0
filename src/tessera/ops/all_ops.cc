#include "tessera/ops/all_ops.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ir/text_scanner.h"

namespace tessera {
namespace {

// Collects attribute names and the text of their values.
class PrintVisitor final : public AttrVisitor {
 public:
  void field(std::string_view name, bool& value) override { add(name, value ? "true" : "false"); }

  void field(std::string_view name, std::int64_t& value) override {
    add(name, std::to_string(value));
  }

  void field(std::string_view name, double& value) override { add(name, format("{}", value)); }

  void field(std::string_view name, std::string& value) override { add(name, quote(value)); }

  void field(std::string_view name, DType& value) override {
    add(name, std::string(tessera::name(value)));
  }

  void field(std::string_view name, AttrText& value) override { add(name, quote(value.print())); }

  const std::vector<std::pair<std::string, std::string>>& fields() const { return fields_; }

 private:
  void add(std::string_view name, std::string text) {
    fields_.emplace_back(std::string(name), std::move(text));
  }

  std::vector<std::pair<std::string, std::string>> fields_;
};

// Writes the values that were read as text into the attributes.
class ParseVisitor final : public AttrVisitor {
 public:
  explicit ParseVisitor(std::map<std::string, std::string> texts) : texts_(std::move(texts)) {}

  void field(std::string_view name, bool& value) override {
    take(name, [&](TextScanner& scanner) {
      value = scanner.accept("true");
      if (!value) {
        scanner.expect("false");
      }
    });
  }

  void field(std::string_view name, std::int64_t& value) override {
    take(name, [&](TextScanner& scanner) { value = scanner.integer(); });
  }

  void field(std::string_view name, double& value) override {
    take(name, [&](TextScanner& scanner) { value = scanner.number(); });
  }

  void field(std::string_view name, std::string& value) override {
    take(name, [&](TextScanner& scanner) { value = scanner.quoted(); });
  }

  void field(std::string_view name, DType& value) override {
    take(name, [&](TextScanner& scanner) {
      const auto dtype = parse_dtype(scanner.word());
      TESSERA_REQUIRE(dtype.has_value(), ErrorCode::kInvalidArgument, "{}: not a dtype", name);
      value = *dtype;
    });
  }

  void field(std::string_view name, AttrText& value) override {
    take(name, [&](TextScanner& scanner) { value.parse(scanner.quoted()); });
  }

  void require_all_taken(std::string_view op) const {
    TESSERA_REQUIRE(texts_.empty(),
                    ErrorCode::kInvalidArgument,
                    "op {} has no attribute {}",
                    op,
                    texts_.begin()->first);
  }

 private:
  template <class Read>
  void take(std::string_view name, Read read) {
    const auto found = texts_.find(std::string(name));
    if (found == texts_.end()) {
      return;
    }
    TextScanner scanner(found->second);
    read(scanner);
    scanner.end();
    texts_.erase(found);
  }

  std::map<std::string, std::string> texts_;
};

// A default-constructed op of every kind of the list but CustomOp, by name.
const std::map<std::string, OpVariant>& default_ops() {
  static const auto kOps = [] {
    std::map<std::string, OpVariant> ops;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      const auto add = [&](OpVariant op) {
        if (!std::holds_alternative<CustomOp>(op)) {
          const std::string name = std::visit([](const auto& a) { return info(a).name; }, op);
          ops.emplace(name, std::move(op));
        }
      };
      (add(OpVariant(std::in_place_index<I>)), ...);
    }(std::make_index_sequence<std::variant_size_v<OpVariant>>());
    return ops;
  }();
  return kOps;
}

using Fields = std::vector<std::pair<std::string, std::string>>;

Fields fields_of(OpVariant op) {
  PrintVisitor visitor;
  std::visit([&](auto& attrs) { visit(attrs, visitor); }, op);
  return visitor.fields();
}

OpVariant prototype(TextScanner& scanner, const std::string& name) {
  const auto found = default_ops().find(name);
  if (found != default_ops().end()) {
    return found->second;
  }
  for (const OpRef& custom : scanner.custom_ops()) {
    if (info(*custom).name == name) {
      return custom->attrs();
    }
  }
  scanner.fail_expected(format("an op instead of {}", name));
}

// Instantiates make_op for every alternative, so that op files need not see this list.
template <class Variant>
struct MakeOps;

template <class... As>
struct MakeOps<std::variant<As...>> {
  static constexpr auto kFunctions = std::make_tuple(&make_op<As>...);
};

}  // namespace

template <class Attrs>
OpRef make_op(Attrs attrs) {
  if constexpr (std::is_same_v<Attrs, CustomOp>) {
    const std::string name = info(attrs).name;
    TESSERA_REQUIRE(!default_ops().contains(name),
                    ErrorCode::kInvalidArgument,
                    "op {}: found the name of a built-in op, which a program's text would be read "
                    "as; expected a name of its own",
                    name);
  }
  return std::make_shared<const Op>(OpVariant(std::move(attrs)));
}

// Odr-uses the table, which keeps the instantiations in this object file.
extern const void* const kMakeOpTable;
const void* const kMakeOpTable = &MakeOps<OpVariant>::kFunctions;

OpInfo info(const Op& op) {
  return std::visit([](const auto& attrs) { return info(attrs); }, op.attrs());
}

TensorTypes infer(const Op& op, Types operands) {
  return std::visit([&](const auto& attrs) { return infer(attrs, operands); }, op.attrs());
}

FactorRule factors(const Op& op, Types operands) {
  return std::visit([&](const auto& attrs) { return factors(attrs, operands); }, op.attrs());
}

Works work(const Op& op, Types operands) {
  return std::visit([&](const auto& attrs) { return work(attrs, operands); }, op.attrs());
}

Cost cost(const Op& op, Types operands) {
  Cost total;
  for (const Work& part : work(op, operands)) {
    total.flop += flop(part);
    total.bytes_read += part.bytes_read;
    total.bytes_written += part.bytes_written;
  }
  return total;
}

Traffic traffic(const Op& op, Types operands) {
  Traffic sent;
  for (const CollectiveUse& use : collectives(op, operands)) {
    add(sent, use.sent, use.count);
  }
  return sent;
}

void backward(const Op& op, GradBuilder& grad) {
  std::visit([&](const auto& attrs) { backward(attrs, grad); }, op.attrs());
}

Collectives collectives(const Op& op, Types operands) {
  return std::visit(
      [&](const auto& attrs) -> Collectives {
        if constexpr (requires { collectives(attrs, operands); }) {
          return collectives(attrs, operands);
        } else {
          return {};
        }
      },
      op.attrs());
}

OpRef rewritten(const Op& op, Types whole, std::string_view factor, const AxisSizes& axes) {
  const FactorRule rule = factors(op, whole);
  TESSERA_CHECK(std::ranges::find(rule.rewrite, factor) != rule.rewrite.end(),
                "{} has no form for factor {}: {}",
                info(op).name,
                factor,
                to_string(rule));
  return std::visit(
      [&](const auto& attrs) -> OpRef {
        if constexpr (requires { rewritten(attrs, whole, axes); }) {
          return rewritten(attrs, whole, axes);
        } else if constexpr (requires { rewritten(attrs, whole, factor, axes); }) {
          return rewritten(attrs, whole, factor, axes);
        } else {
          fail(ErrorCode::kInternal,
               "{} names factor {} but has no form for it",
               info(attrs).name,
               factor);
        }
      },
      op.attrs());
}

bool equal(const Op& a, const Op& b) {
  return a.attrs() == b.attrs();
}

std::string to_string(const Op& op) {
  const std::string name = info(op).name;
  const Fields fields = fields_of(op.attrs());
  const auto found = default_ops().find(name);
  const Fields defaults = found != default_ops().end() ? fields_of(found->second) : Fields();
  std::string text;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const auto& [key, value] = fields[i];
    if (defaults.empty() || defaults[i].second != value) {
      text += format("{}{}={}", text.empty() ? "" : ", ", key, value);
    }
  }
  return text.empty() ? name : format("{} {{{}}}", name, text);
}

OpRef parse_op(TextScanner& scanner) {
  const std::string name = scanner.word();
  OpVariant op = prototype(scanner, name);
  std::map<std::string, std::string> texts;
  if (scanner.accept("{")) {
    do {
      std::string key = scanner.word();
      scanner.expect("=");
      texts[std::move(key)] = scanner.attribute();
    } while (scanner.accept(","));
    scanner.expect("}");
  }
  ParseVisitor visitor(std::move(texts));
  std::visit([&](auto& attrs) { visit(attrs, visitor); }, op);
  visitor.require_all_taken(name);
  return std::make_shared<const Op>(std::move(op));
}

}  // namespace tessera
