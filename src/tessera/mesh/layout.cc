#include "tessera/mesh/layout.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/ir/text_scanner.h"

namespace tessera {
namespace {

constexpr std::string_view kZigzag = "zigzag";
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

// "data.node data.pair"
std::string axis_names(const std::vector<std::size_t>& axes,
                       const Mesh& mesh,
                       std::string_view separator) {
  std::string text;
  for (const std::size_t axis : axes) {
    text += format("{}{}", text.empty() ? "" : separator, mesh.axes[axis].name);
  }
  return text;
}

std::string mesh_axis_names(const Mesh& mesh) {
  std::string text;
  for (const MeshAxis& axis : mesh.axes) {
    text += format("{}{}", text.empty() ? "" : ", ", axis.name);
  }
  return text.empty() ? "none" : text;
}

void require_axis(std::size_t axis, const Mesh& mesh) {
  TESSERA_REQUIRE(axis < mesh.axes.size(),
                  ErrorCode::kInvalidArgument,
                  "a layout names axis {} of a mesh of {} axes",
                  axis,
                  mesh.axes.size());
}

// Marks the axes as used. Errors: kInvalidArgument for an unknown axis, or one used before.
void use_axes(const std::vector<std::size_t>& axes, const Mesh& mesh, std::vector<bool>& used) {
  for (const std::size_t axis : axes) {
    require_axis(axis, mesh);
    TESSERA_REQUIRE(!used[axis],
                    ErrorCode::kInvalidArgument,
                    "a layout names axis \"{}\" twice; each axis cuts one dim, or is partial",
                    mesh.axes[axis].name);
    used[axis] = true;
  }
}

std::size_t parse_axis(TextScanner& scanner, const Mesh& mesh) {
  const std::string word = scanner.word();
  const auto axis = std::ranges::find(mesh.axes, word, &MeshAxis::name);
  TESSERA_REQUIRE(axis != mesh.axes.end(),
                  ErrorCode::kInvalidArgument,
                  "no axis \"{}\"; the axes of the mesh are: {}",
                  word,
                  mesh_axis_names(mesh));
  return static_cast<std::size_t>(axis - mesh.axes.begin());
}

// One dim up to `terminator`, which is consumed.
DimLayout parse_dim(TextScanner& scanner,
                    const Dim& dim,
                    std::string_view terminator,
                    const Mesh& mesh) {
  DimLayout layout;
  scanner.expect(dim.name);
  if (!scanner.accept(":")) {
    scanner.expect(terminator);
    return layout;
  }
  bool more = true;
  while (more) {
    layout.axes.push_back(parse_axis(scanner, mesh));
    const bool zigzag = scanner.accept(kZigzag);
    layout.order = zigzag ? DimOrder::kZigzag : DimOrder::kContiguous;
    const bool padded = scanner.accept(kPad);
    layout.padding = padded ? scanner.integer() : 0;
    if (zigzag || padded) {
      scanner.expect(terminator);
      more = false;
    } else {
      more = !scanner.accept(terminator);
    }
  }
  return layout;
}

void parse_partial(TextScanner& scanner, const Mesh& mesh, Layout& layout) {
  if (scanner.accept(name(PartialOp::kMax))) {
    layout.partial_op = PartialOp::kMax;
  } else {
    scanner.expect(name(PartialOp::kSum));
  }
  scanner.expect("(");
  layout.partial.push_back(parse_axis(scanner, mesh));
  while (!scanner.accept(")")) {
    scanner.expect(",");
    layout.partial.push_back(parse_axis(scanner, mesh));
  }
}

// The elements of the dim that each piece holds, padding included; a contiguous shard is one piece.
std::int64_t piece_size(std::int64_t bound, const DimLayout& dim, std::int64_t num_pieces) {
  return (bound + dim.padding + num_pieces - 1) / num_pieces;
}

std::int64_t local_bound(std::int64_t bound, const DimLayout& dim, const Mesh& mesh) {
  const std::int64_t pieces_per_shard = dim.order == DimOrder::kZigzag ? 2 : 1;
  return pieces_per_shard * piece_size(bound, dim, pieces_per_shard * shards(dim, mesh));
}

// A rank's place among the shards of the dim, first axis most significant.
std::int64_t shard_index(const DimLayout& dim, const Mesh& mesh, std::int64_t rank) {
  const std::vector<std::int64_t> coordinates = mesh.coordinates(rank);
  std::int64_t index = 0;
  for (const std::size_t axis : dim.axes) {
    index = index * mesh.axes[axis].size + coordinates[axis];
  }
  return index;
}

}  // namespace

void verify(const Layout& layout, const TensorType& type, const Mesh& mesh) {
  TESSERA_REQUIRE(layout.dims.size() == type.num_dims(),
                  ErrorCode::kInvalidArgument,
                  "a layout of {} dims for {}",
                  layout.dims.size(),
                  to_string(type));
  std::vector<bool> used(mesh.axes.size());
  for (std::size_t i = 0; i < layout.dims.size(); ++i) {
    const DimLayout& dim = layout.dims[i];
    use_axes(dim.axes, mesh, used);
    TESSERA_REQUIRE(dim.padding >= 0,
                    ErrorCode::kInvalidArgument,
                    "a layout pads dim {} by {}, expected at least 0",
                    type.dims[i].name,
                    dim.padding);
    TESSERA_REQUIRE(!dim.axes.empty() || (dim.order == DimOrder::kContiguous && dim.padding == 0),
                    ErrorCode::kInvalidArgument,
                    "a layout orders or pads dim {}, which no axis cuts",
                    type.dims[i].name);
  }
  use_axes(layout.partial, mesh, used);
  TESSERA_REQUIRE(std::ranges::is_sorted(layout.partial),
                  ErrorCode::kInvalidArgument,
                  "the partial axes {} are not in the order of the mesh: {}",
                  axis_names(layout.partial, mesh, ", "),
                  mesh_axis_names(mesh));
  TESSERA_REQUIRE(!layout.partial.empty() || layout.partial_op == PartialOp::kSum,
                  ErrorCode::kInvalidArgument,
                  "a layout that is partial over no axis names the op {}",
                  name(layout.partial_op));
}

std::string to_string(const Layout& layout, const TensorType& type, const Mesh& mesh) {
  verify(layout, type, mesh);
  std::string text = "[";
  for (std::size_t i = 0; i < layout.dims.size(); ++i) {
    const DimLayout& dim = layout.dims[i];
    text += format("{}{}", i == 0 ? "" : ", ", type.dims[i].name);
    text += dim.axes.empty() ? "" : format(": {}", axis_names(dim.axes, mesh, " "));
    text += dim.order == DimOrder::kZigzag ? format(" {}", kZigzag) : "";
    text += dim.padding == 0 ? "" : format(" {} {}", kPad, dim.padding);
  }
  text += "]";
  if (!layout.partial.empty()) {
    text += format(
        " {} {}({})", kPartial, name(layout.partial_op), axis_names(layout.partial, mesh, ", "));
  }
  return text;
}

Layout parse_layout(std::string_view text, const TensorType& type, const Mesh& mesh) {
  return with_context([&] { return format("layout \"{}\"", text); },
                      [&] {
                        TextScanner scanner(text);
                        Layout layout;
                        scanner.expect("[");
                        for (std::size_t i = 0; i < type.num_dims(); ++i) {
                          const std::string_view terminator = i + 1 < type.num_dims() ? "," : "]";
                          layout.dims.push_back(parse_dim(scanner, type.dims[i], terminator, mesh));
                        }
                        if (type.num_dims() == 0) {
                          scanner.expect("]");
                        }
                        if (scanner.accept(kPartial)) {
                          parse_partial(scanner, mesh, layout);
                        }
                        scanner.end();
                        verify(layout, type, mesh);
                        return layout;
                      });
}

std::int64_t shards(const DimLayout& dim, const Mesh& mesh) {
  std::int64_t product = 1;
  for (const std::size_t axis : dim.axes) {
    require_axis(axis, mesh);
    product *= mesh.axes[axis].size;
  }
  return product;
}

TensorType local_type(const TensorType& global, const Layout& layout, const Mesh& mesh) {
  verify(layout, global, mesh);
  TensorType local = global;
  for (std::size_t i = 0; i < local.dims.size(); ++i) {
    Dim& dim = local.dims[i];
    const DimLayout& cut = layout.dims[i];
    TESSERA_REQUIRE(!dim.count || cut.axes.empty(),
                    ErrorCode::kUnsupported,
                    "{}: dim {} has a run-time count and cannot be cut over {}",
                    to_string(global),
                    dim.name,
                    axis_names(cut.axes, mesh, " "));
    dim.bound = local_bound(dim.bound, cut, mesh);
  }
  return local;
}

DimRange local_range(std::int64_t bound,
                     const DimLayout& dim,
                     const Mesh& mesh,
                     std::int64_t rank) {
  TESSERA_REQUIRE(dim.order == DimOrder::kContiguous,
                  ErrorCode::kUnsupported,
                  "the elements of a zigzag dim on rank {} are no one range",
                  rank);
  const std::int64_t size = local_bound(bound, dim, mesh);
  const std::int64_t begin = shard_index(dim, mesh, rank) * size;
  return {.begin = std::min(begin, bound), .end = std::min(begin + size, bound)};
}

}  // namespace tessera
