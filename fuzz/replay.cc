// Runs a fuzz target on files and on all files of directories, as any compiler builds it: what a
// fuzzer found once is tested for good. Each is also run with changes drawn from a fixed seed, the
// same ones every time: not a search, as libFuzzer's is, but one that needs no other build.
//
// usage: NAME_replay CHANGED FILE|DIRECTORY..   CHANGED: how often each input is run with changes

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/base/random.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxBytes = 1 << 16;  // of a changed input, as in tools/fuzz.sh
constexpr std::size_t kMaxBlock = 64;       // bytes that one change adds, takes or moves

// Integers at which readers fail, in any byte order.
constexpr std::array<std::uint64_t, 6> kEdges = {
    0, 0x7F, 0xFF, 0x7FFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF};

// Numbers that follow from the name of an input and how often it was changed.
class Draw {
 public:
  Draw(const std::string& name, std::uint64_t change) : key_(tessera::random_key(change, name)) {}

  // Below `bound`, which is not 0.
  std::size_t below(std::size_t bound) {
    return tessera::philox(key_, {count_++, 0, 0, 0})[0] % bound;
  }

 private:
  std::uint64_t key_;
  std::uint32_t count_ = 0;
};

// One change; `other` is any other input.
void change(std::string& bytes, std::string_view other, Draw& draw) {
  const std::size_t at = draw.below(bytes.size() + 1);
  const std::size_t left = bytes.size() - at;
  const std::size_t block = std::min(1 + draw.below(kMaxBlock), left);
  switch (draw.below(6)) {
    case 0:
      if (left > 0) {
        bytes[at] = static_cast<char>(draw.below(256));
      }
      break;
    case 1:
      if (left > 0) {
        bytes[at] =
            static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1U << draw.below(8)));
      }
      break;
    case 2:
      bytes.erase(at, block);
      break;
    case 3:  // once more, elsewhere
      bytes.insert(draw.below(bytes.size() + 1), bytes.substr(at, block));
      break;
    case 4: {
      const std::size_t from = draw.below(other.size() + 1);
      bytes.insert(at, other.substr(from, 1 + draw.below(kMaxBlock)));
      break;
    }
    default: {
      const std::uint64_t edge = kEdges[draw.below(kEdges.size())];
      for (std::size_t i = 0; i < std::min(std::size_t{1} << draw.below(4), left); ++i) {
        bytes[at + i] = static_cast<char>(edge >> (8 * i));
      }
    }
  }
}

void run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

// The input before it runs, so that one that ends the program is there to look at.
fs::path last_input(const fs::path& program) {
  return fs::temp_directory_path() / (program.filename().string() + ".input");
}

void run_changed(const fs::path& path,
                 const std::vector<fs::path>& all,
                 std::uint64_t times,
                 const fs::path& last) {
  const std::string original = tessera::read_file(path).substr(0, kMaxBytes);
  for (std::uint64_t i = 0; i < times; ++i) {
    Draw draw(path.filename().string(), i);
    std::string bytes = original;
    const std::string other = tessera::read_file(all[draw.below(all.size())]);
    for (std::size_t left = 1 + draw.below(8); left > 0; --left) {
      change(bytes, other, draw);
    }
    std::ofstream(last, std::ios::binary) << bytes;
    run(bytes);
  }
}

std::vector<fs::path> inputs_of(int argc, char** argv) {
  std::vector<fs::path> inputs;
  for (int i = 2; i < argc; ++i) {
    if (!fs::is_directory(argv[i])) {
      inputs.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(argv[i])) {
      inputs.push_back(entry.path());
    }
  }
  std::ranges::sort(inputs);
  return inputs;
}

int replay_all(int argc, char** argv) {
  const std::vector<fs::path> inputs = inputs_of(argc, argv);
  const std::uint64_t times = argc > 1 ? std::stoull(argv[1]) : 0;
  const fs::path last = last_input(argv[0]);
  for (const fs::path& path : inputs) {
    std::printf("%s\n", path.c_str());
    run(tessera::read_file(path));
    std::printf("  changed %llu times; the last input is %s\n",
                static_cast<unsigned long long>(times),
                last.c_str());
    std::fflush(stdout);
    run_changed(path, inputs, times, last);
  }
  fs::remove(last);
  std::printf("%zu inputs\n", inputs.size());
  return inputs.empty() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return replay_all(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
