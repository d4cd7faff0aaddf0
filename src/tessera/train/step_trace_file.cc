#include "tessera/train/step_trace_file.h"

#include <algorithm>
#include <limits>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/simulate/trace.h"

namespace tessera {
namespace {

constexpr Ticks kTicksPerNanosecond = 1000;

// When the first of them began.
std::int64_t first_begin(const std::map<std::int64_t, std::vector<std::vector<StepStamp>>>& ranks) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const auto& [rank, streams] : ranks) {
    for (const std::vector<StepStamp>& stamps : streams) {
      for (const StepStamp& stamp : stamps) {
        first = std::min(first, stamp.begin);
      }
    }
  }
  return first;
}

}  // namespace

void StepTraceFile::require_among(std::int64_t first, std::int64_t last) const {
  TESSERA_REQUIRE(first <= last,
                  ErrorCode::kInvalidConfig,
                  "--trace-step={}: this start runs no step, since the run is at step {} of {}",
                  step_,
                  first - 1,
                  last);
  TESSERA_REQUIRE(step_ >= first && step_ <= last,
                  ErrorCode::kInvalidConfig,
                  "--trace-step={}: expected one of the steps {} to {}, which this start runs",
                  step_,
                  first,
                  last);
}

void StepTraceFile::add(std::int64_t rank, const Executor& executor) {
  StreamStamps streams;
  for (std::size_t stream = 0; stream < executor.program().streams.size(); ++stream) {
    const std::span<const StepStamp> stamps = executor.stamps().of_stream(stream);
    streams.emplace_back(stamps.begin(), stamps.end());
  }
  const std::scoped_lock lock(mutex_);
  stamps_[rank] = std::move(streams);
}

bool StepTraceFile::has_any() const {
  const std::scoped_lock lock(mutex_);
  return !stamps_.empty();
}

std::filesystem::path StepTraceFile::write(const std::filesystem::path& directory) const {
  const std::scoped_lock lock(mutex_);
  TESSERA_CHECK(!stamps_.empty(), "no rank has said what it did in step {}", step_);
  const std::int64_t zero = first_begin(stamps_);
  std::map<const Program*, IssueOrder> orders;
  std::vector<SeenRank> seen;
  for (const auto& [rank, streams] : stamps_) {
    const Program& program = programs_.of(rank).step;
    const auto order = orders.find(&program);
    SeenRank& own = seen.emplace_back(
        SeenRank{.rank = static_cast<std::size_t>(rank),
                 .program = program,
                 .order = order != orders.end()
                              ? order->second
                              : orders.emplace(&program, issue_order(program)).first->second,
                 .streams = {}});
    for (const std::vector<StepStamp>& stamps : streams) {
      std::vector<SeenStep>& steps = own.streams.emplace_back();
      for (const StepStamp& stamp : stamps) {
        steps.push_back({.begin = (stamp.begin - zero) * kTicksPerNanosecond,
                         .end = (stamp.end - zero) * kTicksPerNanosecond,
                         .step = stamp.step});
      }
    }
  }
  const bool has_all = std::ssize(stamps_) == mesh_.num_ranks();
  std::filesystem::path path =
      directory / (has_all ? format("trace-{}.json", step_)
                           : format("trace-{}-rank-{}.json", step_, stamps_.begin()->first));
  write_file_atomic(path, chrome_json(trace_of(mesh_, seen)));
  return path;
}

}  // namespace tessera
