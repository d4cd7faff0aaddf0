// How fast GPT-2's tokenizer encodes, on one core: English, and words of random letters of many
// scripts, of which hardly one comes twice. No other implementation that Debian has reads GPT-2's
// files, so the figures stand beside their targets.
//
// usage: tokenizer_bench            (GPT-2's files are looked for in ../shared/data/gpt2)

#include <array>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/base/median.h"
#include "tessera/base/random.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {
namespace {

const std::string kSource = TESSERA_SOURCE_DIR;

struct Script {
  std::uint32_t first;  // code points
  std::uint32_t count;
};

constexpr std::array<Script, 10> kScripts = {{{'a', 26},
                                              {0xE0, 23},
                                              {0x3B1, 25},
                                              {0x430, 32},
                                              {0x5D0, 27},
                                              {0x627, 20},
                                              {0x915, 37},
                                              {0x4E00, 4000},
                                              {0xAC00, 4000},
                                              {0x1F600, 64}}};

void append_utf8(std::uint32_t point, std::string& text) {
  const auto tail = [&](unsigned shift) {
    text += static_cast<char>(0x80U | ((point >> shift) & 0x3FU));
  };
  if (point < 0x80) {
    text += static_cast<char>(point);
  } else if (point < 0x800) {
    text += static_cast<char>(0xC0U | (point >> 6U));
    tail(0);
  } else if (point < 0x10000) {
    text += static_cast<char>(0xE0U | (point >> 12U));
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0U | (point >> 18U));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string mixed_text(std::size_t bytes) {
  const std::uint64_t key = random_key(1, "mixed text");
  std::uint64_t index = 0;
  const auto below = [&](std::uint32_t limit) {
    return static_cast<std::uint32_t>(uniform(key, index++) * limit);
  };
  std::string text;
  while (text.size() < bytes) {
    const Script& script = kScripts[below(kScripts.size())];
    for (std::uint32_t letters = 2 + below(7); letters > 0; --letters) {
      append_utf8(script.first + below(script.count), text);
    }
    text += below(8) == 0 ? ".\n" : " ";
  }
  return text;
}

// Bytes a second of the median of several runs.
double encoding_speed(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<double> seconds;
  for (int i = 0; i < 7; ++i) {
    std::size_t num_tokens = 0;
    const std::clock_t start = std::clock();  // of the processor: encode() runs on one thread
    tokenizer.encode(text, [&](std::span<const std::int32_t> ids) { num_tokens += ids.size(); });
    seconds.push_back(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    if (num_tokens == 0) {
      std::printf("no tokens\n");
    }
  }
  return static_cast<double>(text.size()) / median(std::move(seconds));
}

void report(const char* what, double bytes_per_s, double target) {
  std::printf("GPT-2's tokenizer, %s: %.1f MB/s on one core   target %.0f, ratio %.1f\n",
              what,
              bytes_per_s / 1e6,
              target,
              bytes_per_s / 1e6 / target);
}

void run() {
  const std::filesystem::path gpt2 = kSource + "/../shared/data/gpt2";
  if (!std::filesystem::exists(gpt2)) {
    std::printf("GPT-2's tokenizer: skipped, %s is missing\n", gpt2.c_str());
    return;
  }
  const Tokenizer tokenizer = Tokenizer::load(gpt2);
  const std::filesystem::path english = kSource + "/../shared/data/tinyshakespeare.txt";
  if (std::filesystem::exists(english)) {
    report("English", encoding_speed(tokenizer, read_file(english)), 10.0);
  } else {
    std::printf("GPT-2's tokenizer, English: skipped, %s is missing\n", english.c_str());
  }
  report("mixed UTF-8", encoding_speed(tokenizer, mixed_text(std::size_t{8} << 20U)), 3.0);
}

}  // namespace
}  // namespace tessera

int main() {
  try {
    tessera::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
