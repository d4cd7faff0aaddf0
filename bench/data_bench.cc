// `tessera data tokenize`: how it scales from 1 thread to 2, and what memory it takes, for text and
// JSONL, plain and compressed. The peer of the scaling is the tokenizer alone: as many processes as
// threads, each of which encodes its own text in memory, which says what the machine's cores allow.
//
// usage: data_bench [--megabytes=N]      (it starts itself again as data_bench --encode=...)

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/base/test_directory.h"
#include "tessera/tokenizer/train_bpe.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kScalingTarget = 1.9;
constexpr double kMemoryTargetMb = 200;

// English-like: words of a vocabulary by Zipf's law, sentences, lines.
std::string make_text(std::size_t size, std::uint64_t key) {
  std::vector<std::string> words;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    std::string word;
    const auto length = 2 + static_cast<std::size_t>(uniform(1, 2 * i) * 9);
    for (std::uint64_t c = 0; c < length; ++c) {
      word += static_cast<char>('a' + static_cast<int>(uniform(2, 16 * i + c) * 26));
    }
    words.push_back(word);
  }
  std::string text;
  text.reserve(size + 64);
  for (std::uint64_t i = 0; text.size() < size; ++i) {
    const double draw = uniform(key, i);
    const auto rank =
        static_cast<std::size_t>(static_cast<double>(words.size()) * draw * draw * draw * draw);
    text += words[std::min(rank, words.size() - 1)];
    text += i % 97 == 96 ? "\n" : i % 13 == 12 ? ". " : " ";
  }
  return text;
}

void write_lines(const std::filesystem::path& path, std::string_view text, std::size_t repeats) {
  std::ofstream out(path, std::ios::binary);
  for (std::size_t r = 0; r < repeats; ++r) {
    for (std::string_view rest = text; !rest.empty();) {
      const std::size_t end =
          std::min(rest.find('\n', std::min<std::size_t>(2000, rest.size())), rest.size());
      std::string line(rest.substr(0, end));
      std::replace(line.begin(), line.end(), '\n', ' ');
      out << "{\"id\": " << r << ", \"text\": \"" << line << "\"}\n";
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
}

struct Run {
  double seconds;
  double peak_mb;
};

// Runs the program and waits for it.
Run run(const std::vector<std::string>& argv) {
  const Clock::time_point start = Clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    std::freopen("/dev/null", "w", stdout);
    std::vector<char*> arguments;
    for (const std::string& argument : argv) {
      arguments.push_back(const_cast<char*>(argument.c_str()));
    }
    arguments.push_back(nullptr);
    ::execv(arguments[0], arguments.data());
    std::_Exit(127);
  }
  int status = 0;
  rusage usage{};
  ::wait4(child, &status, 0, &usage);
  if (status != 0) {
    std::fprintf(stderr, "%s failed\n", argv[0].c_str());
    std::exit(1);
  }
  return {.seconds = std::chrono::duration<double>(Clock::now() - start).count(),
          .peak_mb = static_cast<double>(usage.ru_maxrss) / 1e3};
}

// The child: encodes a file in memory, in pieces that the program would take.
void encode_alone(const std::filesystem::path& tokenizer_path, const std::filesystem::path& path) {
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_path);
  const std::string text = read_file(path);
  std::vector<std::int32_t> tokens;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view piece = rest.substr(0, 256 << 10U);
    tokens.clear();
    tokenizer.encode(piece, tokens);
    rest.remove_prefix(piece.size());
  }
}

// Seconds for `count` processes side by side.
double encode_side_by_side(const std::string& self,
                           int count,
                           const std::string& tokenizer,
                           const std::string& text) {
  const Clock::time_point start = Clock::now();
  std::vector<pid_t> children;
  for (int i = 0; i < count; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl(self.c_str(), self.c_str(), "--encode", tokenizer.c_str(), text.c_str(), nullptr);
      std::_Exit(127);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    ::waitpid(child, nullptr, 0);
  }
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void measure(std::string_view name,
             const std::filesystem::path& input,
             const std::filesystem::path& directory,
             double peer) {
  const auto tokenize = [&](int threads) {
    return run({std::string(TESSERA_BINARY_DIR) + "/tessera",
                "data",
                "tokenize",
                input.string(),
                "--force",
                "--tokenizer",
                (directory / "tokenizer.json").string(),
                "--output",
                (directory / "out").string(),
                format("--threads={}", threads)});
  };
  const double mb = static_cast<double>(std::filesystem::file_size(input)) / 1e6;
  Run one = tokenize(1);
  Run two = tokenize(2);
  for (int i = 0; i < 2; ++i) {
    one.seconds = std::min(one.seconds, tokenize(1).seconds);
    two.seconds = std::min(two.seconds, tokenize(2).seconds);
  }
  const double scaling = one.seconds / two.seconds;
  std::printf(
      "tokenize %-10.*s %6.0f MB: 1 thread %6.2f MB/s, 2 threads %6.2f MB/s: %.3fx   target %.1f   "
      "(processes side by side: %.3fx, ratio %.3f)\n"
      "                    peak memory %.0f and %.0f MB   target %.0f\n",
      static_cast<int>(name.size()),
      name.data(),
      mb,
      mb / one.seconds,
      mb / two.seconds,
      scaling,
      kScalingTarget,
      peer,
      scaling / peer,
      one.peak_mb,
      two.peak_mb,
      kMemoryTargetMb);
  std::fflush(stdout);
}

int bench(const std::string& self, std::size_t megabytes) {
  const TestDirectory directory;
  const std::string text = make_text(8'000'000, 11);
  train_bpe(text.substr(0, 2'000'000), {.vocab_size = 8192, .vocab_size_name = "vocab"})
      .save(directory.path() / "tokenizer.json");
  const std::size_t repeats = std::max<std::size_t>(megabytes / 8, 1);
  const std::filesystem::path plain = directory.path() / "one.txt";
  {
    std::ofstream out(plain, std::ios::binary);
    for (std::size_t i = 0; i < repeats; ++i) {
      out << text;
    }
  }
  const std::filesystem::path lines = directory.path() / "lines.jsonl";
  write_lines(lines, text, repeats);
  const std::string tokenizer = (directory.path() / "tokenizer.json").string();
  double alone = 1e9;
  double both = 1e9;
  for (int i = 0; i < 3; ++i) {
    alone = std::min(alone, encode_side_by_side(self, 1, tokenizer, plain.string()));
    both = std::min(both, encode_side_by_side(self, 2, tokenizer, plain.string()));
  }
  const double peer = 2 * alone / both;
  measure("one text", plain, directory.path(), peer);
  measure("jsonl", lines, directory.path(), peer);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (argc == 4 && first == "--encode") {
    tessera::encode_alone(argv[2], argv[3]);
    return 0;
  }
  std::size_t megabytes = 400;
  if (first.starts_with("--megabytes=")) {
    megabytes = std::strtoul(argv[1] + std::string_view("--megabytes=").size(), nullptr, 10);
  }
  return tessera::bench(std::filesystem::read_symlink("/proc/self/exe").string(), megabytes);
}
