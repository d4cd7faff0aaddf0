#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace tessera {

// How far a rank has come in its step, for the ranks that wait for it. The thread that runs the
// step writes it; any thread reads it.
class Progress {
 public:
  // What the calls of a program are: "forward of microbatch 5". Gives the number of the first, by
  // which start_call() knows them.
  std::size_t add_calls(const std::vector<std::string>& names);

  void start_call(std::size_t call) {
    place_.store(static_cast<std::uint64_t>(call) + 1, std::memory_order_relaxed);
  }

  // By any thread that runs instructions.
  void finish_instruction() { finished_.fetch_add(1, std::memory_order_relaxed); }

  // Instructions of all steps so far.
  std::uint64_t finished() const { return finished_.load(std::memory_order_relaxed); }

  // "at call 14 (F of microbatch 5)", or "before its first call".
  std::string place() const;

 private:
  std::atomic<std::uint64_t> finished_ = 0;
  std::atomic<std::uint64_t> place_ = 0;  // the call that was started last + 1

  mutable std::mutex mutex_;        // guards what follows
  std::vector<std::string> names_;  // "call 14 (F of microbatch 5)"
};

// What all ranks of a run have finished, as far as this one has heard.
class RunProgress {
 public:
  RunProgress() = default;
  virtual ~RunProgress() = default;
  RunProgress(const RunProgress&) = delete;
  RunProgress& operator=(const RunProgress&) = delete;

  // A number that rises only when a rank has finished an instruction. Any thread may ask.
  virtual std::uint64_t finished() const = 0;
};

}  // namespace tessera
