#include "tessera/passes/pass_dump.h"

#include <cstddef>
#include <utility>
#include <variant>

#include "tessera/base/file.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

std::size_t num_nodes(const Graph& graph) {
  return graph.nodes.size();
}

std::size_t num_nodes(const LaidOutGraph& laid_out) {
  return laid_out.graph.nodes.size();
}

std::size_t num_nodes(const Program& program) {
  std::size_t result = 0;
  for (const Segment& segment : program.segments) {
    result += segment.instructions.size();
  }
  return result;
}

}  // namespace

PassDump::PassDump(std::filesystem::path directory) : directory_(std::move(directory)) {
  if (!directory_.empty()) {
    std::filesystem::create_directories(directory_);
  }
}

void PassDump::add(std::string_view name, const Representation& form, double seconds) {
  if (directory_.empty()) {
    return;
  }
  const auto& [text, nodes] = std::visit(
      [](const auto& content) { return std::pair(to_string(content), num_nodes(content)); }, form);
  const std::string file = format("{:02}-{}", number_++, name);
  write_file_atomic(directory_ / (file + ".txt"), text);
  lines_ += format("{:24} {:9.1f} ms {:7} nodes{}\n",
                   file,
                   1e3 * seconds,
                   nodes,
                   text == before_ ? "  (unchanged)" : "");
  before_ = text;
  write_file_atomic(directory_ / "passes.txt", lines_);
}

}  // namespace tessera
