#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace tessera {

// Threads that share out work. Pieces are taken one at a time, as threads are free, so that one
// that has lost its core, or never got it, holds up the others by one piece at most. Who waits
// spins for some microseconds, where the system has nothing else to run, and then sleeps.
class ThreadTeam {
 public:
  // The thread that calls run(), and size - 1 others, which start here.
  // Errors: kDeviceError where the system refuses a thread.
  explicit ThreadTeam(int size);
  ~ThreadTeam();

  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(members_.size()); }

  // Calls body(piece, member) for each of `pieces`, at most 2^32 - 1, and returns when all calls
  // have. They are begun in order. `member` is the thread, 0 the caller's: calls of one member do
  // not overlap. `body` must not throw, nor run anything on this team. One thread at a time calls
  // this; any number where the size is 1.
  template <class Body>
  void run(std::int64_t pieces, const Body& body) {
    if (pieces <= 1 || size() == 1) {
      for (std::int64_t piece = 0; piece < pieces; ++piece) {
        body(piece, 0);
      }
      return;
    }
    share({.call = [](const void* work,
                      std::int64_t piece,
                      int member) { (*static_cast<const Body*>(work))(piece, member); },
           .work = &body,
           .pieces = pieces});
  }

 private:
  struct Job {
    void (*call)(const void* work, std::int64_t piece, int member) = nullptr;
    const void* work = nullptr;
    std::int64_t pieces = 0;
  };

  struct alignas(64) Member {
    std::atomic<int> cpu = -1;  // where it last began to take pieces; -1: it sleeps
    // What it alone knows, times in ns.
    std::int64_t looked = 0;        // when it last asked how often it had lost its core
    std::int64_t lost = 0;          // and how often that was
    std::int64_t shares_since = 0;  // since when it has had its core with another member; 0: not
  };

  void share(const Job& job);
  void work(std::size_t index);
  void stop();
  // How many pieces of that round the member ran.
  std::uint32_t take_pieces(std::uint32_t round, std::size_t index);
  void settle(std::size_t index);
  void look_around(Member& member);
  template <class Done>
  bool spin_until(const Done& done) const;
  void wait_for_others();
  void wait_for_round(std::uint32_t seen, Member& member);

  Job job_;                              // of the round; read by who has taken a piece of it
  std::atomic<std::uint64_t> left_ = 0;  // the round, and its pieces that nobody took: 32 bits each
  std::atomic<std::uint32_t> pending_ = 0;  // pieces that have not ended
  std::atomic<bool> caller_sleeps_ = false;
  std::atomic<std::uint32_t> round_ = 0;  // wraps around
  std::atomic<int> sleepers_ = 0;         // members that sleep until the next round
  std::atomic<bool> stopped_ = false;
  std::atomic<std::int64_t> crowded_until_ = 0;  // when, in ns, members may spin again
  std::vector<Member> members_;
  std::vector<std::jthread> threads_;  // of members 1 and up
};

}  // namespace tessera
