#include "tessera/runtime/stream_thread.h"

#include <utility>

namespace tessera {

StreamThread::StreamThread(Lane& lane, std::size_t num_items, Work work, Note note)
    : lane_(lane), thread_([this, num_items, work = std::move(work), note = std::move(note)] {
        loop(num_items, work, note);
      }) {}

StreamThread::~StreamThread() {
  lane_.stop();
}

void StreamThread::loop(std::size_t num_items, const Work& work, const Note& note) {
  std::size_t item = 0;
  Lane::Ticket step = 0;
  for (Lane::Ticket next = 1;; ++next) {
    lane_.wait_for_issue(next);
    if (lane_.stopped()) {
      return;
    }
    try {
      work(item, step);
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      if (note) {
        note(error);
      }
      lane_.fail(error);
      return;
    }
    lane_.finish();
    if (++item == num_items) {
      item = 0;
      ++step;
    }
  }
}

}  // namespace tessera
