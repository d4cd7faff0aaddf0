#include "tessera/base/mapped_files.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera {

namespace {

struct Range {
  const std::byte* data;
  std::size_t size;
  std::string path;
  bool watched;
  std::atomic<bool> lost = false;
  Range* next = nullptr;
};

// What a handler can reach: a list that is read without the lock under which it changes.
struct Ranges {
  std::atomic<Range*> first = nullptr;
  std::mutex mutex;
  // The record's path, and where it is made; empty: none.
  std::array<char, 4096> record{};
  std::array<char, 4096> made{};
  std::int64_t rank = 0;
  std::uintptr_t page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));

  Range* find(const void* address) const {
    const auto* const at = static_cast<const std::byte*>(address);
    Range* range = first;
    while (range != nullptr && (at < range->data || at >= range->data + range->size)) {
      range = range->next;
    }
    return range;
  }
};

// Never destroyed: mappings may live as long as the process.
Ranges& ranges() {
  static Ranges* const kAll = new Ranges;
  return *kAll;
}

void write_some(int file, std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(file, text.data(), text.size());
}

void write_quoted(int file, std::string_view text) {
  for (const char& c : text) {
    if (c == '"' || c == '\\') {
      write_some(file, "\\");
    }
    write_some(file, static_cast<unsigned char>(c) < ' ' ? "?" : std::string_view(&c, 1));
  }
}

constexpr std::string_view kReason =
    ": it can no longer be read: it was cut while it was in use, or its disk failed";

void leave_record(const Ranges& all, std::string_view path) {
  const int file = ::open(all.made.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) {
    return;
  }
  std::array<char, 96> head{};
  const int size = std::snprintf(head.data(),
                                 head.size(),
                                 R"({"rank":%lld,"exit_code":3,"error":"invalid data","message":")",
                                 static_cast<long long>(all.rank));
  write_some(file, {head.data(), static_cast<std::size_t>(std::max(size, 0))});
  write_quoted(file, path);
  write_some(file, kReason);
  write_some(file, "\"}\n");
  ::close(file);
  ::rename(all.made.data(), all.record.data());
}

// Puts zeros in place of the page of a watched file; whether that went well.
bool replace_page(Range& range, void* address) {
  const std::uintptr_t size = ranges().page_bytes;
  char* const page = static_cast<char*>(address) - reinterpret_cast<std::uintptr_t>(address) % size;
  range.lost = true;
  return ::mmap(page, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
         MAP_FAILED;
}

void on_bus_error(int signal, siginfo_t* info, void* /*context*/) {
  const Ranges& all = ranges();
  Range* const range = all.find(info->si_addr);
  if (range == nullptr) {
    std::signal(signal, SIG_DFL);  // which it meets again when this returns
    return;
  }
  if (range->watched && replace_page(*range, info->si_addr)) {
    return;
  }
  const std::string_view path = range->path;
  write_some(STDERR_FILENO, "error: ");
  write_some(STDERR_FILENO, path);
  write_some(STDERR_FILENO, kReason);
  write_some(STDERR_FILENO, "\n");
  if (all.record[0] != '\0') {
    leave_record(all, path);
  }
  ::_exit(exit_code(ErrorCode::kInvalidData));
}

}  // namespace

void guard_mapped_files() {
  ranges();
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

void set_mapped_file_record(const std::filesystem::path& path, std::int64_t rank) {
  Ranges& all = ranges();
  const std::string made = path.string() + ".made";
  if (made.size() < all.made.size()) {
    all.rank = rank;
    std::ranges::copy(made.c_str(), made.c_str() + made.size() + 1, all.made.begin());
    const std::string record = path.string();
    std::ranges::copy(record.c_str(), record.c_str() + record.size() + 1, all.record.begin());
  }
}

void require_readable(const std::byte* data) {
  Ranges& all = ranges();
  const std::scoped_lock lock(all.mutex);
  const Range* const range = all.find(data);
  TESSERA_REQUIRE(range == nullptr || !range->lost,
                  ErrorCode::kInvalidData,
                  "{}{}",
                  range == nullptr ? "" : range->path,
                  kReason);
}

void note_mapping(const std::byte* data,
                  std::size_t size,
                  const std::filesystem::path& path,
                  bool watched) {
  Ranges& all = ranges();
  auto* const range =
      new Range{.data = data, .size = size, .path = path.string(), .watched = watched};
  const std::scoped_lock lock(all.mutex);
  range->next = all.first;
  all.first = range;
}

void forget_mapping(const std::byte* data) {
  Ranges& all = ranges();
  const std::scoped_lock lock(all.mutex);
  Range* before = nullptr;
  for (Range* range = all.first; range != nullptr; before = range, range = range->next) {
    if (range->data == data) {
      if (before == nullptr) {
        all.first = range->next;
      } else {
        before->next = range->next;
      }
      delete range;
      return;
    }
  }
}

}  // namespace tessera
