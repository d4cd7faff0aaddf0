#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <set>

namespace tessera::cuda {

// What two streams were given and have yet to do. Work of one may wait for a signal, a point of the
// other, which has a number until the number gets another one.
class StreamQueues {
 public:
  using Work = std::function<void()>;

  void give(std::size_t stream, const Work& work);

  // The next signal of that number: the work that says that it is reached.
  Work signal(std::size_t number);

  // Holds what the stream is given from now on until the number's signal is reached; nothing where
  // no signal has the number.
  void wait(std::size_t number, std::size_t stream);

  // No signal has a number any more.
  void forget_signals();

  // All that the streams were given, one of them as early and the other as late as what they wait
  // for allows: an order that no event demands is found out. Ranks change in step. Where work
  // fails, the rest is dropped.
  void work_off();

 private:
  // What a stream does next, or what it waits for.
  struct Given {
    Work work;
    std::size_t signal = 0;
  };

  // Does the next of a stream, unless it waits; whether there was any.
  bool advance(std::deque<Given>& stream);

  std::array<std::deque<Given>, 2> given_;
  std::map<std::size_t, std::size_t> signals_;  // the last of each number
  std::size_t num_signals_ = 0;
  std::set<std::size_t> done_signals_;
  std::size_t num_worked_off_ = 0;
};

}  // namespace tessera::cuda
