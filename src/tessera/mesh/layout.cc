#include "tessera/mesh/layout.h"

#include <set>

#include "tessera/base/error.h"
#include "tessera/ir/text_scanner.h"

namespace tessera {
namespace {

constexpr std::string_view kPad = "pad";
constexpr std::string_view kPartial = "partial";

std::string_view name(PartialOp op) {
  switch (op) {
    case PartialOp::kSum:
      return "sum";
    case PartialOp::kMax:
      return "max";
  }
  return "unknown op";
}

// Errors: kInvalidArgument for an axis used before.
void use_axes(const AxisSizes& axes, std::set<std::string>& used) {
  for (const AxisSize& axis : axes) {
    TESSERA_REQUIRE(used.insert(axis.name).second,
                    ErrorCode::kInvalidArgument,
                    "a layout names axis \"{}\" twice; each axis cuts one dim, or is partial",
                    axis.name);
  }
}

void verify(const DimLayout& layout, const Dim& dim) {
  TESSERA_REQUIRE(!layout.axes.empty() || layout.padding == 0,
                  ErrorCode::kInvalidArgument,
                  "a layout pads dim {}, which no axis cuts",
                  dim.name);
  TESSERA_REQUIRE(!dim.count || layout.axes.empty(),
                  ErrorCode::kUnsupported,
                  "dim {} has a run-time count and cannot be cut over {}",
                  dim.name,
                  to_string(layout.axes));
  TESSERA_REQUIRE(layout.padding >= 0 && (dim.bound + layout.padding) % num_ranks(layout.axes) == 0,
                  ErrorCode::kInvalidArgument,
                  "a layout pads {} = {} by {} for {} equal pieces",
                  dim.name,
                  dim.bound,
                  layout.padding,
                  num_ranks(layout.axes));
}

// One dim up to `terminator`, which is consumed.
DimLayout parse_dim(TextScanner& scanner, const Dim& dim, std::string_view terminator) {
  DimLayout layout;
  scanner.expect(dim.name);
  if (!scanner.accept(":")) {
    scanner.expect(terminator);
    return layout;
  }
  do {
    layout.axes.push_back(parse_axis(scanner));
    if (scanner.accept(kPad)) {
      layout.padding = scanner.integer();
      scanner.expect(terminator);
      return layout;
    }
  } while (!scanner.accept(terminator));
  return layout;
}

void parse_partial(TextScanner& scanner, Layout& layout) {
  if (scanner.accept(name(PartialOp::kMax))) {
    layout.partial_op = PartialOp::kMax;
  } else {
    scanner.expect(name(PartialOp::kSum));
  }
  scanner.expect("(");
  do {
    layout.partial.push_back(parse_axis(scanner));
  } while (!scanner.accept(")"));
}

}  // namespace

void verify(const Layout& layout, const TensorType& type) {
  TESSERA_REQUIRE(layout.dims.size() == type.num_dims(),
                  ErrorCode::kInvalidArgument,
                  "a layout of {} dims for {}",
                  layout.dims.size(),
                  to_string(type));
  std::set<std::string> used;
  for (std::size_t i = 0; i < layout.dims.size(); ++i) {
    use_axes(layout.dims[i].axes, used);
    verify(layout.dims[i], type.dims[i]);
  }
  use_axes(layout.partial, used);
  TESSERA_REQUIRE(!layout.partial.empty() || layout.partial_op == PartialOp::kSum,
                  ErrorCode::kInvalidArgument,
                  "a layout that is partial over no axis names the op {}",
                  name(layout.partial_op));
}

std::string to_string(const Layout& layout, const TensorType& type) {
  verify(layout, type);
  std::string text = "[";
  for (std::size_t i = 0; i < layout.dims.size(); ++i) {
    const DimLayout& dim = layout.dims[i];
    text += format("{}{}", i == 0 ? "" : ", ", type.dims[i].name);
    text += dim.axes.empty() ? "" : format(": {}", to_string(dim.axes));
    text += dim.padding == 0 ? "" : format(" {} {}", kPad, dim.padding);
  }
  text += "]";
  if (!layout.partial.empty()) {
    text += format(" {} {}({})", kPartial, name(layout.partial_op), to_string(layout.partial));
  }
  return text;
}

Layout parse_layout(std::string_view text, const TensorType& type) {
  return with_context([&] { return format("layout \"{}\"", text); },
                      [&] {
                        TextScanner scanner(text);
                        Layout layout;
                        scanner.expect("[");
                        for (std::size_t i = 0; i < type.num_dims(); ++i) {
                          const std::string_view terminator = i + 1 < type.num_dims() ? "," : "]";
                          layout.dims.push_back(parse_dim(scanner, type.dims[i], terminator));
                        }
                        if (type.num_dims() == 0) {
                          scanner.expect("]");
                        }
                        if (scanner.accept(kPartial)) {
                          parse_partial(scanner, layout);
                        }
                        scanner.end();
                        verify(layout, type);
                        return layout;
                      });
}

std::int64_t padding_of(std::int64_t bound, const AxisSizes& axes) {
  const std::int64_t ranks = num_ranks(axes);
  return (ranks - bound % ranks) % ranks;
}

Layout whole_layout(const TensorType& type) {
  return {.dims = std::vector<DimLayout>(type.num_dims())};
}

TensorType local_type(const TensorType& global, const Layout& layout) {
  verify(layout, global);
  TensorType local = global;
  for (std::size_t i = 0; i < local.dims.size(); ++i) {
    Dim& dim = local.dims[i];
    dim.bound = (dim.bound + layout.dims[i].padding) / num_ranks(layout.dims[i].axes);
  }
  return local;
}

}  // namespace tessera
