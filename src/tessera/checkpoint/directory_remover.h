#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {

// Removes directories that nobody looks for any more, on a thread of its own: that can take minutes
// where file systems are shared, and nobody is to wait for it. What cannot be removed stays: its
// name says that it is nothing, and the next start of the run tries again.
class DirectoryRemover {
 public:
  DirectoryRemover() = default;
  // Waits for what is to be removed.
  ~DirectoryRemover();
  DirectoryRemover(const DirectoryRemover&) = delete;
  DirectoryRemover& operator=(const DirectoryRemover&) = delete;

  void remove(const std::filesystem::path& directory);

  // Leaves what is still to be removed, and comes back once the file under way is gone.
  void give_up();

  // Waits until all is removed.
  void wait();

 private:
  void work();
  bool remove_next(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<std::filesystem::path> waiting_;
  bool is_busy_ = false;
  bool ends_ = false;
  bool gives_up_ = false;

  std::vector<std::jthread> threads_;  // one, once there is work
};

}  // namespace tessera
