#include "tessera/cli/step_files.h"

#include <cstdint>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/simulate/trace.h"
#include "tessera/simulate/trace_picture.h"

namespace tessera {

void require_names(const StepFiles& files) {
  TESSERA_REQUIRE(
      files.trace.empty() || files.trace.extension() == ".json",
      ErrorCode::kInvalidConfig,
      "--trace={}: expected a name that ends in .json: Perfetto opens the trace as such",
      files.trace.string());
  TESSERA_REQUIRE(files.gantt.empty() || files.gantt.extension() == ".svg",
                  ErrorCode::kInvalidConfig,
                  "--gantt={}: expected a name that ends in .svg: the drawing is one",
                  files.gantt.string());
}

void write_step_files(const SimulationReport& report, const StepFiles& files) {
  if (!files.has_any()) {
    return;
  }
  const StepTrace trace = trace_of(report.run.ranks(), report.timeline);
  if (!files.trace.empty()) {
    write_file_atomic(files.trace, chrome_json(trace));
  }
  if (!files.gantt.empty()) {
    const Explanation* const facts = report.run.facts();
    const std::int64_t limit =
        facts != nullptr ? facts->fit.limit : report.run.cluster().device.memory_bytes;
    write_file_atomic(files.gantt, draw_trace(trace, limit));
  }
}

}  // namespace tessera
