#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

namespace tessera {

// One line on stderr about work under way: the first after two seconds, then in place where that is
// a terminal, else every so often. Several in a process take turns, as of its ranks or of work
// within other work. None in a process that another one speaks for (silence_info()).
class StatusLine {
 public:
  using Clock = std::chrono::steady_clock;

  StatusLine() = default;
  // Leaves the last line on the terminal.
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Whether it is time for another line; then show() it.
  bool is_due() const;
  void show(const std::string& line);

  // Since the line was made.
  double seconds() const;

 private:
  bool terminal_ = is_terminal();
  bool silent_ = is_silent();
  Clock::time_point start_ = Clock::now();
  bool drawn_ = false;

  static bool is_terminal();
  static bool is_silent();
};

// What is done of work whose amount is known beforehand.
struct WorkDone {
  std::int64_t done = 0;
  std::int64_t total = 0;
  std::int64_t first = 0;  // done before the seconds began, by an earlier run
  double seconds = 0;
};

// "1.20 GiB of 3.00 GiB (40 %)  2.1 MiB/s  12 s left"; counts of `unit` where one is named: "120 of
// 300 tensors (40 %)  0.2 s left".
std::string describe_work(const WorkDone& work, const std::string& unit = "");

// A status line of such work: "tokenizing: 1.20 GiB of ..". Safe to use from several threads.
class WorkLine {
 public:
  // `total` are bytes, or a count of `unit`.
  WorkLine(std::string what, std::int64_t total, std::string unit = "");

  // All that is done, of which the first call's part may be an earlier run's. What `more` says, if
  // a line is due, goes behind.
  void reach(std::int64_t done, const std::function<std::string()>& more = nullptr);

  // So much more is done.
  void add(std::int64_t amount);

 private:
  void show(const std::function<std::string()>& more);

  std::string what_;
  std::string unit_;
  std::int64_t total_;
  std::mutex mutex_;  // of what follows
  std::int64_t done_ = 0;
  std::optional<std::int64_t> first_;
  StatusLine line_;
};

}  // namespace tessera
