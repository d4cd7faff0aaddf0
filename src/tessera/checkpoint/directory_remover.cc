#include "tessera/checkpoint/directory_remover.h"

#include <system_error>
#include <utility>

#include "tessera/base/threads.h"

namespace tessera {

namespace fs = std::filesystem;

DirectoryRemover::~DirectoryRemover() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  threads_.clear();
}

void DirectoryRemover::remove(const fs::path& directory) {
  std::unique_lock lock(mutex_);
  waiting_.push_back(directory);
  if (threads_.empty() && !start_thread(threads_, [this] { work(); })) {
    while (remove_next(lock)) {
    }
  }
  changed_.notify_all();
}

void DirectoryRemover::give_up() {
  std::unique_lock lock(mutex_);
  gives_up_ = true;
  waiting_.clear();
  changed_.wait(lock, [&] { return !is_busy_; });
  gives_up_ = false;
}

void DirectoryRemover::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !is_busy_ && waiting_.empty(); });
}

void DirectoryRemover::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
    if (!remove_next(lock)) {
      return;
    }
  }
}

// File by file, so that it can be given up between two. False where there is nothing.
bool DirectoryRemover::remove_next(std::unique_lock<std::mutex>& lock) {
  if (waiting_.empty()) {
    return false;
  }
  const fs::path directory = std::move(waiting_.front());
  waiting_.pop_front();
  is_busy_ = true;
  std::error_code error;
  lock.unlock();
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    {
      const std::lock_guard look(mutex_);
      if (gives_up_) {
        break;
      }
    }
    std::error_code ignored;
    fs::remove_all(entry->path(), ignored);
  }
  lock.lock();
  if (!gives_up_) {
    lock.unlock();
    fs::remove_all(directory, error);
    lock.lock();
  }
  is_busy_ = false;
  changed_.notify_all();
  return true;
}

}  // namespace tessera
