#include "tessera/base/status_line.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <limits>
#include <utility>

#include <unistd.h>

#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kDelay{2'000};
constexpr std::chrono::milliseconds kLiveInterval{200};
constexpr std::chrono::milliseconds kPlainInterval{10'000};

// When any line of the process was shown, since the clock's epoch; long before, where none was.
std::atomic<StatusLine::Clock::rep>& last_shown() {
  static std::atomic<StatusLine::Clock::rep> last(
      std::numeric_limits<StatusLine::Clock::rep>::min() / 2);
  return last;
}

}  // namespace

StatusLine::~StatusLine() {
  if (terminal_ && drawn_) {
    std::fputs("\n", stderr);
  }
}

bool StatusLine::is_due() const {
  const Clock::time_point now = Clock::now();
  if (silent_ || now - start_ < kDelay) {
    return false;
  }
  const Clock::duration last(last_shown().load());
  return now.time_since_epoch() - last >= (terminal_ ? kLiveInterval : kPlainInterval);
}

void StatusLine::show(const std::string& line) {
  last_shown() = Clock::now().time_since_epoch().count();
  std::fprintf(stderr, terminal_ ? "\r%s\033[K" : "%s\n", printable(line).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

double StatusLine::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

bool StatusLine::is_terminal() {
  return ::isatty(STDERR_FILENO) != 0;
}

bool StatusLine::is_silent() {
  return is_info_silenced();
}

std::string describe_work(const WorkDone& work, const std::string& unit) {
  const bool in_bytes = unit.empty();
  const auto amount = [&](std::int64_t value) {
    return in_bytes ? format_bytes(value) : format_grouped(value);
  };
  const double rate =
      work.seconds > 0 ? static_cast<double>(work.done - work.first) / work.seconds : 0;
  const auto left = static_cast<double>(std::max<std::int64_t>(work.total - work.done, 0));
  return format(
      "{} of {}{} ({:.0f} %){}{}",
      amount(work.done),
      amount(work.total),
      in_bytes ? "" : " " + unit,
      100.0 * static_cast<double>(work.done) /
          static_cast<double>(std::max<std::int64_t>(work.total, 1)),
      in_bytes && rate > 0 ? format("  {}/s", format_bytes(static_cast<std::int64_t>(rate))) : "",
      rate > 0 ? format("  {} left", format_duration(left / rate)) : "");
}

WorkLine::WorkLine(std::string what, std::int64_t total, std::string unit)
    : what_(std::move(what)), unit_(std::move(unit)), total_(total) {}

void WorkLine::reach(std::int64_t done, const std::function<std::string()>& more) {
  const std::scoped_lock lock(mutex_);
  first_ = first_.value_or(done);
  done_ = done;
  show(more);
}

void WorkLine::add(std::int64_t amount) {
  const std::scoped_lock lock(mutex_);
  first_ = first_.value_or(0);
  done_ += amount;
  show(nullptr);
}

void WorkLine::show(const std::function<std::string()>& more) {
  if (!line_.is_due()) {
    return;
  }
  const WorkDone work = {
      .done = done_, .total = total_, .first = *first_, .seconds = line_.seconds()};
  line_.show(format("{}: {}{}", what_, describe_work(work, unit_), more ? "  " + more() : ""));
}

}  // namespace tessera
