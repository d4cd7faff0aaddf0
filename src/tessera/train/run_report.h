#pragma once

#include <filesystem>

#include "tessera/report/metrics_table.h"
#include "tessera/report/page.h"

namespace tessera {

// What the files of a run directory say about the run. What cannot be read becomes a notice, so
// that a broken run has a page too. Errors: kDeviceError where the directory cannot be read.
ReportPage describe_run(const std::filesystem::path& run_dir, const MetricsTable& metrics);

struct ReportOptions {
  std::filesystem::path run_dir;
  std::filesystem::path output = "report.html";
  BrokenLines broken = BrokenLines::kRefuse;
};

// `tessera report`: writes the page of a run, ended or under way. Errors: kInvalidConfig where
// there is no such run; kInvalidData naming the line of metrics.jsonl that is broken; kDeviceError.
void report_command(const ReportOptions& options);

}  // namespace tessera
