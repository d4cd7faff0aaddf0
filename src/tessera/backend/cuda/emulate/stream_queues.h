#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace tessera::cuda {

// What streams were given and have yet to do. Work of one may wait for a signal, a point of
// another, which has a number until the number gets another one.
class StreamQueues {
 public:
  using Work = std::function<void()>;

  void give(std::size_t stream, const Work& work);

  // Work that meets other ranks: done in the order in which it is given, whatever the streams, as a
  // library launches it on a device.
  void launch(std::size_t stream, const Work& work);

  // The next signal of that number: the work that says that it is reached.
  Work signal(std::size_t number);

  // Holds what the stream is given from now on until the number's signal is reached; nothing where
  // no signal has the number.
  void wait(std::size_t number, std::size_t stream);

  // No signal has a number any more.
  void forget_signals();

  // All that the streams were given, one of them as early and another as late as what they wait for
  // allows, each in its turn: an order that no event demands is found out. Where work fails, the
  // rest is dropped.
  void work_off();

 private:
  // What a stream does next, or what it waits for.
  struct Given {
    Work work = nullptr;
    std::size_t signal = 0;
    std::optional<std::size_t> launch = std::nullopt;  // its number, of work that is launched
  };

  std::deque<Given>& stream(std::size_t number);
  bool is_done() const;
  void drop();

  // Does the next of a stream, unless it waits; whether there was any.
  bool advance(std::deque<Given>& stream);

  // The same of the first stream that can, from one on.
  bool advance_any(std::size_t first);

  std::vector<std::deque<Given>> given_;        // by stream
  std::map<std::size_t, std::size_t> signals_;  // the last of each number
  std::size_t num_signals_ = 0;
  std::set<std::size_t> done_signals_;
  std::size_t num_launches_ = 0;  // given
  std::size_t num_launched_ = 0;  // done
  std::size_t num_worked_off_ = 0;
};

}  // namespace tessera::cuda
