// What a disk that keeps a list of its writes (logged_disk.c) would hold after a power cut.
//
// disk_log watch METRICS LIST MARKS COMMAND...: runs COMMAND, and writes for each step whose line
//   METRICS has "<length of LIST> <step>" to MARKS as soon as it is seen there.
// disk_log cut BASE LIST MARKS SHARE SEED IMAGE: makes IMAGE of BASE, the disk before the first
//   record of LIST, with all of LIST up to the last flush before SHARE (0 to 1) of its records, and
//   of each sector what some write since then, or none, left there. Prints the newest step that had
//   a line by then, or 0.

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSector = 512;

// Steps with a line in `text`.
std::int64_t count_lines(std::string_view text) {
  return std::count(text.begin(), text.end(), '\n');
}

int watch(const std::vector<std::string>& words) {
  const fs::path metrics = words.at(0);
  const fs::path list = words.at(1);
  std::ofstream marks(words.at(2));
  std::vector<char*> argv;
  for (std::size_t i = 3; i < words.size(); ++i) {
    argv.push_back(const_cast<char*>(words[i].c_str()));
  }
  argv.push_back(nullptr);
  const pid_t process = ::fork();
  if (process == 0) {
    ::execvp(argv.front(), argv.data());
    ::_exit(127);
  }
  std::int64_t seen = 0;
  int status = 0;
  for (bool ended = false; !ended;) {
    ended = ::waitpid(process, &status, WNOHANG) == process;
    std::error_code none;
    if (fs::exists(metrics, none)) {
      // The length after the line: what comes later only makes the mark say less.
      const std::int64_t steps = count_lines(read_file(metrics));
      if (steps > seen) {
        seen = steps;
        marks << fs::file_size(list) << ' ' << steps << '\n' << std::flush;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

struct Record {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::uint32_t kind = 0;
};

// The list's records and where each begins.
class DiskList {
 public:
  explicit DiskList(const fs::path& path) : bytes_(read_file(path)) {
    for (std::size_t at = 0; at + sizeof(Record) <= bytes_.size();) {
      starts_.push_back(at);
      at += sizeof(Record) + record(starts_.size() - 1).bytes;
    }
  }

  std::size_t size() const { return starts_.size(); }

  std::size_t start(std::size_t i) const { return starts_[i]; }

  Record record(std::size_t i) const {
    Record record;
    std::memcpy(&record, bytes_.data() + starts_[i], sizeof record);
    return record;
  }

  const char* data(std::size_t i) const { return bytes_.data() + starts_[i] + sizeof(Record); }

 private:
  std::string bytes_;
  std::vector<std::size_t> starts_;
};

// The disk's sectors, changed in place.
class Image {
 public:
  Image(const fs::path& base, const fs::path& path) {
    fs::remove(path);
    const std::string copy =
        format("cp --sparse=always -- '{}' '{}'", base.string(), path.string());
    TESSERA_REQUIRE(std::system(copy.c_str()) == 0, ErrorCode::kDeviceError, "{} failed", copy);
    file_ = FileDescriptor(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    TESSERA_REQUIRE(file_.get() >= 0, ErrorCode::kDeviceError, "cannot open {}", path.string());
  }

  void write(std::uint64_t offset, const char* data, std::size_t bytes) {
    TESSERA_REQUIRE(::pwrite(file_.get(), data, bytes, static_cast<off_t>(offset)) ==
                        static_cast<ssize_t>(bytes),
                    ErrorCode::kDeviceError,
                    "cannot write the image: {}",
                    std::strerror(errno));
  }

 private:
  FileDescriptor file_;
};

// Part of a write that the cut may have let through: all, nothing, or its first sectors or others.
void write_some(Image& image, const Record& record, const char* data, std::mt19937_64& random) {
  const std::uint64_t draw = random() % 4;
  if (draw == 0) {
    return;
  }
  if (draw < 3) {
    image.write(record.offset, data, record.bytes);
    return;
  }
  for (std::size_t at = 0; at < record.bytes; at += kSector) {
    if (random() % 2 == 0) {
      image.write(record.offset + at, data + at, std::min<std::size_t>(kSector, record.bytes - at));
    }
  }
}

std::int64_t newest_step(const fs::path& marks, std::size_t length) {
  std::ifstream file(marks);
  std::int64_t newest = 0;
  std::uint64_t at = 0;
  for (std::int64_t step = 0; file >> at >> step;) {
    newest = at <= length ? step : newest;
  }
  return newest;
}

int cut(const std::vector<std::string>& words) {
  const DiskList list(words.at(1));
  TESSERA_REQUIRE(list.size() > 0, ErrorCode::kInvalidData, "{} holds no record", words.at(1));
  const auto end =
      static_cast<std::size_t>(std::stod(words.at(3)) * static_cast<double>(list.size() - 1));
  std::mt19937_64 random(std::stoull(words.at(4)));
  Image image(words.at(0), words.at(5));
  std::size_t flushed = end;
  while (flushed > 0 && list.record(flushed - 1).kind == 0) {
    --flushed;
  }
  for (std::size_t i = 0; i < end; ++i) {
    const Record record = list.record(i);
    if (record.kind != 0) {
      continue;
    }
    if (i < flushed) {
      image.write(record.offset, list.data(i), record.bytes);
    } else {
      write_some(image, record, list.data(i), random);
    }
  }
  std::cout << newest_step(words.at(2), list.start(end)) << '\n';
  return 0;
}

int run(int argc, char** argv) {
  const std::vector<std::string> words(argv + std::min(argc, 2), argv + argc);
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "watch" && words.size() > 3) {
    return watch(words);
  }
  if (verb == "cut" && words.size() == 6) {
    return cut(words);
  }
  std::cerr << "usage: disk_log watch METRICS LIST MARKS COMMAND...\n"
               "       disk_log cut BASE LIST MARKS SHARE SEED IMAGE\n";
  return 2;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  try {
    return tessera::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
}
