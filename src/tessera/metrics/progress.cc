#include "tessera/metrics/progress.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include "tessera/base/format.h"
#include "tessera/base/terminal.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

constexpr std::string_view kSeparator = "  ";

bool is_terminal(std::FILE* file) {
  const char* kind = std::getenv("TERM");
  return ::isatty(::fileno(file)) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

struct Field {
  int rank;  // the highest goes first when the line is too long
  std::string text;
};

// In the order of the line.
std::vector<Field> make_fields(const ProgressValues& values) {
  std::vector<Field> fields;
  const auto add = [&](int rank, std::string text) {
    fields.push_back({.rank = rank, .text = std::move(text)});
  };
  add(0, format("step {}/{}", values.step, values.num_steps));
  if (!values.activity.empty()) {
    add(1, values.activity);
  }
  add(2, format("loss {:.4f}", values.loss));
  add(5, format("grad norm {:.3g}", values.grad_norm));
  add(3, format("{} tok/s", format_grouped(std::llround(values.tokens_per_second))));
  if (values.flop_per_second) {
    add(6, format("{}FLOP/s", format_count(*values.flop_per_second)));
  }
  // More than all of it says that the peak was measured beside something else.
  if (values.share_of_peak && *values.share_of_peak <= 1.0) {
    add(7, format("{:.0f} % of peak", *values.share_of_peak * 100.0));
  }
  if (values.memory_bytes) {
    add(8, format_bytes(*values.memory_bytes));
  }
  if (values.seconds_left) {
    add(4, format("{} left", format_duration(*values.seconds_left)));
  }
  return fields;
}

std::string join(const std::vector<Field>& fields) {
  std::string line;
  for (const Field& field : fields) {
    line += (line.empty() ? "" : std::string(kSeparator)) + field.text;
  }
  return line;
}

}  // namespace

std::string format_progress(const ProgressValues& values, int width) {
  std::vector<Field> fields = make_fields(values);
  std::string line = join(fields);
  while (width > 0 && line.size() > static_cast<std::size_t>(width)) {
    if (fields.size() == 1) {
      return line.substr(0, static_cast<std::size_t>(width));
    }
    fields.erase(std::max_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) {
      return a.rank < b.rank;
    }));
    line = join(fields);
  }
  return line;
}

Progress::Progress(const ProgressOptions& options)
    : options_(options), terminal_(options.terminal.value_or(is_terminal(options.out))) {}

Progress::~Progress() {
  finish();
}

void Progress::update(const ProgressValues& values, Clock::time_point now) {
  const bool last = values.step == values.num_steps;
  const bool due = terminal_ ? is_due(now) : !last_draw_ || values.step % options_.plain_every == 0;
  last_ = values;
  last_is_shown_ = false;
  if (due || last) {
    draw(values);
    last_draw_ = now;
  }
}

void Progress::show_activity(std::string_view activity, Clock::time_point now) {
  if (terminal_ && last_ && is_due(now)) {
    ProgressValues values = *last_;
    values.activity = activity;
    draw(values);
    last_draw_ = now;
    last_is_shown_ = false;
  }
}

void Progress::clear() {
  if (terminal_ && last_draw_) {
    std::fputs("\r\x1b[K", options_.out);
    std::fflush(options_.out);
    last_draw_.reset();
    last_is_shown_ = false;
  }
}

void Progress::finish() {
  if (!last_) {
    return;
  }
  if (!last_is_shown_) {
    draw(*last_);
  }
  if (terminal_) {
    std::fputs("\n", options_.out);
    std::fflush(options_.out);
  }
  last_.reset();
  last_draw_.reset();
}

bool Progress::is_due(Clock::time_point now) const {
  const std::chrono::duration<double> interval(options_.min_interval_seconds);
  return !last_draw_ || now - *last_draw_ >= interval;
}

void Progress::draw(const ProgressValues& values) {
  if (terminal_) {
    // One column is left free: a full line would make some terminals wrap.
    const int width = options_.width.value_or(terminal_width(options_.out)) - 1;
    const std::string line = format_progress(values, std::max(width, 1));
    std::fprintf(options_.out, "\r%s\x1b[K", line.c_str());
  } else {
    std::fprintf(options_.out, "%s\n", format_progress(values, 0).c_str());
  }
  std::fflush(options_.out);
  last_is_shown_ = true;
}

}  // namespace tessera
